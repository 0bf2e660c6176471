package hello

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// check asserts one outcome of ServerName: a name, or an error of a kind.
func check(t *testing.T, b []byte, wantName string, wantKind Kind) {
	t.Helper()
	name, need, err := ServerName(b)
	if need != 0 {
		t.Fatalf("ServerName asks for %d more bytes after %d", need, len(b))
	}
	if string(name) != wantName {
		t.Errorf("name = %q, want %q", name, wantName)
	}
	if got := kindOf(err); got != wantKind {
		t.Errorf("error = %v, want kind %q", err, wantKind)
	}
}

func kindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return 0
}

// TestNeed feeds hellos in every framing byte by byte: each prefix asks for more, never beyond the end,
// and what it asks for is the least that changes the answer.
func TestNeed(t *testing.T) {
	for name, hello := range seeds(t) {
		msg := unframe(hello)
		for _, size := range []int{maxFragment, len(msg) - 1, 512, 100, 5, 4, 3, 2, 1} {
			t.Run(fmt.Sprintf("%s/%d", name, size), func(t *testing.T) {
				b := records(msg, size)
				last := 1
				for k := range b {
					got, need, err := ServerName(b[:k])
					if got != nil || err != nil || need <= 0 {
						t.Fatalf("after %d of %d bytes: %q, %d, %v; want it to ask for more", k, len(b), got, need, err)
					}
					if k+need > len(b) {
						t.Fatalf("after %d bytes it asks for %d more, %d are to come", k, need, len(b)-k)
					}
					if last > 1 && need != last-1 {
						t.Fatalf("after %d bytes need = %d, the byte before it was %d", k, need, last)
					}
					last = need
				}
				check(t, b, "example.com", 0)
			})
		}
	}
}

// TestNotTLSEarly holds the promise that a client that does not speak TLS is not waited for.
func TestNotTLSEarly(t *testing.T) {
	for _, b := range [][]byte{
		[]byte("G"),       // GET / HTTP/1.1
		[]byte("S"),       // SSH-2.0-
		{0x00},            // a Postgres startup message
		{0x80},            // SSLv2
		{0x15},            // a TLS alert
		{0x17},            // TLS application data
		{0x16, 0xfe},      // DTLS
		{0x16, 0x02},      // no version of TLS
		{0x16, 3, 1, 255}, // needs one more byte to tell
	} {
		name, need, err := ServerName(b)
		if len(b) == 4 {
			if need != 1 {
				t.Errorf("% x: need = %d, want 1", b, need)
			}
			b = append(b, 255)
			name, need, err = ServerName(b)
		}
		if name != nil || need != 0 || kindOf(err) != NotTLS {
			t.Errorf("% x: %q, %d, %v; want not_tls", b, name, need, err)
		}
	}
}

// TestTooLarge holds that the lengths decide, not what has arrived.
func TestTooLarge(t *testing.T) {
	// What a message may have besides its padding, for the largest hello in the fewest records.
	overhead := len(unframe(with(sni("example.com"), ext{21, nil})))
	const most = MaxSize - 4*recordHeader
	fits := with(ext{21, zeros(most - overhead)}, sni("example.com"))
	if len(fits) != MaxSize {
		t.Fatalf("hello has %d bytes, want %d", len(fits), MaxSize)
	}
	check(t, fits, "example.com", 0)

	over := with(ext{21, zeros(most - overhead + 1)}, sni("example.com"))
	small := parts{exts: []ext{sni("example.com"), {21, zeros(12000)}}}.message()
	tests := []struct {
		name  string
		b     []byte
		after int // how many bytes decide it
	}{
		{"one byte over", over, recordHeader + handshakeHeader},
		{"message of 16 MiB", []byte{22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff}, 9},
		{"little in many records", records(small, 1), 0},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			check(t, tc.b[:min(len(tc.b), MaxSize)], "", TooLarge)
			if tc.after > 0 {
				check(t, tc.b[:tc.after], "", TooLarge)
				if _, need, _ := ServerName(tc.b[:tc.after-1]); need != 1 {
					t.Errorf("a byte earlier need = %d, want 1", need)
				}
			}
		})
	}
}

// TestMalformed goes through what makes a hello no hello, each fault in one that is well formed but for it.
func TestMalformed(t *testing.T) {
	name := sni("example.com")
	b16 := func(v ...byte) []byte { return vec16(v) }
	msg := func(p parts) []byte { return records(p.message(), maxFragment) }
	tests := []struct {
		name string
		b    []byte
		text string
	}{
		{"empty message", record([]byte{1, 0, 0, 0}), "cut short"},
		{"cut in the random", record([]byte{1, 0, 0, 4, 3, 3, 0, 0}), "cut short"},
		{"version 2.0", msg(parts{vers: 0x0200, exts: []ext{name}}), "client version is 2.0"},
		{"session id of 33 bytes", msg(parts{sessionID: zeros(33), exts: []ext{name}}), "session id of 33"},
		{"no cipher suite", msg(parts{suites: []byte{}, exts: []ext{name}}), "cipher suites of 0"},
		{"half a cipher suite", msg(parts{suites: zeros(3), exts: []ext{name}}), "cipher suites of 3"},
		{"no compression method", msg(parts{compression: []byte{}, exts: []ext{name}}), "lack null"},
		{"deflate only", msg(parts{compression: []byte{1}, exts: []ext{name}}), "lack null"},
		{"deflate in TLS 1.3", msg(parts{compression: []byte{1, 0}, exts: []ext{name, {43, vec8([]byte{3, 4})}}}), "other than null"},
		{"bytes behind the extensions", msg(parts{exts: []ext{name}, tail: zeros(1)}), "what is left"},
		{"half a length of extensions", msg(parts{tail: zeros(1)}), "what is left"},
		{"extension block too long", msg(parts{tail: []byte{0, 5, 0, 0, 0, 0}}), "what is left"},
		{"extension id cut", msg(parts{tail: b16(0)}), "extensions are cut short"},
		{"extension cut", msg(parts{tail: b16(0, 23, 0, 1)}), "extensions are cut short"},
		{"twice, number below 64", with(name, ext{23, nil}, ext{23, nil}), "extension 23 appears twice"},
		{"twice, number above 64", with(ext{0x1a1a, nil}, name, ext{0x1a1a, nil}), "extension 6682 appears twice"},
		{"status_request", with(name, ext{5, []byte{1, 0, 0}}), "extension 5"},
		{"supported_groups, empty", with(name, ext{10, b16()}), "extension 10"},
		{"supported_groups, odd", with(name, ext{10, b16(0)}), "extension 10"},
		{"ec_point_formats, empty", with(name, ext{11, vec8()}), "extension 11"},
		{"signature_algorithms, too long", with(name, ext{13, append(b16(4, 3), 0)}), "extension 13"},
		{"alpn, empty", with(name, ext{16, b16()}), "extension 16"},
		{"alpn, empty protocol", with(name, ext{16, vec16(vec8([]byte("h2")), vec8())}), "extension 16"},
		{"alpn, cut protocol", with(name, ext{16, b16(3, 'h', '2')}), "extension 16"},
		{"sct with content", with(name, ext{18, zeros(1)}), "extension 18"},
		{"extended_master_secret with content", with(name, ext{23, zeros(1)}), "extension 23"},
		{"pre_shared_key not last", with(ext{41, psk(1, 1)}, name), "not the last"},
		{"pre_shared_key without identity", with(name, ext{41, psk(0, 0)}), "extension 41"},
		{"pre_shared_key with a binder too few", with(name, ext{41, psk(2, 1)}), "extension 41"},
		{"pre_shared_key with a binder too many", with(name, ext{41, psk(1, 2)}), "extension 41"},
		{"early_data with content", with(name, ext{42, zeros(1)}), "extension 42"},
		{"supported_versions, empty", with(name, ext{43, vec8()}), "extension 43"},
		{"supported_versions, odd", with(name, ext{43, vec8(zeros(3))}), "extension 43"},
		{"cookie, empty", with(name, ext{44, b16()}), "extension 44"},
		{"psk_key_exchange_modes, too long", with(name, ext{45, []byte{1, 1, 0}}), "extension 45"},
		{"signature_algorithms_cert, cut", with(name, ext{50, []byte{0, 2, 4}}), "extension 50"},
		{"key_share, empty key", with(name, ext{51, b16(0, 29, 0, 0)}), "extension 51"},
		{"key_share, cut key", with(name, ext{51, b16(0, 29, 0, 2, 1)}), "extension 51"},
		{"renegotiation", with(name, ext{0xff01, vec8(zeros(12))}), "extension 65281"},
		{"encrypted_client_hello of type 2", with(name, ext{0xfe0d, []byte{2}}), "extension 65037"},
		{"encrypted_client_hello, cut", with(name, ext{0xfe0d, []byte{0, 0, 1, 0, 1, 7, 0, 1}}), "extension 65037"},
		{"encrypted_client_hello, inner with content", with(name, ext{0xfe0d, []byte{1, 0}}), "extension 65037"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			check(t, tc.b, "", Malformed)
			if _, _, err := ServerName(tc.b); err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Errorf("error = %v, want one that says %q", err, tc.text)
			}
		})
	}
}

// psk is a pre_shared_key extension with so many identities and binders.
func psk(identities, binders int) []byte {
	identity := append(vec16([]byte("ticket")), zeros(4)...)
	return append(
		vec16(bytes.Repeat(identity, identities)),
		vec16(bytes.Repeat(vec8(zeros(32)), binders))...)
}

// TestWellFormed has what real clients send and a strict parser may get wrong.
func TestWellFormed(t *testing.T) {
	name := sni("example.com")
	tests := []struct {
		name string
		b    []byte
	}{
		{"session id of 32 bytes", records(parts{sessionID: zeros(32), exts: []ext{name}}.message(), maxFragment)},
		{"deflate offered in TLS 1.2", records(parts{compression: []byte{1, 0}, exts: []ext{name}}.message(), maxFragment)},
		{"grease", with(ext{0x0a0a, nil}, name, ext{0xfafa, zeros(1)})},
		{"key_share asks for a retry", with(name, ext{51, vec16()})},
		{"renegotiation_info", with(name, ext{0xff01, []byte{0}})},
		{"quic transport parameters", with(name, ext{57, zeros(40)})},
		{"early data and pre_shared_key", with(name, ext{42, nil}, ext{45, []byte{1, 1}}, ext{41, psk(2, 2)})},
		{"encrypted_client_hello, outer name counts", with(name, ext{0xfe0d, append([]byte{0, 0, 1, 0, 1, 7}, append(vec16(zeros(32)), vec16(zeros(144))...)...)})},
		{"encrypted_client_hello, inner", with(name, ext{0xfe0d, []byte{1}})},
		{"two hundred unknown extensions", with(append(unknown(100, 200), name)...)},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			check(t, tc.b, "example.com", 0)
			if got, err := stdServer(tc.b); got != "example.com" {
				t.Errorf("crypto/tls reads %q, %v", got, err)
			}
		})
	}
}

// TestManyExtensions holds that a repetition is found whatever the number of extensions is.
func TestManyExtensions(t *testing.T) {
	for _, n := range []int{1, 7, 8, 9, 500, 10000} {
		exts := append(unknown(1000, n), sni("example.com"))
		check(t, with(exts...), "example.com", 0)
		check(t, with(append(exts, ext{1000, nil})...), "", Malformed)
		check(t, with(append(exts, ext{uint16(999 + n), nil})...), "", Malformed)
	}
}

// unknown is n empty extensions numbered from first.
func unknown(first uint16, n int) []ext {
	exts := make([]ext, n)
	for i := range exts {
		exts[i].id = first + uint16(i)
	}
	return exts
}

// TestAllocs holds that a hello in one record costs none, and another one.
func TestAllocs(t *testing.T) {
	for name, b := range seeds(t) {
		split := records(unframe(b), 100)
		for _, tc := range []struct {
			name string
			b    []byte
			want float64
		}{
			{"whole", b, 0},
			{"prefix", b[:len(b)-1], 0},
			{"split", split, 1},
			{"split prefix", split[:len(split)-1], 0},
		} {
			if got := testing.AllocsPerRun(100, func() { ServerName(tc.b) }); got != tc.want {
				t.Errorf("%s, %s: %v allocations, want %v", name, tc.name, got, tc.want)
			}
		}
	}
}

// TestView holds that the name of a hello in one record is a view, which is what costs no allocation.
func TestView(t *testing.T) {
	b := with(sni("example.com"))
	name, _, _ := ServerName(b)
	copy(b[bytes.Index(b, []byte("example")):], "EXAMPLE")
	if string(name) != "EXAMPLE.com" {
		t.Errorf("name = %q after its bytes changed, want %q", name, "EXAMPLE.com")
	}
}

func TestKindString(t *testing.T) {
	for kind, want := range map[Kind]string{
		0: "", NotTLS: "not_tls", Malformed: "hello_malformed", TooLarge: "hello_too_large", NoName: "no_name", NoName + 1: "",
	} {
		if got := kind.String(); got != want {
			t.Errorf("Kind(%d).String() = %q, want %q", kind, got, want)
		}
	}
}
