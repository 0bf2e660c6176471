package hello

import (
	"bytes"
	"crypto/tls"
	"slices"
	"strings"
	"testing"
)

// TestCases is every hard case about reading the name. Whether a name that is read is a host name, and
// an allowed one, is for policy to say: such cases have the name here as it stood on the wire.
func TestCases(t *testing.T) {
	const com = "example.com"
	plain := with(sni(com))
	msg := unframe(plain)
	stream := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	tls13 := stdClient(t, &tls.Config{ServerName: com, MinVersion: tls.VersionTLS13})
	tls12 := stdClient(t, &tls.Config{ServerName: com, MaxVersion: tls.VersionTLS12})

	// Records of other types as they follow a hello: change_cipher_spec, early data.
	ccs := []byte{20, 3, 3, 0, 1, 1}
	appData := append([]byte{23, 3, 3, 1, 0}, zeros(256)...)

	// Length fields that disagree, in a hello with a byte to spare behind the extension.
	lying := func(data ...byte) []byte { return with(ext{extServerName, data}, ext{23, nil}) }

	type outcome struct {
		b    []byte
		name string
		kind Kind
	}
	reads := func(name string) outcome { return outcome{with(sni(name)), name, 0} }
	refused := func(b []byte) outcome { return outcome{b, "", Malformed} }

	tests := []struct {
		id   string
		want []outcome
	}{
		{"sni-001", []outcome{{tls13, com, 0}}},
		{"sni-002", []outcome{{tls12, com, 0}}},
		{"sni-003", []outcome{
			{record(parts{vers: 0x0301, exts: []ext{sni(com)}}.message()), com, 0},
			{record(parts{vers: 0x0302, exts: []ext{sni(com)}}.message()), com, 0},
		}},
		{"sni-005", []outcome{{stream([]byte{22, 3, 0}, vec16(parts{vers: 0x0300}.message())), "", NoName}}},
		{"sni-006", []outcome{{with(ext{43, vec8([]byte{3, 4})}, ext{51, vec16([]byte{0, 29, 0, 1, 9})}), "", NoName}}},
		{"sni-007", []outcome{{record(parts{}.message()), "", NoName}}},
		{"sni-008", []outcome{refused(lying()), refused(lying(0, 0))}},
		{"sni-009", []outcome{refused(with(sni("")))}},
		{"sni-010", []outcome{reads("127.0.0.1"), reads("10.0.0.5"), reads("203.0.113.7")}},
		{"sni-011", []outcome{reads("[::1]"), reads("::1"), reads("fd00:ec2::254")}},
		{"sni-012", []outcome{reads("2130706433"), reads("0x7f.1"), reads("0177.0.0.1"), reads("127.1")}},
		{"sni-013", []outcome{reads("192.168.1.1:8443/path"), reads("example.com:22"), reads("example.com/x")}},
		{"sni-014", []outcome{reads("example.com."), reads("example.com..")}},
		{"sni-015", []outcome{reads("EXAMPLE.COM"), reads("Api.GitHub.com")}},
		{"sni-016", []outcome{reads("\xe2\x84\xaaernel.org")}},
		{"sni-017", []outcome{reads("my_svc.github.com")}},
		{"sni-019", []outcome{reads("\xff\xfe.github.com")}},
		{"sni-020", []outcome{reads("example.com\x00.evil.test"), reads("evil.test\x00.github.com")}},
		{"sni-021", []outcome{reads("a\n{\"level\":\"info\"}.github.com"), reads("\x1b[2J.github.com")}},
		{"sni-022", []outcome{
			reads(strings.Repeat("a", 243) + ".github.com"),
			reads(strings.Repeat("a", 244) + ".github.com"),
			reads(strings.Repeat("a", 245) + ".github.com"),
			reads(strings.Repeat("a", 60000) + ".github.com"),
			refused(lying(0xff, 0xff, 0, 0xff, 0xfc, 'a')), // 65,535 bytes do not fit into an extension
		}},
		{"sni-023", []outcome{reads(strings.Repeat("a", 64) + ".github.com"), reads("a..github.com"), reads(".github.com")}},
		{"sni-024", []outcome{refused(with(sni(com, "evil.test"))), refused(with(sni("evil.test", com)))}},
		{"sni-025", []outcome{
			refused(with(sni(com), sni("evil.test"))),
			refused(with(sni("evil.test"), ext{23, nil}, sni(com))),
			refused(with(sni(com), sni(com))),
		}},
		{"sni-026", []outcome{
			refused(with(ext{extServerName, vec16(entry(1, "x"), entry(0, com))})),
			refused(with(ext{extServerName, vec16(entry(0, com), entry(1, "x"))})),
			refused(with(ext{extServerName, vec16(entry(1, com))})),
		}},
		{"sni-027", []outcome{
			refused(lying(0, 6, 0, 0, 2, 'a', 'b')),    // list longer than the extension
			refused(lying(0, 4, 0, 0, 2, 'a', 'b')),    // list shorter
			refused(lying(0, 5, 0, 0, 3, 'a', 'b')),    // name longer than the list
			refused(lying(0, 5, 0, 0, 1, 'a', 'b')),    // name shorter
			refused(lying(0, 5, 0, 0, 2, 'a', 'b', 0)), // byte behind the list
			refused(lying(0)),
			refused(lying(0, 1, 0)),
			refused(lying(0, 2, 0, 0)),
			refused(record(parts{tail: vec16([]byte{0, 0, 0, 6, 0, 4, 0, 0, 3, 'a'})}.message())), // at the end of the buffer
		}},
		{"sni-029", []outcome{refused(record(parts{typ: 2, exts: []ext{sni(com)}}.message()))}},
		{"sni-030", []outcome{
			refused(stream(record(stream([]byte{1, 0, 16, 0}, zeros(296))), appData)),
			refused(stream(record(msg[:len(msg)-1]), appData, record(msg[len(msg)-1:]))),
			refused(stream(record(msg[:60]), []byte{21, 3, 1, 0, 2, 1, 0}, record(msg[60:]))),
		}},
		{"sni-031", []outcome{{stream(tls13, ccs, appData), com, 0}}},
		{"sni-032", []outcome{
			refused(record(stream(msg, zeros(10)))),
			refused(stream(record(msg[:60]), record(stream(msg[60:], zeros(1))))),
		}},
		{"sni-036", []outcome{
			refused(stream(record(nil), plain)),
			refused(stream(record(msg[:60]), record(nil), record(msg[60:]))),
			refused(stream(record(msg[:60]), bytes.Repeat(record(nil), 10000), record(msg[60:]))),
		}},
		{"sni-041", []outcome{
			{with(ext{21, zeros(5476 - len(plain) - 4)}, sni(com)), com, 0},
			{with(ext{21, zeros(14000 - len(plain) - 4)}, sni(com)), com, 0},
		}},
		{"sni-042", []outcome{{with(ext{21, zeros(17068 - len(plain) - 4 - 5)}, sni(com)), com, 0}}},
		{"sni-043", []outcome{{stream(plain, ccs, with(sni("evil.test"))), com, 0}}}, // what follows is the server's to judge
		{"sni-046", []outcome{{with(ext{0xffce, zeros(300)}, ext{43, vec8([]byte{3, 4})}), "", NoName}}},
		{"sni-054", []outcome{{stream([]byte("EHLO x\r\n"), plain), "", NotTLS}}},
		{"sni-060", []outcome{
			{with(sni(com), ext{extALPN, vec16(vec8([]byte("acme-tls/1")))}), com, 0},
			{with(sni(com), ext{extALPN, vec16(vec8([]byte("postgresql")))}), com, 0},
			{with(sni(com), ext{extALPN, vec16(vec8([]byte("h2")), vec8([]byte("http/1.1")))}), com, 0},
			{with(sni(com), ext{extALPN, vec16(vec8(bytes.Repeat([]byte("x"), 255)))}), com, 0},
		}},
		{"sni-062", []outcome{
			{[]byte{0x16, 0xfe, 0xfd}, "", NotTLS},
			{[]byte{0x16, 3, 9, 0xff, 0xff}, "", NotTLS},
			{[]byte{0x16, 3, 1, 0x40, 1}, "", NotTLS},
		}},
		{"sni-063", []outcome{{[]byte{0x15, 3, 1, 0, 2, 2, 0x28}, "", NotTLS}}},
		{"sni-064", []outcome{reads("t.co"), reads("x.y")}},
	}
	for _, tc := range tests {
		t.Run(tc.id, func(t *testing.T) {
			for _, w := range tc.want {
				check(t, w.b, w.name, w.kind)
			}
		})
	}

	t.Run("sni-033", func(t *testing.T) {
		for k := range plain {
			if name, need, err := ServerName(plain[:k]); need <= 0 {
				t.Fatalf("after %d of %d bytes: %q, %v", k, len(plain), name, err)
			}
		}
		check(t, plain, com, 0)
	})
	t.Run("sni-037", func(t *testing.T) {
		for range 1000 {
			b := stdClient(t, &tls.Config{ServerName: com, CurvePreferences: []tls.CurveID{tls.X25519MLKEM768, tls.X25519}})
			if len(b) <= 1400 {
				t.Fatalf("hello has %d bytes, want one that takes two segments", len(b))
			}
			if _, need, err := ServerName(b[:1400]); need != len(b)-1400 || err != nil {
				t.Fatalf("after the first segment it asks for %d bytes (%v), %d are to come", need, err, len(b)-1400)
			}
			check(t, b, com, 0)
		}
	})
	t.Run("sni-038", func(t *testing.T) {
		share := slices.Concat([]byte{0x11, 0xec}, vec16(bytes.Repeat([]byte{7}, 1216)), []byte{0, 29}, vec16(zeros(32)))
		b := with(ext{0x2a2a, nil}, ext{extKeyShare, vec16(share)}, ext{21, zeros(200)}, sni(com))
		if at := bytes.Index(b, []byte(com)); at < 1500 {
			t.Fatalf("name is at byte %d, want it behind 1500", at)
		}
		check(t, b, com, 0)
	})
}
