//go:build linux

package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
)

// TLS alerts, as numbered in the registry.
const (
	alertDecodeError      = 50
	alertAccessDenied     = 49
	alertInternalError    = 80
	alertUnrecognizedName = 112
	noAlert               = -1
)

// realHello is the ClientHello that Go's TLS client begins with. The connection that it is written to keeps
// it and goes no further.
func realHello(c *tls.Config) []byte {
	var r recorder
	_ = tls.Client(&r, c).Handshake()
	return r.Bytes()
}

// recorder is a connection that keeps what is written to it and has nothing to read.
type recorder struct {
	net.Conn
	bytes.Buffer
}

var errRecorded = errors.New("recorded")

func (r *recorder) Write(b []byte) (int, error) { return r.Buffer.Write(b) }
func (*recorder) Read([]byte) (int, error)      { return 0, errRecorded }
func (*recorder) Close() error                  { return nil }

// forgedHello is a TLS 1.2 ClientHello (RFC 5246 §7.4.1.2) with extensions of the test's choice.
func forgedHello(extensions ...[]byte) []byte {
	body := []byte{3, 3}
	body = append(body, make([]byte, 32)...)    // random
	body = append(body, 0)                      // no session
	body = append(body, 0, 2, 0xc0, 0x2b, 1, 0) // one cipher suite, no compression
	body = append(body, vector16(bytes.Join(extensions, nil))...)
	return record(handshake(1, body))
}

// handshake is a handshake message of a type.
func handshake(kind byte, body []byte) []byte {
	return append([]byte{kind, 0, byte(len(body) >> 8), byte(len(body))}, body...)
}

// record is a TLS record of type handshake.
func record(b []byte) []byte { return append([]byte{22, 3, 1}, vector16(b)...) }

// serverNames is a server_name extension (RFC 6066 §3) with host names as they stand.
func serverNames(names ...string) []byte {
	var list []byte
	for _, n := range names {
		list = append(append(list, 0), vector16([]byte(n))...)
	}
	return append([]byte{0, 0}, vector16(vector16(list))...)
}

// vector16 is b behind its length in two octets.
func vector16(b []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
}

// alert returns the TLS alert that an answer consists of, noAlert if it is none.
func alert(b []byte) int {
	if len(b) == 7 && bytes.Equal(b[:5], []byte{21, 3, b[2], 0, 2}) && b[5] == 2 {
		return int(b[6])
	}
	return noAlert
}
