// Package hello reads the server name out of a TLS ClientHello, the first thing a TLS client sends.
//
// It is meant for a gateway that decides by that name and then passes every byte on unchanged. Client
// and server behind the gateway must see the same name as the gateway does, so the parser refuses what
// another parser could read another way: it accepts no hello that crypto/tls rejects or reads with a
// different name. The one exception is a trailing dot, which crypto/tls rejects and ServerName returns.
package hello

import (
	"encoding/binary"
	"fmt"
)

// MaxSize is how many bytes, record headers included, a client may send up to the end of its hello.
// Post-quantum key shares and session tickets make hellos of several KiB; crypto/tls takes 64 KiB too.
const MaxSize = 64 << 10

// RFC 8446 §5.1 and §4.
const (
	typeHandshake   = 22
	typeClientHello = 1
	versionMajor    = 3 // of every version from SSL 3.0 to TLS 1.3; DTLS has 254

	recordHeader    = 5       // type, version, length of the fragment
	maxFragment     = 1 << 14 // bytes of an unencrypted record behind its header
	handshakeHeader = 4       // type, 24-bit length
)

// ServerName returns the host name that the TLS client asks for, from the bytes it sent so far.
//
// Exactly one of the results is set:
//
//   - name: the hello is complete and well formed. This is the host_name as sent, neither checked for
//     being a host name nor folded, at least one byte. It is a view into b if the hello lies in one
//     record, else a copy. What follows the hello in b (early data, say) is not looked at.
//   - need: the hello is incomplete, and with fewer than need further bytes the answer stays the same.
//     The caller reads at least that many, and never more than MaxSize bytes are asked for in all.
//   - err: an *Error, and no further byte will change it.
//
// The first two bytes are judged one by one, for a client that does not speak TLS must not be waited
// for; every later header is judged as a whole. A client that sends each byte of its hello in a record of
// its own thus costs two calls a byte.
func ServerName(b []byte) (name []byte, need int, err error) {
	var head [handshakeHeader]byte
	var (
		start = 0 // of the current record in b
		got   = 0 // bytes of the handshake message in the records before it
	)
	for {
		rec := b[start:]
		n, ok := fragment(rec)
		if !ok {
			need, err := noFragment(rec, start == 0)
			return nil, need, err
		}
		end := start + recordHeader + n
		missing := max(end-len(b), 0)

		// Any number of records may share the four bytes of the message's header.
		if got < handshakeHeader {
			copy(head[got:], rec[recordHeader:min(recordHeader+n, len(rec))])
			if lacks := handshakeHeader - got - (n - missing); lacks > 0 {
				if missing == 0 {
					start, got = end, got+n
					continue
				}
				if n < handshakeHeader-got {
					lacks = missing + recordHeader // the header of the record that goes on with it
				}
				return nil, lacks, nil
			}
			if head[0] != typeClientHello {
				return nil, 0, malformed(fmt.Sprintf("handshake message is of type %d, not client_hello", head[0]))
			}
		}

		// What the message's length promises after this record.
		rest := handshakeHeader + int(binary.BigEndian.Uint32(head[:])&0xffffff) - got - n
		switch {
		case rest < 0:
			return nil, 0, malformed("record goes on behind the hello")
		case end+rest+(rest+maxFragment-1)/maxFragment*recordHeader > MaxSize:
			return nil, 0, &Error{TooLarge, fmt.Sprintf("hello takes more than %d bytes", MaxSize)}
		case missing > 0 && rest > 0:
			return nil, missing + recordHeader, nil
		case missing > 0:
			return nil, missing, nil
		case rest == 0:
			name, err = clientHello(message(b[:end], got+n))
			return name, 0, err
		}
		start, got = end, got+n
	}
}

// fragment returns the length of the fragment behind the record header that rec begins with, 1 to
// maxFragment bytes, if it is a whole header and one that a hello can have. As crypto/tls does, it wants
// no empty fragment.
func fragment(rec []byte) (n int, ok bool) {
	if len(rec) < recordHeader || rec[0] != typeHandshake || rec[1] != versionMajor {
		return 0, false
	}
	n = int(binary.BigEndian.Uint16(rec[3:]))
	return n, 0 < n && n <= maxFragment
}

// noFragment returns how many bytes of the header are to come, or what is wrong with it.
func noFragment(rec []byte, first bool) (need int, err error) {
	kind := Malformed
	if first {
		kind = NotTLS
	}
	switch {
	case first && len(rec) == 0, first && len(rec) == 1 && rec[0] == typeHandshake:
		return 1, nil
	case !first && len(rec) < recordHeader:
		return recordHeader - len(rec), nil
	case rec[0] != typeHandshake:
		return 0, &Error{kind, fmt.Sprintf("record of type %d, not handshake", rec[0])}
	case rec[1] != versionMajor:
		return 0, &Error{kind, fmt.Sprintf("record of version %d.x, not 3.x", rec[1])}
	case len(rec) < recordHeader:
		return recordHeader - len(rec), nil
	}
	n := binary.BigEndian.Uint16(rec[3:])
	if n == 0 {
		return 0, malformed("empty record")
	}
	return 0, &Error{kind, fmt.Sprintf("record of %d bytes, at most %d are accepted", n, maxFragment)}
}

// message returns the handshake message of size bytes that the records make up, without copying if it
// is in one of them. The records have passed ServerName.
func message(records []byte, size int) []byte {
	if len(records) == recordHeader+size {
		return records[recordHeader:]
	}
	msg := make([]byte, 0, size)
	for len(records) > 0 {
		end := recordHeader + int(binary.BigEndian.Uint16(records[3:]))
		msg = append(msg, records[recordHeader:end]...)
		records = records[end:]
	}
	return msg
}
