package hello

import (
	"bytes"
	"fmt"
)

// Lengths in bytes (RFC 8446 §4.1.2).
const (
	randomSize   = 32
	maxSessionID = 32
)

// clientHello returns the host name in msg, a whole handshake message of that type with its header.
//
// The form is that of RFC 8446 §4.1.2, the same since SSL 3.0 but for the extensions. What crypto/tls
// refuses only when it answers a hello, such as compression in TLS 1.3, is refused here too.
func clientHello(msg []byte) ([]byte, error) {
	if len(msg) < handshakeHeader+2+randomSize {
		return nil, malformed("hello is cut short")
	}
	vers, rest := msg[handshakeHeader:handshakeHeader+2], msg[handshakeHeader+2+randomSize:]
	sessionID, rest, ok1 := cut8(rest)
	suites, rest, ok2 := cut16(rest)
	compressions, rest, ok3 := cut8(rest)
	if !ok1 || !ok2 || !ok3 {
		return nil, malformed("hello is cut short")
	}
	switch {
	case vers[0] != versionMajor:
		return nil, malformed(fmt.Sprintf("client version is %d.%d, not 3.x", vers[0], vers[1]))
	case len(sessionID) > maxSessionID:
		return nil, malformed(fmt.Sprintf("session id of %d bytes, at most %d are accepted", len(sessionID), maxSessionID))
	case len(suites) == 0 || len(suites)%2 != 0:
		return nil, malformed(fmt.Sprintf("cipher suites of %d bytes", len(suites)))
	case bytes.IndexByte(compressions, 0) < 0:
		return nil, malformed("compression methods lack null")
	case len(rest) == 0:
		return nil, &Error{NoName, "hello has no extensions"}
	}
	block, ok := only16(rest)
	if !ok {
		return nil, malformed("length of the extensions is not what is left of the hello")
	}
	name, tls13, err := extensions(block)
	if err != nil {
		return nil, err
	}
	if tls13 && len(compressions) != 1 {
		return nil, malformed("TLS 1.3 hello with compression methods other than null")
	}
	if name == nil {
		return nil, &Error{NoName, "hello has no server_name"}
	}
	return name, nil
}
