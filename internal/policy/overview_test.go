package policy

import (
	"fmt"
	"testing"
)

func TestOverview(t *testing.T) {
	set := setOf(t, `policy a {
		client 10.0.0.0/8 fd00::/8
		mode   learn
		ports  8443 443
		allow  x.example y.example
		deny   z.example
	}
	policy b {
		preset npm
	}
	`)
	const want = "[{a learn [443 8443] [10.0.0.0/8 fd00::/8] 3} {b strict [80 443] [] 1}]"
	if got := fmt.Sprint(set.Overview()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	set.Overview()[0].Ports[0] = 1
	if got := fmt.Sprint(set.Overview()); got != want {
		t.Errorf("after a change of what was returned: %s", got)
	}
}

func TestSelectDefault(t *testing.T) {
	set := setOf(t, "policy a {\n client 0.0.0.0/0 ::/0\n}\npolicy b {\n allow x.example\n}\n")
	n := mustName(t, "x.example")
	for _, tc := range []struct{ listener, policy, want string }{
		{"", "b", "allow"},
		{"b", "b", "allow"},
		{"a", "b", "not_allowed"},
		{"gone", "b", "no_policy"},
	} {
		sel := set.SelectDefault(tc.listener)
		if got := verdict(sel.Lookup(n, 443)); got != tc.want || sel.Policy() != tc.policy {
			t.Errorf("listener %q: got %s of %s, want %s of %s", tc.listener, got, sel.Policy(), tc.want, tc.policy)
		}
	}
	none := setOf(t, "policy a {\n client 10.0.0.0/8\n}\n").SelectDefault("")
	if got := verdict(none.Lookup(n, 443)); got != "no_policy" || none.Policy() != "" {
		t.Errorf("without a default: got %s of %q", got, none.Policy())
	}
}

func TestExistence(t *testing.T) {
	const doc = "allow x.example.com db.example.com:5432 *.below.example.com\ndeny no.below.example.com .none.example.com"
	for _, tc := range []struct {
		body, name string
		want       Existence
	}{
		{doc, "x.example.com", Present},
		{doc, "db.example.com", Present}, // on whatever port
		{doc, "example.com", Empty},
		{doc, "com", Empty},
		{doc, "below.example.com", Empty},
		{doc, "no.below.example.com", Empty},
		{doc, "none.example.com", Absent},
		{doc, "y.example.com", Absent},
		{doc, "org", Absent},
		{"mode open", "y.example.com", Present},
		{"mode learn", "y.example.com", Present},
		{"mode open", "com", Empty},
		{"mode open", "x.internal", Absent},
	} {
		if got := policyOf(t, tc.body).Lookup(mustName(t, tc.name), AnyPort).Existence(); got != tc.want {
			t.Errorf("%s with %q: got %d, want %d", tc.name, tc.body, got, tc.want)
		}
	}
	if got := (Decision{}).Existence(); got != Absent {
		t.Errorf("the zero decision: got %d", got)
	}
}

func TestCheckRule(t *testing.T) {
	for _, tc := range []struct {
		rule     string
		warnings int
		err      bool
	}{
		{"example.com:443", 0, false},
		{"*.example.com", 0, false},
		{"*.co.uk", 1, false},
		{"-x.example.com", 0, true},
		{"xn--a.example.com", 0, true},
		{"", 0, true},
	} {
		warnings, err := CheckRule(tc.rule)
		if len(warnings) != tc.warnings || (err != nil) != tc.err {
			t.Errorf("%q: got %q, %v", tc.rule, warnings, err)
		}
	}
}
