package policy

import (
	"strings"
	"testing"
)

// ruleText returns the canonical text of a rule as parsed.
func ruleText(spec ruleSpec) string {
	p := &Policy{portSets: [][]uint16{nil, spec.ports}, names: spec.name.s}
	r := rule{size: uint8(len(p.names)), scope: spec.scope}
	if spec.ports != nil {
		r.ports = 1
	}
	return strings.TrimPrefix(string(p.appendRule(nil, &r)), "allow ")
}

func TestParseRule(t *testing.T) {
	l63 := strings.Repeat("a", 63)
	n253 := l63 + "." + l63 + "." + l63 + "." + l63[:61]
	for _, tc := range []struct{ name, in, want string }{
		{"exact", "api.example.com", "api.example.com"},
		{"suffix", ".example.com", ".example.com"},
		{"below", "*.example.com", "*.example.com"},
		{"port", "db.example.com:5432", "db.example.com:5432"},
		{"ports", "example.com:8443,443", "example.com:443,8443"},
		{"port twice", "example.com:443,80,443", "example.com:80,443"},
		{"any port", ".example.com:*", ".example.com:*"},
		{"lowest port", "example.com:1", "example.com:1"},
		{"highest port", "*.example.com:65535", "*.example.com:65535"},
		{"single label", "intranet", "intranet"},
		{"top level", ".com", ".com"},
		{"longest", n253, n253},
		{"longest with a dot", "." + n253 + ".", "." + n253},
		{"digits first", "7.example", "7.example"},
		{"hyphens in the third and fourth place", "r3---sn.example", "r3---sn.example"},
		{"U-label", ".bücher.example:443", ".xn--bcher-kva.example:443"},
		{"U-labels, several", "*.例え.テスト", "*.xn--r8jz45g.xn--zckzah"},
		{"U-label and upper case", "API.BÜCHER.Example", "api.xn--bcher-kva.example"},
		{"U-label and underscore", "_x.bücher.example", "_x.xn--bcher-kva.example"},
		{"U-label and trailing dot", "bücher.example.", "xn--bcher-kva.example"},
		{"sharp s is no ss", "straße.example", "xn--strae-oqa.example"},
		{"final sigma", "βόλος.example", "xn--nxasmm1c.example"},
		{"A-label", "XN--BCHER-KVA.example", "xn--bcher-kva.example"},
		{"right to left", "אב.example", "xn--4dbc.example"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec, err := parseRule(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if got := ruleText(spec); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestParseRuleErrors(t *testing.T) {
	const (
		chars   = `, only letters, digits, '-', '_' and '.' are accepted`
		noPart  = ` has characters that are no part of a host name (RFC 5892), write the A-label form (xn--...)`
		noRule  = ` is no rule, write a host name without user or path, ` + ruleForm
		noNeg   = ` is no rule, to refuse a name write a deny line`
		every   = " would be every name, write `mode open` in the policy instead"
		address = ` is an address, only host names are accepted`
		ports   = `, accepted are 1 to 65535`
	)
	l64 := strings.Repeat("a", 64)
	for _, tc := range []struct{ name, in, want string }{
		{"empty", "", "rule is empty, " + ruleForm},
		{"port alone", ":443", `rule ":443": name is empty`},
		{"star", "*", `"*"` + every},
		{"star with a port", "*:443", `"*:443"` + every},
		{"star dot", "*.", `"*."` + every},
		{"dot", ".", `"."` + every},
		{"dot with a port", ".:*", `".:*"` + every},
		{"star in a label", "a*.example.com", `rule "a*.example.com": name "a*.example.com" has the character "*"` + chars},
		{"star inside", "a.*.example.com", `rule "a.*.example.com": name "a.*.example.com" has the character "*"` + chars},
		{"regular expression", "^.*$", `rule "^.*$": name "^.*$" has the character "^"` + chars},
		{"URL with a port", "https://example.com:8443/x", `"https://example.com:8443/x" is a URL, write the host name alone: "example.com:8443"`},
		{"path", "example.com/x", `"example.com/x"` + noRule},
		{"prefix", "192.0.2.0/24", `"192.0.2.0/24"` + noRule},
		{"user", "user@example.com", `"user@example.com"` + noRule},
		{"option", "-example.com", `"-example.com"` + noNeg},
		{"IPv4", "192.0.2.1", `rule "192.0.2.1": name "192.0.2.1"` + address},
		{"IPv4 with a port", "192.0.2.1:443", `rule "192.0.2.1:443": name "192.0.2.1"` + address},
		{"IPv4 as a suffix", ".0.2.1", `rule ".0.2.1": name "0.2.1"` + address},
		{"hexadecimal", "*.0x7f", `rule "*.0x7f": name "0x7f"` + address},
		{"IPv6", "2001:db8::1", `"2001:db8::1"` + address},
		{"IPv6 any", "::", `"::"` + address},
		{"no port", "example.com:", `rule "example.com:": port ""` + ports},
		{"port 0", "example.com:0", `rule "example.com:0": port "0"` + ports},
		{"port 65536", "example.com:65536", `rule "example.com:65536": port "65536"` + ports},
		{"port with a sign", "example.com:+443", `rule "example.com:+443": port "+443"` + ports},
		{"port with a zero", "example.com:0443", `rule "example.com:0443": port "0443"` + ports},
		{"port with an underscore", "example.com:4_43", `rule "example.com:4_43": port "4_43"` + ports},
		{"port by name", "example.com:https", `rule "example.com:https": port "https"` + ports},
		{"port range", "example.com:1-1024", `rule "example.com:1-1024": port "1-1024"` + ports},
		{"port in other digits", "example.com:４４３", `rule "example.com:４４３": port "４４３"` + ports},
		{"comma behind", "example.com:443,", `rule "example.com:443,": port ""` + ports},
		{"comma before", "example.com:,443", `rule "example.com:,443": port ""` + ports},
		{"star among ports", "example.com:443,*", `rule "example.com:443,*": port "*"` + ports},
		{"hyphen first", "a.-b.example", `rule "a.-b.example": label "-b" begins or ends with '-'`},
		{"hyphen last", ".b-.example", `rule ".b-.example": label "b-" begins or ends with '-'`},
		{"label of 64", l64 + ".example", `rule "` + l64 + `.example": name "` + l64 + `.example" has a label of 64 octets, at most 63 are accepted`},
		{"A-label that is no Punycode", "xn--ü.example", `rule "xn--ü.example": name "xn--ü.example"` + noPart},
		{"A-label of ASCII alone", "xn--example-.com", `rule "xn--example-.com": label "xn--example-" begins or ends with '-'`},
		{"A-label that decodes to no U-label", "xn--a.example", `rule "xn--a.example": label "xn--a" is no valid A-label (RFC 5890)`},
		{"A-label of a capital", "xn--bcher-goa.example", `rule "xn--bcher-goa.example": label "xn--bcher-goa" is no valid A-label (RFC 5890)`},
		{"Kelvin sign", "\u212aernel.org", "rule \"\u212aernel.org\": name \"\u212aernel.org\"" + noPart},
		{"capital I with a dot", "\u0130nfo.example", "rule \"\u0130nfo.example\": name \"\u0130nfo.example\"" + noPart},
		{"long s", "\u017fite.example", "rule \"\u017fite.example\": name \"\u017fite.example\"" + noPart},
		{"not UTF-8", "b\xfccher.example", `rule "b\xfccher.example": name "b\xfccher.example"` + noPart},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec, err := parseRule(tc.in)
			if err == nil {
				t.Fatalf("accepted as %q", ruleText(spec))
			}
			if err.Error() != tc.want {
				t.Errorf("got  %s\nwant %s", err, tc.want)
			}
		})
	}
}

func TestRuleMatches(t *testing.T) {
	for _, tc := range []struct {
		rule string
		yes  string
		no   string
	}{
		{"example.com", "example.com", "a.example.com com example.org xexample.com example.com.org"},
		{".example.com", "example.com a.example.com a.b.example.com", "com xexample.com x-example.com a.example.org example.com.org"},
		{"*.example.com", "a.example.com a.b.example.com", "example.com com xexample.com a.xexample.com"},
		{".com", "com example.com a.example.com", "xcom a.xcom com.example"},
	} {
		spec, err := parseRule(tc.rule)
		if err != nil {
			t.Fatal(err)
		}
		for s := range strings.FieldsSeq(tc.yes) {
			if !spec.matches(mustName(t, s)) {
				t.Errorf("%s does not match %s", tc.rule, s)
			}
		}
		for s := range strings.FieldsSeq(tc.no) {
			if spec.matches(mustName(t, s)) {
				t.Errorf("%s matches %s", tc.rule, s)
			}
		}
	}
}

// The rows of the hostile cases that are about one entry.
func TestRuleInAFile(t *testing.T) {
	l63 := strings.Repeat("a", 63)
	for _, tc := range []struct {
		id     string
		good   []string // pairs: as written, as in force
		bad    []string
		saying string // in the error for each bad one
	}{
		{id: "policyfile-009", bad: []string{"https://example.com/", "http://example.com/path"}, saying: `write the host name alone: "example.com"`},
		{id: "policyfile-010", good: []string{"example.com:443", "example.com:443", "example.com:8443", "example.com:8443"}},
		{id: "policyfile-010", bad: []string{"[::1]:443"}, saying: "is an address"},
		{id: "policyfile-012", good: []string{
			"bücher.example", "xn--bcher-kva.example",
			"xn--bcher-kva.example", "xn--bcher-kva.example",
			"BÜCHER.example", "xn--bcher-kva.example"}},
		{id: "policyfile-013", bad: []string{"ⓔⓧⓐⓜⓟⓛⓔ.com", "example.com．evil.test"}, saying: "no part of a host name"},
		{id: "policyfile-013", bad: []string{"exa\u00admple.com"}, saying: "invisible character U+00AD"},
		{id: "policyfile-015", bad: []string{"xn--", "xn--.example"}, saying: "begins or ends with '-'"},
		{id: "policyfile-019", bad: []string{"*"}, saying: "write `mode open`"},
		{id: "policyfile-021", bad: []string{"*..example.com", "..example.com"}, saying: "empty label"},
		{id: "policyfile-021", bad: []string{".*.example.com"}, saying: `the character "*"`},
		{id: "policyfile-022", good: []string{"example.com.", "example.com", ".github.com.", ".github.com"}},
		{id: "policyfile-022", bad: []string{"example.com.."}, saying: "empty label"},
		{id: "policyfile-023", good: []string{".GitHub.COM", ".github.com"}},
		{id: "policyfile-024", good: []string{
			"_acme.example.com", "_acme.example.com", "my_host.example.com", "my_host.example.com"}},
		{id: "policyfile-025", bad: []string{l63 + "a.example.com"}, saying: "label of 64 octets"},
		{id: "policyfile-025", bad: []string{strings.Repeat("a.", 126) + "aa", strings.Repeat("a", 1<<20), strings.Repeat("ü", 1<<19)}, saying: "octets, at most 253"},
		{id: "policyfile-032", bad: []string{"!evil.github.com", "-evil.github.com"}, saying: "write a deny line"},
		{id: "policyfile-033", bad: []string{"@include", "${HOST}", "{$HOST}", "{%HOST%}", "%HOST%", "$HOST", "{env.HOST}"}, saying: "accepted"},
	} {
		t.Run(tc.id, func(t *testing.T) {
			t.Setenv("HOST", "evil.test")
			for i := 0; i < len(tc.good); i += 2 {
				in, want := tc.good[i], tc.good[i+1]
				set, err := compileText("policy p {\n allow_list list\n}\n", in+"\n")
				if err != nil {
					t.Fatal(err)
				}
				if got := texts(set); got != "allow "+want {
					t.Errorf("%q: got %s, want allow %s", in, got, want)
				}
			}
			for _, in := range tc.bad {
				set, err := compileText("policy p {\n allow_list list\n}\n", "ok.example\n\n"+in+"\n")
				if err == nil {
					t.Errorf("%.100q: accepted as %s", in, texts(set))
					continue
				}
				if got := err.Error(); !strings.HasPrefix(got, "list:3: ") || !strings.Contains(got, tc.saying) || len(got) > 500 {
					t.Errorf("%.100q: got %.600s, want list:3: ... %s", in, got, tc.saying)
				}
			}
		})
	}
}
