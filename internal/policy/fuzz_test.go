package policy

import (
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// aton reports whether a host is an IPv4 address to inet_aton(3) or to a URL parser (WHATWG URL, "IPv4
// parser"): up to four numbers, in decimal, octal or hexadecimal, one dot behind them at most.
func aton(host string) bool {
	parts := strings.Split(strings.TrimSuffix(host, "."), ".")
	if len(parts) > 4 {
		return false
	}
	for _, p := range parts {
		low := strings.ToLower(p)
		switch {
		case low == "0x":
			continue
		case strings.HasPrefix(low, "0x"):
			p = p[2:]
			if _, err := strconv.ParseUint(p, 16, 64); err != nil {
				return false
			}
		case p == "" || strings.Trim(p, "0123456789") != "":
			return false
		}
	}
	return true
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil || net.ParseIP(s) != nil || aton(s)
}

// foldName is what ParseName does to the names that it accepts.
func foldName(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, strings.TrimSuffix(s, "."))
}

var canonical = regexp.MustCompile(`^[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*$`)

// What is accepted is the input, folded and without one trailing dot, in the one canonical form, and is no
// address to anybody. What is refused is not in that form, or is an address.
func FuzzParseName(f *testing.F) {
	for _, s := range []string{
		"", ".", "a", "example.com", "EXAMPLE.com.", "example.com..", "a..b", "_dmarc.x-y.example", "xn--bcher-kva.example",
		"127.0.0.1", "0x7f.1", "1.2.3.4.", "2130706433", "0X", "a.0x", "::1", "[::1]", "fe80::1%eth0", "\u212aernel.org",
		"a\x00b", "127。0。0。1", strings.Repeat("a", 64), strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 127) + "a",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseName(s)
		want := foldName(s)
		last := want[strings.LastIndexByte(want, '.')+1:]
		ok := canonical.MatchString(want) && len(want) <= 253 && strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(last, "0x")
		if (err == nil) != ok {
			t.Fatalf("%q: got %v, %v", s, n, err)
		}
		if err != nil {
			if !n.IsZero() {
				t.Errorf("%q: an error and a name %q", s, n)
			}
			if text := err.Error(); len(text) > 600 || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q: unsuitable text %q", s, text)
			}
			return
		}
		if n.String() != want {
			t.Errorf("%q: got %q, want %q", s, n, want)
		}
		if isAddress(n.String()) {
			t.Errorf("%q: %q is an address", s, n)
		}
		if again, err := ParseName(n.String()); err != nil || again != n {
			t.Errorf("%q: %q parses to %q, %v", s, n, again, err)
		}
	})
}

// A rule is in force for the name that was written: ASCII labels are folded, others become A-labels that
// read back as they were, lower case. Its canonical text is the same rule.
func FuzzParseRule(f *testing.F) {
	for _, s := range []string{
		"example.com", ".example.com", "*.example.com", "example.com:443", ".example.com:8443,443", "*.x.example:*", "*", "*.", ".",
		"bücher.example", "BÜCHER.Example:80", "xn--bcher-kva.example", "xn--", "xn--a.example", "\u212aernel.org", "ⓔⓧ.com", "a．b",
		"例え.テスト", "straße.example", "exa\u00admple.com", "אב.example", "a\u200db.example", "https://x/", "[::1]:443", "1.2.3.4", "x:0443",
		"ǅ.example", "İ.example", "\u0345.example", "ﬀ.example", "\u1e9e.example", "Ω.example", "Å.example", "a.-b", "_x.ü.example.",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		spec, err := parseRule(s)
		if err != nil {
			if text := err.Error(); len(text) > 1000 || !utf8.ValidString(text) {
				t.Errorf("%q: unsuitable text %q", s, text)
			}
			return
		}
		if n, err := ParseName(spec.name.String()); err != nil || n != spec.name {
			t.Fatalf("%q: the name %q is not canonical: %v", s, spec.name, err)
		}
		host, _, _ := strings.Cut(s, ":")
		switch spec.scope {
		case suffix:
			host = strings.TrimPrefix(host, ".")
		case below:
			host = strings.TrimPrefix(host, "*.")
		}
		written := strings.Split(strings.TrimSuffix(host, "."), ".")
		inForce := strings.Split(spec.name.String(), ".")
		if len(written) != len(inForce) {
			t.Fatalf("%q: %d labels became %q", s, len(written), spec.name)
		}
		for i, w := range written {
			if isASCII(w) {
				if foldASCII(w) != inForce[i] {
					t.Errorf("%q: label %q became %q", s, w, inForce[i])
				}
				continue
			}
			u, err := strictIDNA.ToUnicode(inForce[i])
			if err != nil || !strings.HasPrefix(inForce[i], "xn--") || isASCII(u) || u != strings.Map(unicode.ToLower, w) {
				t.Errorf("%q: label %q became %q, which is %q, %v", s, w, inForce[i], u, err)
			}
		}
		text := ruleText(spec)
		again, err := parseRule(text)
		if err != nil || again.name != spec.name || again.scope != spec.scope || ruleText(again) != text {
			t.Errorf("%q: its text %q parses to %q, %v", s, text, ruleText(again), err)
		}
	})
}

// A document, whose lists have the text list, is refused with file:line or is good to use.
func FuzzDocument(f *testing.F) {
	for _, doc := range []string{
		"", "policy p {\n}\n", "policy p {\n allow_list list\n}\n", exampleDoc, strings.ReplaceAll(exampleDoc, "\n", "\r\n"),
		"policy a {\n client 10.0.0.0/8\n mode learn\n ports 22\n deny .x:*\n}\n\npolicy b {\n allow metadata\n private 10.0.0.0/8\n}\n",
		"policy p { }", "policy p {\n allow \"x\"\n}\n", "\xef\xbb\xbfpolicy p {\n}", "policy p {\n allow a#b\n}\n", "}\n{\n", "policy p {\n allow\n}\n",
	} {
		f.Add(doc, "example.org\n.example.net:8443 # x\n")
		f.Add(doc, "http://x\n")
	}
	place := regexp.MustCompile(`^.+:[1-9][0-9]*: .`)
	client := netip.MustParseAddr("10.0.0.1")
	f.Fuzz(func(t *testing.T, doc, list string) {
		set, err := compileText(doc, list)
		if err != nil {
			if set != nil {
				t.Error("an error and a set")
			}
			if !place.MatchString(err.Error()) {
				t.Errorf("an error without a place: %q", err)
			}
			return
		}
		if len(set.Policies()) == 0 {
			t.Error("no policy")
		}
		for _, w := range set.Warnings() {
			if !place.MatchString(w) {
				t.Errorf("a warning without a place: %q", w)
			}
		}
		for _, name := range set.Policies() {
			sel := set.Select(client, name)
			for _, s := range []string{"example.com", "a.example.org", "metadata.google.internal", "com"} {
				n := mustName(t, s)
				d := sel.Lookup(n, 443)
				if err := disagreement(sel, n, 443, d); err != nil {
					t.Errorf("%s: %v", n, err)
				}
				if MetadataName(n) && d.Verdict.Admits() && (d.Rule.IsZero() || !strings.HasPrefix(d.Rule.Text(), "allow "+s)) {
					t.Errorf("%s: admitted by %q", n, d.Rule.Text())
				}
			}
		}
		if again, err := compileText(doc, list); err != nil || again.Hash() != set.Hash() {
			t.Errorf("compiled again: another set, %v", err)
		}
	})
}

// The look-up table decides as reading the rules one by one does.
func FuzzLookup(f *testing.F) {
	f.Add([]byte{}, []byte{})
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, []byte{1, 2, 3, 4, 5, 6})
	f.Add([]byte{1, 0x11, 0x35, 0x80, 0x42, 0xff, 0x17, 0x03, 0x9c, 0x61, 0x28, 0x77, 0xa5}, []byte{0x13, 0x24, 0x35})
	f.Add([]byte{2, 200, 17, 1, 1, 40, 33, 2, 3, 99, 12, 0, 7, 254}, []byte{9, 9, 9, 9})
	f.Fuzz(func(t *testing.T, rules, names []byte) {
		doc := fuzzPolicies(rules)
		set, err := compileText(doc, "")
		if err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		in := dice{names}
		for range 8 {
			n := mustName(t, in.name())
			for _, listener := range []string{"", "p", "q"} {
				sel := set.Select(netip.MustParseAddr("192.0.2.1"), listener)
				some := false
				for _, port := range []uint16{22, 80, 443, 5432, 65533, 65534, 65535, AnyPort} {
					d := sel.Lookup(n, port)
					if err := disagreement(sel, n, port, d); err != nil {
						t.Errorf("%s:%d at %q: %v\n%s", n, port, listener, err, doc)
					}
					if port == AnyPort && listener != "q" && d.Verdict.Admits() != some { // p and q may admit on two ports
						t.Errorf("%s: %s on any port, but admitted on some: %t\n%s", n, outcome(d), some, doc)
					}
					some = some || d.Verdict.Admits()
				}
			}
		}
	})
}

// dice makes choices of bytes; where there are none left, the first.
type dice struct{ b []byte }

func (d *dice) pick(from ...string) string {
	if len(d.b) == 0 {
		return from[0]
	}
	i := int(d.b[0]) % len(from)
	d.b = d.b[1:]
	return from[i]
}

func (d *dice) name() string {
	if d.pick("", "", "", "metadata") != "" {
		return d.pick("metadata", "", "x.", "x.y.") + d.pick("metadata.google.internal", "metadata.azure.com", "google.internal", "internal", "azure.com")
	}
	name := d.pick("a", "b", "a-label-too-long-for-a-node", "com", "local")
	for len(name) < 200 && d.pick("", "", "more") != "" {
		name = d.pick("a", "b", "c", "a-label-too-long-for-a-node", "another-label-as-long-as-it") + "." + name
	}
	return name
}

// fuzzPolicies returns a document with the policies p, which is the default, and q.
func fuzzPolicies(b []byte) string {
	in := &dice{b}
	body := func(most int) string {
		s := " mode " + in.pick("strict", "open", "learn") + "\n" + in.pick("", " ports 443\n", " ports 22 5432\n", " ports 65535\n")
		for i := 0; i < most && len(in.b) > 0; i++ {
			s += " " + in.pick("allow", "allow", "deny") + " " + in.pick("", ".", "*.") + in.name() +
				in.pick("", "", ":443", ":5432", ":80,443", ":*", ":65535", ":65535,65534,22") + "\n"
		}
		return s
	}
	q := body(3)
	return "policy q {\n client 10.0.0.0/8\n" + q + "}\npolicy p {\n" + body(12) + "}\n"
}
