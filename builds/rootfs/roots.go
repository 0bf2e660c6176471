package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
)

// readRoots returns a file of CA roots, of which it has made sure that it is one and nothing else: an image
// without roots reaches nobody over TLS, and only its users would notice.
func readRoots(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("CA roots: %w; install the package ca-certificates, or name another file", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("CA roots: %s: no certificate, want one or more in PEM", path)
	}
	// A bundle that was cut off, or that somebody keeps a key in.
	n := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("CA roots: %s: has a block %q, want certificates alone", path, block.Type)
		}
		n++
	}
	if begun := bytes.Count(text, []byte("-----BEGIN ")); begun != n {
		return nil, fmt.Errorf("CA roots: %s: %d of %d blocks can be read, want all", path, n, begun)
	}
	return text, nil
}
