package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// explained puts an explanation on one line for each policy that judged.
func explained(e Explanation) []string {
	var lines []string
	for _, j := range e.Judges {
		s := fmt.Sprintf("%s (%s): %s", j.Policy, j.Mode, verdict(j.Decision))
		for _, m := range j.Matches {
			s += fmt.Sprintf("; %s at %s", m.Rule.Text(), m.Rule)
			if !m.OnPort {
				s += ", other port"
			}
			if m.Deny != strings.HasPrefix(m.Rule.Text(), "deny ") {
				s += ", wrong kind"
			}
		}
		lines = append(lines, s)
	}
	return lines
}

func TestExplain(t *testing.T) {
	set := setOf(t, `policy a {
		client 10.0.0.0/8
		allow .example.com x.example.com:8443,22
		deny  *.example.com:22 y.example.com
		allow .internal metadata.goog
	}
	policy b {
		client 192.0.2.0/24
		mode   learn
		allow  x.example.com:*
	}
	`)
	for _, tc := range []struct {
		client   string
		listener string
		question string
		want     string
		judges   []string
		hint     string
	}{
		{"10.0.0.1", "", "x.example.com:443", "allow", []string{
			"a (strict): allow; allow .example.com at policy:3; allow x.example.com:22,8443 at policy:3, other port; deny *.example.com:22 at policy:4, other port"}, ""},
		{"10.0.0.1", "", "x.example.com:22", "denied", []string{
			"a (strict): denied; allow .example.com at policy:3, other port; allow x.example.com:22,8443 at policy:3; deny *.example.com:22 at policy:4"},
			`narrow or remove "deny *.example.com:22" at policy:4`},
		{"10.0.0.1", "", "x.example.com:*", "allow", []string{
			"a (strict): allow; allow .example.com at policy:3; allow x.example.com:22,8443 at policy:3; deny *.example.com:22 at policy:4, other port"}, ""},
		{"10.0.0.1", "", "y.example.com:443", "denied", []string{
			"a (strict): denied; allow .example.com at policy:3; deny *.example.com:22 at policy:4, other port; deny y.example.com at policy:4"},
			`narrow or remove "deny y.example.com" at policy:4`},
		{"10.0.0.1", "", "example.com:25", "port_not_allowed", []string{
			"a (strict): port_not_allowed; allow .example.com at policy:3, other port"}, "allow example.com:25"},
		{"10.0.0.1", "", "example.org:443", "not_allowed", []string{"a (strict): not_allowed"}, "allow example.org"},
		{"10.0.0.1", "", "example.org:*", "not_allowed", []string{"a (strict): not_allowed"}, "allow example.org"},
		{"10.0.0.1", "", "example.org:8443", "not_allowed", []string{"a (strict): not_allowed"}, "allow example.org:8443"},
		{"10.0.0.1", "", "metadata.google.internal:80", "not_allowed", []string{"a (strict): not_allowed"}, "allow metadata.google.internal"},
		{"10.0.0.1", "", "metadata.goog:80", "allow", []string{"a (strict): allow; allow metadata.goog at policy:5"}, ""},
		{"192.0.2.1", "", "example.org:443", "would_deny not_allowed", []string{"b (learn): would_deny not_allowed"}, "allow example.org"},
		{"10.0.0.1", "b", "x.example.com:22", "denied", []string{
			"a (strict): denied; allow .example.com at policy:3, other port; allow x.example.com:22,8443 at policy:3; deny *.example.com:22 at policy:4",
			"b (learn): allow; allow x.example.com:* at policy:10"},
			`narrow or remove "deny *.example.com:22" at policy:4`},
		{"192.0.2.1", "a", "example.org:443", "not_allowed", []string{"b (learn): would_deny not_allowed", "a (strict): not_allowed"}, "allow example.org"},
		{"10.0.0.1", "a", "example.org:443", "not_allowed", []string{"a (strict): not_allowed"}, "allow example.org"},
		{"198.51.100.1", "", "example.org:443", "no_policy", nil, ""},
		{"10.0.0.1", "gone", "example.com:443", "no_policy", nil, ""},
	} {
		t.Run(tc.client+" "+tc.listener+" "+tc.question, func(t *testing.T) {
			sel := set.Select(netip.MustParseAddr(tc.client), tc.listener)
			n, port := question(t, tc.question)
			decide(t, sel, n, port)
			e := sel.Explain(n, port)
			if e.Name != n || e.Port != port {
				t.Errorf("explains %s:%d", e.Name, e.Port)
			}
			if got := verdict(e.Decision); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if got := explained(e); !slices.Equal(got, tc.judges) {
				t.Errorf("got  %q\nwant %q", got, tc.judges)
			}
			if e.Hint != tc.hint {
				t.Errorf("Hint = %q, want %q", e.Hint, tc.hint)
			}
		})
	}
}

// Whoever does as the hint says gets there: at the second attempt where the policy has ports of its own.
func TestHintLeadsToAllow(t *testing.T) {
	for _, body := range []string{"", "ports 8443", "mode open", "mode learn", "allow .example.com:22", "mode learn\nallow .metadata.goog"} {
		for _, q := range []string{"a.example.com:443", "a.example.com:*", "a.example.com:5432", "metadata.goog:80", "a.internal:8080", "intranet:443"} {
			t.Run(body+" "+q, func(t *testing.T) {
				n, port := question(t, q)
				with := body
				for range 2 {
					e := policyOf(t, with).Explain(n, port)
					if e.Hint == "" {
						break
					}
					with += "\n" + e.Hint
				}
				if got := outcome(decide(t, policyOf(t, with), n, port)); got != "allow" {
					t.Errorf("got %s with %q", got, with)
				}
			})
		}
	}
}

func TestRuleString(t *testing.T) {
	if s, text := (Rule{}).String(), (Rule{}).Text(); s != "" || text != "" {
		t.Errorf("no rule: %q, %q", s, text)
	}
	set := setOf(t, "policy p {\n\n allow .Example.com.:8443,443\n deny bücher.example:*\n}\n")
	for i, want := range []string{"policy:3 allow .example.com:443,8443", "policy:4 deny xn--bcher-kva.example:*"} {
		r := set.policies[0].ruleAt(uint32(i))
		if got := r.String() + " " + r.Text(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestReasonString(t *testing.T) {
	want := strings.Fields(`not_tls hello_timeout hello_too_large hello_malformed no_name bad_name no_policy not_allowed denied
		port_not_allowed bad_request name_mismatch private_address no_address resolver_error dial_error limit auth_required
		plaintext_refused upstream_no_tls not_brokered`)
	var got []string
	for r := range reasons {
		got = append(got, r.String())
	}
	if got[0] != "" || !slices.Equal(got[1:], want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if s := Reason(255).String(); s != "unknown" {
		t.Errorf("Reason(255) = %q", s)
	}
}

func TestVerdict(t *testing.T) {
	var zero Verdict
	if zero.Admits() || zero.String() != "deny" {
		t.Error("the zero verdict does not deny")
	}
	for v, want := range map[Verdict]string{Deny: "deny", Allow: "allow", WouldDeny: "would_deny", 255: "deny"} {
		if v.String() != want || v.Admits() != (want != "deny") {
			t.Errorf("Verdict(%d): %q, admits %t", v, v, v.Admits())
		}
	}
}
