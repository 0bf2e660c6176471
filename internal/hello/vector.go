package hello

import "encoding/binary"

// Vectors of RFC 8446 §3.4: a length in one or two bytes, then so many bytes. Each function returns them,
// what is behind them, and false if b is shorter than they are. All are small enough to be inlined.

func cut8(b []byte) (v, rest []byte, ok bool) {
	if len(b) < 1 || len(b)-1 < int(b[0]) {
		return nil, nil, false
	}
	n := 1 + int(b[0])
	return b[1:n], b[n:], true
}

func cut16(b []byte) (v, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	if n > len(b) {
		return nil, nil, false
	}
	return b[2:n], b[n:], true
}

// only8 and only16 want nothing behind the vector.

func only8(b []byte) (v []byte, ok bool) {
	v, rest, ok := cut8(b)
	return v, ok && len(rest) == 0
}

func only16(b []byte) (v []byte, ok bool) {
	v, rest, ok := cut16(b)
	return v, ok && len(rest) == 0
}
