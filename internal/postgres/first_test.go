package postgres

import (
	"encoding/hex"
	"strings"
	"testing"
)

func octets(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReadFirst(t *testing.T) {
	for _, tc := range []struct {
		name  string
		in    string
		want  First
		need  int
		error bool
	}{
		{"SSLRequest", "00000008 04d2162f", SSLRequest, 0, false},
		{"octets behind it", "00000008 04d2162f 16030100", SSLRequest, 0, false},
		{"GSSENCRequest", "00000008 04d21630", GSSENCRequest, 0, false},
		{"CancelRequest", "00000010 04d2162e 00000001 00000002", CancelRequest, 0, false},
		{"CancelRequest of protocol 3.2", "0000010c 04d2162e", CancelRequest, 0, false},
		{"protocol 3.0", "00000029 00030000", Startup, 0, false},
		{"protocol 3.2", "00000029 00030002", Startup, 0, false},
		{"protocol 2", "00000128 00020000", Startup, 0, false},
		{"largest", "00002710 00030000", Startup, 0, false},
		{"direct TLS", "16", DirectTLS, 0, false},

		{"nothing", "", 0, 8, false},
		{"one octet", "00", 0, 7, false},
		{"half a length", "0000", 0, 6, false},
		{"length that can grow", "000000", 0, 5, false},
		{"all but one", "00000008 04d216", 0, 1, false},

		{"first octet of HTTP", "47", 0, 0, true},
		{"SSLv2", "80", 0, 0, true},
		{"too long by the second octet", "0001", 0, 0, true},
		{"too long by the third octet", "000028", 0, 0, true},
		{"too long by one", "00002711", 0, 0, true},
		{"huge", "7fffffff 04d2162f", 0, 0, true},
		{"negative", "ffffffff 04d2162f", 0, 0, true},
		{"zero", "00000000", 0, 0, true},
		{"four", "00000004", 0, 0, true},
		{"seven", "00000007", 0, 0, true},
		{"long SSLRequest", "00000009 04d2162f 00", 0, 0, true},
		{"long GSSENCRequest", "00000010 04d21630", 0, 0, true},
		{"CancelRequest for nobody", "00000008 04d2162e", 0, 0, true},
		{"code 0", "00000008 00000000", 0, 0, true},
		{"protocol 1", "00000009 00010000", 0, 0, true},
		{"protocol 4", "00000009 00040000", 0, 0, true},
		{"next code", "00000008 04d21631", 0, 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, need, err := ReadFirst(octets(t, tc.in))
			if got != tc.want || need != tc.need || (err != nil) != tc.error {
				t.Errorf("got %v, %d, %v; want %v, %d, an error: %v", got, need, err, tc.want, tc.need, tc.error)
			}
		})
	}
}

func TestSSLRequest(t *testing.T) {
	b := AppendSSLRequest(nil)
	if f, _, err := ReadFirst(b); f != SSLRequest || len(b) != RequestSize {
		t.Errorf("% x is %v (%v)", b, f, err)
	}
}

func TestFirstString(t *testing.T) {
	for f := range Startup + 2 {
		if s := f.String(); (s == "") != (f == 0 || f > Startup) {
			t.Errorf("First(%d) = %q", f, s)
		}
	}
}

func TestReadFirstAllocations(t *testing.T) {
	b := octets(t, "00000008 04d2162f")
	if n := testing.AllocsPerRun(100, func() { ReadFirst(b) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
