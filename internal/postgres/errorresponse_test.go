package postgres

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// fields reads an ErrorResponse as a client does: fields of a kind and a text that a NUL ends, up to one of no
// kind, which is the last octet of the message.
func fields(t *testing.T, b []byte) map[byte]string {
	t.Helper()
	if len(b) < 6 || b[0] != 'E' || int(binary.BigEndian.Uint32(b[1:])) != len(b)-1 {
		t.Fatalf("no ErrorResponse: %q", b)
	}
	got := make(map[byte]string)
	for rest := b[5:]; ; {
		if rest[0] == 0 {
			if len(rest) != 1 {
				t.Fatalf("%d octets behind the last field", len(rest)-1)
			}
			return got
		}
		end := bytes.IndexByte(rest, 0)
		if _, twice := got[rest[0]]; twice || end < 0 {
			t.Fatalf("field %q is there twice, or has no end: %q", rest[0], b)
		}
		got[rest[0]] = string(rest[1:end])
		rest = rest[end+1:]
	}
}

func TestFatal(t *testing.T) {
	for _, tc := range []struct {
		name          string
		in            Fatal
		message, hint string
	}{
		{"all", Fatal{CodeInvalidAuthorization, "no", "ask"}, "no", "ask"},
		{"no hint", Fatal{CodeConnectionFailure, "no", ""}, "no", ""},
		{"NUL", Fatal{CodeConnectionFailure, "no\x00Hlie", "\x00"}, "no", ""},
		{"long", Fatal{CodeTooManyConnections, strings.Repeat("x", 70_000), ""}, strings.Repeat("x", maxField), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := fields(t, tc.in.Append([]byte("S"))[1:])
			if got['S'] != "FATAL" || got['V'] != "FATAL" || got['C'] != tc.in.Code || got['M'] != tc.message || got['H'] != tc.hint {
				t.Errorf("got %q", got)
			}
		})
	}
}
