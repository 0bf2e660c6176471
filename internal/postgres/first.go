// Package postgres has what a gateway needs of the PostgreSQL protocol before TLS takes over: what a client
// begins with, how a server is asked for TLS, and an ErrorResponse, which every client can show.
package postgres

import (
	"encoding/binary"
	"fmt"
)

// First is what a client sends first, or again after it was told that there is no GSSAPI encryption.
type First uint8

// The zero First is none of them.
const (
	DirectTLS     First = iota + 1 // a TLS record: the client does without an SSLRequest (PostgreSQL 17)
	SSLRequest                     // TLS is asked for, and awaits an answer of one octet
	GSSENCRequest                  // GSSAPI encryption is asked for, and awaits an answer of one octet
	CancelRequest                  // a query of another connection is to be cancelled, in clear
	Startup                        // a session is begun, in clear
)

// String returns the name that the protocol has for it.
func (f First) String() string {
	switch f {
	case DirectTLS:
		return "direct TLS"
	case SSLRequest:
		return "SSLRequest"
	case GSSENCRequest:
		return "GSSENCRequest"
	case CancelRequest:
		return "CancelRequest"
	case Startup:
		return "StartupMessage"
	}
	return ""
}

// RequestSize is the length in octets of an SSLRequest or a GSSENCRequest, all of which is header: a length
// that includes itself, and a code.
const RequestSize = 8

// The answers to an SSLRequest or a GSSENCRequest, an octet each.
const (
	Accept = 'S' // TLS may begin
	Refuse = 'N'
)

const (
	maxStartup     = 10_000 // octets; the server takes no more either
	typeHandshake  = 22     // of a TLS record (RFC 8446 §5.1)
	codeCancel     = 80877102
	codeSSL        = 80877103
	codeGSSENC     = 80877104
	oldestProtocol = 2 // the major version, which is the upper half of the code
	newestProtocol = 3
)

// AppendSSLRequest appends an SSLRequest to b.
func AppendSSLRequest(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, RequestSize)
	return binary.BigEndian.AppendUint32(b, codeSSL)
}

// ReadFirst returns what a client begins with, from the octets that it has sent so far.
//
// Exactly one of the results is set: what it is; how many octets must come before the answer can be another;
// or an error, which no further octet changes. Never more than RequestSize octets are looked at or asked for:
// what comes behind them is the caller's business. Every octet is judged as soon as it is there, for a client
// that speaks something else must not be waited for.
func ReadFirst(b []byte) (f First, need int, err error) {
	if len(b) > 0 && b[0] == typeHandshake {
		return DirectTLS, 0, nil
	}
	var head [RequestSize]byte
	n := copy(head[:], b)
	// The least that the length can still become, and the most.
	least := binary.BigEndian.Uint32(head[:])
	most := least
	if n < 4 {
		most |= 1<<(8*(4-n)) - 1
	}
	if least > maxStartup || most < RequestSize {
		return 0, 0, fmt.Errorf("no PostgreSQL: begins with % x", b[:n])
	}
	if n < RequestSize {
		return 0, RequestSize - n, nil
	}
	switch code := binary.BigEndian.Uint32(head[4:]); {
	case code == codeSSL && least == RequestSize:
		return SSLRequest, 0, nil
	case code == codeGSSENC && least == RequestSize:
		return GSSENCRequest, 0, nil
	case code == codeCancel && least > RequestSize:
		return CancelRequest, 0, nil
	case oldestProtocol <= code>>16 && code>>16 <= newestProtocol:
		return Startup, 0, nil
	}
	return 0, 0, fmt.Errorf("no PostgreSQL: begins with % x", b[:n])
}
