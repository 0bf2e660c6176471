package policy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

// outcome is a decision in a word: "allow", the reason of a denial, "would_deny" and its reason; "+below"
// if names below are to be found.
func outcome(d Decision) string {
	s := d.Verdict.String()
	switch d.Verdict {
	case Deny:
		s = d.Reason.String()
	case WouldDeny:
		s += " " + d.Reason.String()
	}
	if d.Below {
		s += "+below"
	}
	return s
}

// verdict is outcome without Below.
func verdict(d Decision) string {
	d.Below = false
	return outcome(d)
}

// decide is Lookup, checked against Explain.
func decide(t testing.TB, sel Selection, n Name, port uint16) Decision {
	t.Helper()
	d := sel.Lookup(n, port)
	if err := disagreement(sel, n, port, d); err != nil {
		t.Errorf("%s:%d: %v", n, port, err)
	}
	return d
}

// disagreement returns in what d, which Lookup returned, is not what Explain says.
func disagreement(sel Selection, n Name, port uint16, d Decision) error {
	e := sel.Explain(n, port)
	if got, want := outcome(d), outcome(e.Decision); got != want {
		return fmt.Errorf("Lookup: %s by %q, Explain: %s by %q", got, d.Rule.Text(), want, e.Decision.Rule.Text())
	}
	if d.PortNamed != e.Decision.PortNamed || d.PortNamed && (d.Verdict != Allow || port == AnyPort) {
		return fmt.Errorf("Lookup: %s, port named %v, Explain: port named %v", outcome(d), d.PortNamed, e.Decision.PortNamed)
	}
	if d.Policy != e.Decision.Policy || d.Policy != sel.Policy() {
		return fmt.Errorf("Lookup: policy %q, Explain: policy %q", d.Policy, e.Decision.Policy)
	}
	for _, r := range []Rule{d.Rule, e.Decision.Rule} {
		if r.IsZero() != e.Decision.Rule.IsZero() {
			return fmt.Errorf("Lookup cites %q, Explain %q", d.Rule.Text(), e.Decision.Rule.Text())
		}
		if r.IsZero() {
			if d.Reason == ReasonDenied {
				return fmt.Errorf("denied, but by no rule")
			}
			continue
		}
		m, ok := cited(e, r)
		switch {
		case !ok:
			return fmt.Errorf("the rule %q is not among the matches", r.Text())
		case m.Deny != (d.Reason == ReasonDenied):
			return fmt.Errorf("the rule %q is of the wrong kind for %s", r.Text(), outcome(d))
		case port != AnyPort && m.OnPort != (d.Verdict == Allow || d.Reason == ReasonDenied):
			return fmt.Errorf("the rule %q is about another port", r.Text())
		case port != AnyPort && r.p.rules[r.n-1].size != e.Decision.Rule.p.rules[e.Decision.Rule.n-1].size:
			return fmt.Errorf("Lookup cites %q, Explain %q", d.Rule.Text(), e.Decision.Rule.Text())
		}
	}
	return nil
}

func cited(e Explanation, r Rule) (Match, bool) {
	for _, j := range e.Judges {
		for _, m := range j.Matches {
			if m.Rule == r {
				return m, true
			}
		}
	}
	return Match{}, false
}

// The table of rules, and what each mode makes of them. A question is "name:port", where * is AnyPort.
func TestLookup(t *testing.T) {
	type ask struct{ question, want, rule string }
	for _, tc := range []struct {
		name string
		body string
		asks []ask
	}{
		{"exact: that name only", "allow api.example.com", []ask{
			{"api.example.com:443", "allow", "policy:2"},
			{"a.api.example.com:443", "not_allowed", ""},
			{"example.com:443", "not_allowed+below", ""},
			{"xapi.example.com:443", "not_allowed", ""},
			{"api.example.com.org:443", "not_allowed", ""},
		}},
		{"suffix: the name and everything below it", "allow .example.com", []ask{
			{"example.com:443", "allow", "policy:2"},
			{"a.example.com:443", "allow", "policy:2"},
			{"a.b.c.d.e.f.g.h.i.j.k.example.com:443", "allow", "policy:2"},
			{"xexample.com:443", "not_allowed", ""},
			{"com:443", "not_allowed+below", ""},
			{"example.org:443", "not_allowed", ""},
		}},
		{"star: everything below, not the name", "allow *.example.com", []ask{
			{"example.com:443", "not_allowed+below", ""},
			{"a.example.com:443", "allow", "policy:2"},
			{"a.b.example.com:443", "allow", "policy:2"},
			{"xexample.com:443", "not_allowed", ""},
		}},

		{"allow without a port: the default ones", "allow example.com", []ask{
			{"example.com:443", "allow", "policy:2"},
			{"example.com:80", "allow", "policy:2"},
			{"example.com:*", "allow", "policy:2"},
			{"example.com:22", "port_not_allowed", "policy:2"},
			{"example.com:8443", "port_not_allowed", "policy:2"},
			{"example.com:65535", "port_not_allowed", "policy:2"},
		}},
		{"allow without a port: those of the policy", "allow example.com\nports 8443 22", []ask{
			{"example.com:8443", "allow", "policy:2"},
			{"example.com:22", "allow", "policy:2"},
			{"example.com:*", "allow", "policy:2"},
			{"example.com:443", "port_not_allowed", "policy:2"},
			{"example.com:80", "port_not_allowed", "policy:2"},
		}},
		{"allow with a port: that one, no other", "allow db.example.com:5432", []ask{
			{"db.example.com:5432", "allow", "policy:2"},
			{"db.example.com:443", "port_not_allowed", "policy:2"},
			{"db.example.com:*", "allow", "policy:2"},
			{"example.com:5432", "not_allowed+below", ""},
			{"x.example.com:5432", "not_allowed", ""},
		}},
		{"allow with ports", "allow .example.com:8443,443", []ask{
			{"a.example.com:8443", "allow", "policy:2"},
			{"a.example.com:443", "allow", "policy:2"},
			{"a.example.com:80", "port_not_allowed+below", "policy:2"},
		}},
		{"allow on any port", "allow example.com:*", []ask{
			{"example.com:1", "allow", "policy:2"},
			{"example.com:65535", "allow", "policy:2"},
			{"example.com:*", "allow", "policy:2"},
		}},
		{"ports of several rules add up", "allow .example.com\nallow a.example.com:22\nallow *.example.com:25", []ask{
			{"a.example.com:443", "allow", "policy:2"},
			{"a.example.com:22", "allow", "policy:3"},
			{"a.example.com:25", "allow", "policy:4"},
			{"example.com:25", "port_not_allowed+below", "policy:2"},
		}},
		{"the most specific rule is the one that decided", "allow .com\nallow .example.com\nallow a.example.com", []ask{
			{"a.example.com:443", "allow", "policy:4"},
			{"b.example.com:443", "allow", "policy:3"},
			{"c.com:443", "allow", "policy:2"},
		}},
		{"of rules alike the first", "allow example.com\nallow example.com\nallow example.com example.com", []ask{
			{"example.com:443", "allow", "policy:2"},
		}},

		{"deny beats allow", "allow .example.com\ndeny x.example.com", []ask{
			{"x.example.com:443", "denied+below", "policy:3"},
			{"x.example.com:22", "denied+below", "policy:3"},
			{"x.example.com:*", "denied+below", "policy:3"},
			{"a.x.example.com:443", "allow", "policy:2"},
		}},
		{"deny beats allow, whatever the order", "deny x.example.com\nallow .example.com", []ask{
			{"x.example.com:443", "denied+below", "policy:2"},
			{"a.x.example.com:443", "allow", "policy:3"},
		}},
		{"deny beats an allow that is more specific", "allow a.x.example.com\ndeny .x.example.com", []ask{
			{"a.x.example.com:443", "denied", "policy:3"},
			{"x.example.com:443", "denied", "policy:3"},
			{"example.com:443", "not_allowed+below", ""},
		}},
		{"deny of the same name", "allow example.com\ndeny example.com", []ask{
			{"example.com:443", "denied", "policy:3"},
			{"example.com:*", "denied", "policy:3"},
		}},
		{"deny without a port: every port", "allow example.com:*\ndeny example.com", []ask{
			{"example.com:443", "denied", "policy:3"},
			{"example.com:22", "denied", "policy:3"},
			{"example.com:*", "denied", "policy:3"},
		}},
		{"deny with a port: that one, no other", "allow .example.com\ndeny .example.com:80", []ask{
			{"example.com:80", "denied+below", "policy:3"},
			{"example.com:443", "allow", "policy:2"},
			{"example.com:22", "port_not_allowed+below", "policy:2"},
			{"a.example.com:*", "allow", "policy:2"},
		}},
		{"deny of every port that is allowed", "allow .example.com:22\ndeny .example.com:22", []ask{
			{"a.example.com:22", "denied+below", "policy:3"},
			{"a.example.com:*", "denied+below", "policy:3"},
			{"a.example.com:443", "port_not_allowed+below", "policy:2"},
		}},
		{"deny of some ports under any port", "allow example.com:*\ndeny example.com:65535,80,443", []ask{
			{"example.com:443", "denied", "policy:3"},
			{"example.com:65535", "denied", "policy:3"},
			{"example.com:22", "allow", "policy:2"},
			{"example.com:*", "allow", "policy:2"},
		}},
		{"deny on any port, written", "allow .example.com\ndeny .example.com:*", []ask{
			{"a.example.com:443", "denied", "policy:3"},
			{"a.example.com:*", "denied", "policy:3"},
			{"com:443", "not_allowed+below", ""},
		}},
		{"deny below, the name stays", "allow .example.com\ndeny *.example.com", []ask{
			{"example.com:443", "allow", "policy:2"},
			{"a.example.com:443", "denied", "policy:3"},
		}},
		{"deny of a port alone allows nothing", "deny example.com:22", []ask{
			{"example.com:22", "denied", "policy:2"},
			{"example.com:443", "not_allowed", ""},
			{"example.com:*", "denied", "policy:2"},
		}},

		{"strict without rules denies everything", "", []ask{
			{"example.com:443", "not_allowed", ""},
			{"com:443", "not_allowed", ""},
			{"example.com:*", "not_allowed", ""},
		}},
		{"strict, written", "mode strict", []ask{{"example.com:443", "not_allowed", ""}}},
		{"open", "mode open\ndeny .corp.example.com pastebin.example:443", []ask{
			{"example.com:443", "allow", ""},
			{"example.com:80", "allow", ""},
			{"example.com:*", "allow", ""},
			{"example.com:22", "port_not_allowed+below", ""},
			{"a.corp.example.com:443", "denied", "policy:3"},
			{"corp.example.com:*", "denied", "policy:3"},
			{"pastebin.example:443", "denied+below", "policy:3"},
			{"pastebin.example:80", "allow", ""},
			{"pastebin.example:*", "allow", ""},
		}},
		{"open on ports of its own", "mode open\nports 443 8443", []ask{
			{"example.com:8443", "allow", ""},
			{"example.com:80", "port_not_allowed+below", ""},
		}},
		{"open with an allow rule for one more port", "mode open\nallow db.example.com:5432", []ask{
			{"db.example.com:5432", "allow", "policy:3"},
			{"db.example.com:443", "allow", ""},
			{"db.example.com:22", "port_not_allowed+below", "policy:3"},
			{"example.com:5432", "port_not_allowed+below", ""},
		}},
		{"learn", "mode learn\nallow a.example.com\nallow db.example.com:5432\ndeny x.example.com", []ask{
			{"a.example.com:443", "allow", "policy:3"},
			{"b.example.com:443", "would_deny not_allowed", ""},
			{"b.example.com:*", "would_deny not_allowed", ""},
			{"db.example.com:443", "would_deny port_not_allowed", "policy:4"},
			{"db.example.com:5432", "allow", "policy:4"},
			{"db.example.com:*", "allow", "policy:4"},
			{"x.example.com:443", "denied+below", "policy:5"},
			{"b.example.com:22", "port_not_allowed+below", ""},
			{"a.example.com:22", "port_not_allowed+below", "policy:3"},
		}},
		{"learn tolerates what a deny of another port leaves", "mode learn\ndeny a.example.com:443", []ask{
			{"a.example.com:443", "denied+below", "policy:3"},
			{"a.example.com:80", "would_deny not_allowed", ""},
			{"a.example.com:*", "would_deny not_allowed", ""},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sel := policyOf(t, tc.body)
			for _, a := range tc.asks {
				n, port := question(t, a.question)
				d := decide(t, sel, n, port)
				if got := outcome(d); got != a.want || d.Rule.String() != a.rule {
					t.Errorf("%s: got %s by %q, want %s by %q", a.question, got, d.Rule, a.want, a.rule)
				}
			}
		})
	}
}

// PortNamed makes a tunnel opaque: it takes a rule that lists the very port, of each policy that judges.
func TestPortNamed(t *testing.T) {
	for _, tc := range []struct {
		name string
		body string
		yes  string
		no   string
	}{
		{"exact", "allow a.example.com:22,8443", "a.example.com:22 a.example.com:8443", "a.example.com:* a.example.com:443 b.example.com:22 example.com:22"},
		{"suffix", "allow .example.com:22", "example.com:22 a.b.example.com:22", "example.com:443 example.org:22"},
		{"star", "allow *.example.com:22", "a.example.com:22", "example.com:22"},
		{"any port", "allow a.example.com:*", "", "a.example.com:22 a.example.com:443 a.example.com:*"},
		{"ports of the policy", "ports 22\nallow a.example.com", "", "a.example.com:22 a.example.com:*"},
		{"both", "ports 22\nallow a.example.com:22", "a.example.com:22", ""},
		{"any port, and named by a wider rule", "allow .example.com:22\nallow a.example.com:*", "a.example.com:22 b.example.com:22", "a.example.com:23"},
		{"any port, and named by a narrower rule", "allow .example.com:*\nallow a.example.com:22", "a.example.com:22", "b.example.com:22 x.a.example.com:22"},
		{"two rules of a name", "allow a.example.com:*\nallow a.example.com:22", "a.example.com:22", "a.example.com:23 a.example.com:*"},
		{"denied", "allow a.example.com:22\ndeny a.example.com", "", "a.example.com:22"},
		{"denied on that port", "allow .example.com:22\ndeny a.example.com:22", "b.example.com:22", "a.example.com:22"},
		{"deny that names it", "allow .example.com:*\ndeny b.example.com:22", "", "a.example.com:22 b.example.com:22"},
		{"deny of another port", "allow .example.com:22\ndeny .example.com:443", "a.example.com:22", ""},
		{"open", "mode open\nports 22", "", "a.example.com:22"},
		{"open, named", "mode open\nports 22\nallow .example.com:22", "a.example.com:22", "a.example.org:22"},
		{"learn", "mode learn\nports 22 443", "", "a.example.com:22 a.example.com:443"},
		{"learn, named", "mode learn\nports 22\nallow a.example.com:22", "a.example.com:22", "b.example.com:22"},
		{"usual ports", "allow a.example.com:443,80", "a.example.com:443 a.example.com:80", "a.example.com:22"},
		{"metadata, by a wider rule", "allow .metadata.google.internal:80 .internal:80\nallow metadata.google.internal:*", "x.internal:80", "metadata.google.internal:80"},
		{"metadata, exactly", "allow metadata.google.internal:80", "metadata.google.internal:80", "metadata.google.internal:*"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sel := policyOf(t, tc.body)
			for want, questions := range map[bool]string{true: tc.yes, false: tc.no} {
				for _, q := range strings.Fields(questions) {
					n, port := question(t, q)
					if got := decide(t, sel, n, port).PortNamed; got != want {
						t.Errorf("%s: got %v, want %v", q, got, want)
					}
				}
			}
		})
	}
	t.Run("listener", func(t *testing.T) {
		set := setOf(t, `policy default {
			allow .example.com:22
		}
		policy named {
			client 10.0.0.1
			allow .example.com:22,23
		}
		policy any {
			client 10.0.0.2
			allow .example.com:*
		}
		policy learns {
			client 10.0.0.3
			mode   learn
			ports  22
		}
		policy denies {
			client 10.0.0.4
			allow .example.com:22
			deny  a.example.com
		}
		`)
		n := mustName(t, "a.example.com")
		for _, tc := range []struct {
			client, listener string
			want             bool
		}{
			{"192.0.2.1", "", true}, {"192.0.2.1", "default", true}, {"192.0.2.1", "named", true}, {"10.0.0.1", "default", true},
			{"192.0.2.1", "any", false}, {"10.0.0.2", "default", false}, {"10.0.0.2", "any", false}, {"10.0.0.2", "named", false},
			{"192.0.2.1", "learns", false}, {"10.0.0.3", "default", false}, {"192.0.2.1", "denies", false}, {"10.0.0.4", "default", false},
			{"192.0.2.1", "gone", false},
		} {
			sel := set.Select(netip.MustParseAddr(tc.client), tc.listener)
			if got := decide(t, sel, n, 22).PortNamed; got != tc.want {
				t.Errorf("client %s at %q: got %v, want %v", tc.client, tc.listener, got, tc.want)
			}
			if decide(t, sel, n, AnyPort).PortNamed {
				t.Errorf("client %s at %q: true on any port", tc.client, tc.listener)
			}
		}
	})
}

func question(t testing.TB, s string) (Name, uint16) {
	t.Helper()
	name, p, _ := strings.Cut(s, ":")
	if p == "*" {
		return mustName(t, name), AnyPort
	}
	port, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return mustName(t, name), uint16(port)
}

var specialNames = []string{
	"localhost", "intranet", "com", "a.localhost", "printer.local", "a.b.internal", "router.home.arpa",
	"1.0.0.127.in-addr.arpa", "8.b.d.0.1.0.0.2.ip6.arpa", "ipv4only.arpa", "resolver.arpa", "x.onion",
}

func TestSpecialUse(t *testing.T) {
	for _, s := range specialNames {
		t.Run(s, func(t *testing.T) {
			n := mustName(t, s)
			if !specialUse(n) {
				t.Error("specialUse() = false")
			}
			single := !strings.Contains(s, ".")
			for _, mode := range []string{"strict", "open", "learn"} {
				want := "not_allowed"
				if single && mode != "strict" {
					want += "+below"
				}
				if got := outcome(decide(t, policyOf(t, "mode "+mode), n, 443)); got != want {
					t.Errorf("%s: got %s, want %s", mode, got, want)
				}
				top := s[strings.LastIndex(s, ".")+1:]
				for _, rule := range []string{s, "." + s, "." + top} {
					if got := outcome(decide(t, policyOf(t, "mode "+mode+"\nallow "+rule), n, 443)); got != "allow" {
						t.Errorf("%s, allow %s: got %s", mode, rule, got)
					}
				}
				if got := outcome(decide(t, policyOf(t, "mode "+mode+"\nallow "+s+":22"), n, 443)); !strings.HasPrefix(got, "port_not_allowed") {
					t.Errorf("%s, allow %s:22: got %s", mode, s, got)
				}
			}
		})
	}
	for _, s := range []string{"example.com", "local.example", "internal.example.com", "xlocal.x", "arpa.example", "home.arpa.example"} {
		if specialUse(mustName(t, s)) {
			t.Errorf("specialUse(%q) = true", s)
		}
	}
}

// A metadata name is admitted by an exact rule, on the ports of that rule, and by nothing else.
func TestMetadataNames(t *testing.T) {
	wide := func(s string) string { // every rule that is not exact and covers s
		rules := "." + s
		for rest := s; ; {
			i := strings.IndexByte(rest, '.')
			if i < 0 {
				return rules
			}
			rest = rest[i+1:]
			rules += " ." + rest + " *." + rest + ":*"
		}
	}
	for _, s := range metadataNames {
		t.Run(s, func(t *testing.T) {
			n := mustName(t, s)
			for _, mode := range []string{"strict", "open", "learn"} {
				for _, tc := range []struct{ body, q, want string }{
					{"", ":443", "not_allowed"},
					{"", ":*", "not_allowed"},
					{"allow " + wide(s), ":443", "not_allowed"},
					{"allow " + wide(s), ":80", "not_allowed"},
					{"allow " + wide(s), ":*", "not_allowed"},
					{"allow " + s, ":443", "allow"},
					{"allow " + s, ":80", "allow"},
					{"allow " + s, ":*", "allow"},
					{"allow " + s, ":22", "port_not_allowed"},
					{"allow " + s + ":8080 " + wide(s), ":8080", "allow"},
					{"allow " + s + ":8080 " + wide(s), ":443", "port_not_allowed"},
					{"allow " + s + ":8080 " + wide(s), ":*", "allow"},
					{"allow " + wide(s) + " " + s + ":8080", ":80", "port_not_allowed"},
					{"allow " + s + "\ndeny ." + s, ":443", "denied"},
					{"allow " + s + "\ndeny ." + s[strings.LastIndex(s, ".")+1:], ":443", "denied"},
				} {
					_, port := question(t, "x"+tc.q)
					if got := verdict(decide(t, policyOf(t, "mode "+mode+"\n"+tc.body), n, port)); got != tc.want {
						t.Errorf("mode %s, %q, %s: got %s, want %s", mode, tc.body, tc.q, got, tc.want)
					}
				}
			}
			// What is below a metadata name is a name like others.
			if got := outcome(decide(t, policyOf(t, "allow "+wide(s)), mustName(t, "x."+s), 443)); got != "allow" {
				t.Errorf("x.%s: got %s, want allow", s, got)
			}
		})
	}
}

// Below is what keeps DNS from an NXDOMAIN that would deny names which are admitted (RFC 8020).
func TestBelow(t *testing.T) {
	for _, tc := range []struct {
		name string
		body string
		yes  string
		no   string
	}{
		{"ancestors of an exact rule", "allow a.b.example.com", "b.example.com example.com com", "a.b.example.org x.b.example.com org x.a.b.example.com"},
		{"ancestors of a suffix rule", "allow .b.example.com", "example.com com", "x.example.com"},
		{"the name of a star rule", "allow *.b.example.com", "b.example.com example.com com", "c.example.com"},
		{"ancestors of a rule with a port", "allow a.example.com:5432", "example.com com", "b.example.com"},
		{"exact deny under a suffix allow", "allow .example.com\ndeny b.example.com", "b.example.com com", ""},
		{"suffix deny under a suffix allow", "allow .example.com\ndeny .b.example.com", "com", "b.example.com a.b.example.com"},
		{"star deny under a suffix allow", "allow .example.com\ndeny *.b.example.com b.example.com", "com", "b.example.com a.b.example.com"},
		{"suffix deny above an allow", "allow a.example.com\ndeny .com", "", "a.example.com example.com com"},
		{"suffix deny of some ports", "allow .example.com\ndeny .b.example.com:80,443", "b.example.com a.b.example.com com", ""},
		{"exact deny of an ancestor", "allow a.example.com\ndeny example.com com", "example.com com", ""},
		{"exact deny with nothing below", "allow a.example.com\ndeny a.example.com", "example.com", "a.example.com x.a.example.com"},
		{"deny rules alone", "deny a.example.com", "", "example.com com a.example.com"},
		{"strict", "", "", "com example.com local"},
		{"open: single labels", "mode open", "com example localhost metadata", "a.localhost x.home.arpa"},
		{"learn: single labels", "mode learn", "com example localhost metadata", "a.localhost x.home.arpa"},
		{"open: exact deny", "mode open\ndeny example.com com", "example.com com", ""},
		{"open: suffix deny", "mode open\ndeny .example.com .org", "com", "example.com a.example.com org a.org"},
		{"open: on another port", "mode open\nports 8443", "example.com", ""},
		{"open: special-use with a rule below", "mode open\nallow a.b.internal", "b.internal internal", "c.internal a.c.internal"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sel := policyOf(t, tc.body)
			check := func(names string, want bool) {
				for s := range strings.FieldsSeq(names) {
					for _, port := range []uint16{AnyPort, 443} {
						d := decide(t, sel, mustName(t, s), port)
						if d.Verdict == Allow && port == AnyPort {
							continue // open on another port
						}
						if d.Verdict != Deny || d.Below != want {
							t.Errorf("%s:%d: got %s, want it denied and Below %t", s, port, outcome(d), want)
						}
					}
				}
			}
			check(tc.yes, true)
			check(tc.no, false)
		})
	}
}

func TestLookupNoName(t *testing.T) {
	sel := policyOf(t, "mode open")
	want := Decision{Reason: ReasonBadName, Policy: "p"}
	if got := sel.Lookup(Name{}, 443); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := sel.Explain(Name{}, 443).Decision; got != want {
		t.Errorf("Explain: got %+v, want %+v", got, want)
	}
}

// Labels of every length, so that both ways of storing one are taken.
func TestLabelLengths(t *testing.T) {
	var body strings.Builder
	label := func(c string, n int) string { return strings.Repeat(c, n) + "z" }
	for n := range 63 {
		fmt.Fprintf(&body, "allow %s.%s.example\n", label("a", n), label("b", 62-n))
	}
	sel := policyOf(t, body.String())
	for n := range 63 {
		for m := range 63 {
			want := "not_allowed"
			if m == 62-n {
				want = "allow"
			}
			name := label("a", n) + "." + label("b", m) + ".example"
			if got := outcome(decide(t, sel, mustName(t, name), 443)); got != want {
				t.Errorf("%s: got %s, want %s", name, got, want)
			}
		}
	}
}

// A table that grew many times finds what it found before.
func TestTableGrows(t *testing.T) {
	tb := newTable(0)
	const n = 5000
	name := func(i int) string {
		return fmt.Sprintf("%d.%s%d.example", i, strings.Repeat("long-label-", i%4), i/7)
	}
	for i := range n {
		tb.insert(name(i), 0).exact = ref(i + 1)
	}
	if used := int(tb.nodes); used > len(tb.slots)*3/4 {
		t.Errorf("%d of %d slots in use", used, len(tb.slots))
	}
	for i := range n {
		if got := tb.insert(name(i), 0).exact; got != ref(i+1) {
			t.Fatalf("%s: got %d, want %d", name(i), got, i+1)
		}
	}
}

func TestLookupAllocs(t *testing.T) {
	for name, body := range map[string]string{
		"plain":  "allow .example.com b.example.net\ndeny x.example.com",
		"grants": "allow .example.com .com:22 b.example.com:8443 b.example.com:* example.net:25\ndeny x.example.com:443 .example.net:25",
		"open":   "mode open\ndeny x.example.com",
		"learn":  "mode learn\nallow .example.com:22",
	} {
		set := setOf(t, "policy p {\nclient 192.0.2.0/24\n"+body+"\n}\npolicy q {\n"+body+"\n}\n")
		a := netip.MustParseAddr("192.0.2.1")
		for _, s := range []string{"a.b.c.d.e.f.g.h.example.com", "x.example.com", "b.example.com", "example.net", "example.org", "com"} {
			n := mustName(t, s)
			for _, port := range []uint16{AnyPort, 443, 25} {
				for _, listener := range []string{"", "q"} {
					got := testing.AllocsPerRun(100, func() {
						set.Select(a, listener).Lookup(n, port)
						set.Select(a, listener).Lifts(a)
					})
					if got != 0 {
						t.Errorf("%s: %s:%d: %v allocations, want 0", name, n, port, got)
					}
				}
			}
		}
	}
}
