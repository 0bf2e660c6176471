package policy

import (
	"strings"
	"testing"
	"unicode"
	"unsafe"
)

func TestParseName(t *testing.T) {
	l63 := strings.Repeat("a", 63)
	n253 := l63 + "." + l63 + "." + l63 + "." + l63[:61]
	for _, tc := range []struct {
		name string
		in   string
		want string // "" for an error
	}{
		{"canonical", "api.example.com", "api.example.com"},
		{"upper case", "API.Example.COM", "api.example.com"},
		{"digits, hyphen, underscore", "_a-1.b--c.3com", "_a-1.b--c.3com"},
		{"hyphens outside", "-a-.example", "-a-.example"},
		{"single label", "localhost", "localhost"},
		{"one octet", "a", "a"},
		{"A-label", "XN--bcher-kva.example", "xn--bcher-kva.example"},
		{"numeric label, not the last", "1.2.3.4.example", "1.2.3.4.example"},
		{"last label with a letter", "1.2.3.4a", "1.2.3.4a"},
		{"last label x0", "a.x0", "a.x0"},
		{"label of 63", l63 + ".example", l63 + ".example"},
		{"name of 253", n253, n253},
		{"name of 253 and a dot", n253 + ".", n253},
		{"trailing dot", "example.com.", "example.com"},

		{"empty", "", ""},
		{"dot", ".", ""},
		{"two dots", "..", ""},
		{"two trailing dots", "example.com..", ""},
		{"leading dot", ".example.com", ""},
		{"empty label", "a..b", ""},
		{"label of 64", l63 + "a.example", ""},
		{"last label of 64", "example." + l63 + "a", ""},
		{"name of 254", n253 + "a", ""},
		{"blank before", " example.com", ""},
		{"blank behind", "example.com ", ""},
		{"line end", "example.com\n", ""},
		{"star", "*.example.com", ""},
		{"percent", "%65xample.com", ""},
		{"backslash", `a\.example.com`, ""},
		{"colon", "example.com:443", ""},
		{"IPv4", "192.0.2.1", ""},
		{"IPv4, trailing dot", "192.0.2.1.", ""},
		{"IPv4, octal", "0300.0.2.01", ""},
		{"IPv4, hexadecimal", "0xc0000201", ""},
		{"IPv4, hexadecimal, upper case", "0XC0000201", ""},
		{"IPv4, empty hexadecimal", "192.0.2.0x", ""},
		{"IPv4, one number", "3221225985", ""},
		{"name that ends in a number", "example.1", ""},
		{"name that ends in 0x", "example.0xg", ""},
		{"IPv6", "2001:db8::1", ""},
		{"IPv6 in brackets", "[2001:db8::1]", ""},
		{"IPv6 with a zone", "fe80::1%eth0", ""},
		{"ideographic full stop", "example\u3002com", ""},
		{"soft hyphen", "exa\u00admple.com", ""},
		{"long s", "ex\u017fample.com", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseName(tc.in)
			if got.String() != tc.want || (err != nil) != (tc.want == "") {
				t.Fatalf("ParseName(%q) = %q, %v, want %q", tc.in, got, err, tc.want)
			}
			if got.IsZero() != (tc.want == "") {
				t.Errorf("IsZero() = %t", got.IsZero())
			}
		})
	}
}

func TestParseNameErrors(t *testing.T) {
	long := strings.Repeat("a", 300)
	for _, tc := range []struct{ in, want string }{
		{"", `name is empty`},
		{"a..b", `name "a..b" has an empty label`},
		{"a.b..", `name "a.b.." has an empty label`},
		{"a b", `name "a b" has the character " ", only letters, digits, '-', '_' and '.' are accepted`},
		{"a\x00b", `name "a\x00b" has the character "\x00", only letters, digits, '-', '_' and '.' are accepted`},
		{"10.0.0.1", `name "10.0.0.1" is an address, only host names are accepted`},
		{long, `name "` + long[:80] + `"... has 300 octets, at most 253 are accepted`},
		{long[:70] + ".b", `name "` + long[:70] + `.b" has a label of 70 octets, at most 63 are accepted`},
	} {
		if _, err := ParseName(tc.in); err == nil || err.Error() != tc.want {
			t.Errorf("ParseName(%q): got %v, want %s", tc.in, err, tc.want)
		}
	}
}

// A name that is canonical already is the very string that came in.
func TestParseNameDoesNotCopy(t *testing.T) {
	for _, s := range []string{"api.example.com", "api.example.com."} {
		n, err := ParseName(s)
		if err != nil {
			t.Fatal(err)
		}
		if unsafe.StringData(n.String()) != unsafe.StringData(s) {
			t.Errorf("ParseName(%q) copied", s)
		}
		if got := testing.AllocsPerRun(100, func() { ParseName(s) }); got != 0 {
			t.Errorf("ParseName(%q): %v allocations, want 0", s, got)
		}
	}
}

func TestMetadataName(t *testing.T) {
	for _, s := range metadataNames {
		n := mustName(t, s)
		if n.String() != s {
			t.Errorf("%q is not canonical", s)
		}
		if !MetadataName(n) {
			t.Errorf("MetadataName(%q) = false", s)
		}
	}
	for _, s := range []string{"x.metadata", "metadata.example.com", "google.internal"} {
		if MetadataName(mustName(t, s)) {
			t.Errorf("MetadataName(%q) = true", s)
		}
	}
}

// What a name on the wire gets that is not as it should be: the rows of the hostile cases that are about
// the name alone.
func TestNameOnTheWire(t *testing.T) {
	p0 := "allow example.com .github.com *.svc.example"
	l63 := strings.Repeat("a", 63)
	github := func(length int) string { // a name of that length below .github.com
		const end = ".github.com"
		return strings.Repeat(l63+".", length/64+1)[:length-len(end)] + end
	}
	type ask struct{ name, want string }
	for _, tc := range []struct {
		id    string
		rules string
		asks  []ask
	}{
		{"sni-010", p0, []ask{{"127.0.0.1", "bad_name"}, {"10.0.0.5", "bad_name"}, {"203.0.113.7", "bad_name"}}},
		{"sni-010", "mode open", []ask{{"127.0.0.1", "bad_name"}, {"10.0.0.5", "bad_name"}, {"203.0.113.7", "bad_name"}}},
		{"sni-011", p0, []ask{{"[::1]", "bad_name"}, {"::1", "bad_name"}, {"fd00:ec2::254", "bad_name"}}},
		{"sni-012", "mode open\nallow localhost", []ask{
			{"2130706433", "bad_name"}, {"0x7f.1", "bad_name"}, {"0177.0.0.1", "bad_name"}, {"127.1", "bad_name"}}},
		{"sni-013", p0, []ask{{"192.168.1.1:8443/path", "bad_name"}, {"example.com:22", "bad_name"}, {"example.com/x", "bad_name"}}},
		{"sni-014", p0, []ask{
			{"example.com", "allow"}, {"example.com.", "allow"}, {"example.com..", "bad_name"},
			{"www.github.com.", "allow"}, {"www.github.com..", "bad_name"}, {"example.org.", "not_allowed"}}},
		{"sni-015", p0, []ask{{"EXAMPLE.COM", "allow"}, {"Api.GitHub.com", "allow"}}},
		{"sni-016", "allow kernel.org", []ask{{"\xe2\x84\xaaernel.org", "bad_name"}, {"Kernel.org", "allow"}}},
		{"sni-017", p0, []ask{{"my_svc.github.com", "allow"}}},
		{"sni-019", p0, []ask{{"\xff\xfe.github.com", "bad_name"}}},
		{"sni-020", p0, []ask{{"example.com\x00.evil.test", "bad_name"}, {"evil.test\x00.github.com", "bad_name"}}},
		{"sni-021", p0, []ask{{"a\n{\"level\":\"info\"}.github.com", "bad_name"}, {"\x1b[2J.github.com", "bad_name"}}},
		{"sni-022", p0, []ask{
			{github(253), "allow"}, {github(254), "bad_name"}, {github(255), "bad_name"}, {github(256), "bad_name"},
			{github(65535), "bad_name"}}},
		{"sni-023", p0, []ask{
			{l63 + "a.github.com", "bad_name"}, {l63 + ".github.com", "allow"},
			{"a..github.com", "bad_name"}, {".github.com", "bad_name"}}},
		{"sni-064", "allow t.co", []ask{{"t.co", "allow"}, {"x.y", "not_allowed"}}},
		{"dns-012", "allow kernel.org", []ask{{"\xe2\x84\xaaernel.org.", "bad_name"}, {"kernel.org.", "allow"}}},
		{"dns-015", p0, []ask{
			{l63 + "." + l63 + "." + l63 + "." + l63[:61] + ".", "not_allowed"}, // 255 octets on the wire
			{github(253) + ".", "allow"}}},
		{"dns-016", p0, []ask{{"_dmarc.github.com.", "allow"}, {"my_host.github.com.", "allow"}}},
		{"dns-017", "allow bücher.example", []ask{{"xn--bcher-kva.example.", "allow"}, {"bücher.example.", "bad_name"}}},
		{"dns-019", p0, []ask{{"example.com.corp.internal.", "not_allowed"}, {"example.com.", "allow"}}},
		{"dns-076", p0, []ask{
			{"foo.local.", "not_allowed"}, {"host.docker.internal.", "not_allowed"},
			{"metadata.google.internal.", "not_allowed"}, {"x.onion.", "not_allowed"}}},
		{"dns-076", "mode open\nallow .internal foo.local", []ask{
			{"foo.local.", "allow"}, {"host.docker.internal.", "allow"},
			{"metadata.google.internal.", "not_allowed"}, {"x.onion.", "not_allowed"}}},
		{"dial-045", "mode open", []ask{
			{"１２７.０.０.１", "bad_name"}, {"①⑥⑨.②⑤④.①⑥⑨.②⑤④", "bad_name"}, {"127。0。0。1", "bad_name"}}},
		{"dial-046", "mode open\nallow .internal", []ask{
			{"169.254.169.254.", "bad_name"}, {"localhost.", "not_allowed"}, {"metadata.google.internal.", "not_allowed"}}},
	} {
		t.Run(tc.id, func(t *testing.T) {
			sel := policyOf(t, tc.rules)
			for _, a := range tc.asks {
				n, err := ParseName(a.name)
				if err != nil {
					if a.want != "bad_name" {
						t.Errorf("%.100q: %v, want %s", a.name, err, a.want)
					}
					// The text goes to a log: short, one line, printable.
					if s := err.Error(); len(s) > 500 || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
						t.Errorf("%.100q: unsuitable text of %d octets: %.600q", a.name, len(s), s)
					}
					continue
				}
				if got := verdict(decide(t, sel, n, 443)); got != a.want {
					t.Errorf("%.100q: got %s, want %s", a.name, got, a.want)
				}
			}
		})
	}
}
