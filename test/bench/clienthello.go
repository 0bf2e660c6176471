package main

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
)

const recordHeader = 5 // octets: content type, version, length (RFC 8446 §5.1)

// asks is where in a record with a ClientHello the number of bytes stands that the upstream is to send: in
// the last eight octets of the random, behind the header of the handshake message, the version and 24
// octets that stay random (RFC 8446 §4.1.2).
const asks = recordHeader + 4 + 2 + 24

// clientHello returns a ClientHello for a name, in one record, as Go sends it: with a post-quantum key share
// it has some 1,500 octets, like those of browsers. The upstream is asked for so many bytes.
func clientHello(name string, ask uint64) ([]byte, error) {
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		tls.Client(client, &tls.Config{ServerName: name, NextProtos: []string{"h2", "http/1.1"}}).Handshake()
		client.Close()
	}()
	record, err := readRecord(server)
	if err != nil {
		return nil, fmt.Errorf("ClientHello for %s: %w", name, err)
	}
	binary.BigEndian.PutUint64(record[asks:], ask)
	return record, nil
}

// asked returns what a ClientHello of clientHello asks for.
func asked(record []byte) uint64 { return binary.BigEndian.Uint64(record[asks:]) }
