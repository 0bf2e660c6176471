package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestRuleWarnings(t *testing.T) {
	const (
		single   = " is a single label, no public name"
		register = "anybody can register names below the public suffix "
		tld      = " is allowed, anybody can register one"
		doh      = " is a DNS-over-HTTPS resolver: with it the sandbox can look up any name and tunnel through DNS"
		dohs     = " are DNS-over-HTTPS resolvers: with them the sandbox can look up any name and tunnel through DNS"
	)
	for _, tc := range []struct {
		rule string
		want []string
	}{
		{"example.com", nil},
		{".example.com", nil},
		{"*.example.co.uk:8443", nil},
		{".corp.internal", nil},
		{"co.uk", nil}, // that name only
		{"github.io", nil},
		{"amazonaws.com", nil},
		{"intranet", []string{`"intranet"` + single}},
		{".com", []string{`every name below the top-level domain "com"` + tld, `"dns.google.com" and 15 more` + dohs}},
		{"*.museum", []string{`every name below the top-level domain "museum"` + tld}},
		{".internal", []string{`every name below "internal" is allowed, which is no public top-level domain`}},
		{".co.uk", []string{register + `"co.uk"`}},
		{"*.co.uk:443", []string{register + `"co.uk"`}},
		{".s3.amazonaws.com", []string{register + `"s3.amazonaws.com"`}},
		{".azure.com", []string{`customers of "azure.com" choose names below it, anybody can be one`}},
		{"dns.google", []string{`"dns.google"` + doh}},
		{"*.quad9.net", []string{`"dns.quad9.net" and 3 more` + dohs}},
		{".dns.nextdns.io", []string{`"dns.nextdns.io"` + doh}},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			spec, err := parseRule(tc.rule)
			if err != nil {
				t.Fatal(err)
			}
			if got := ruleWarnings(spec); !slices.Equal(got, tc.want) {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestWarningsInAFile(t *testing.T) {
	for _, tc := range []struct {
		id   string
		list string
		want []string // how the warning for each line goes on behind file:line
	}{
		{"policyfile-016", "localhost\ncom\nintranet\n.com\n", []string{
			`"localhost" is a single label, no public name`,
			`"com" is a single label, no public name`,
			`"intranet" is a single label, no public name`,
			`every name below the top-level domain "com" is allowed, anybody can register one`,
			`"dns.google.com" and 15 more are DNS-over-HTTPS resolvers: with them the sandbox can look up any name and tunnel through DNS`}},
		{"policyfile-017", ".co.uk\n.github.io\n.amazonaws.com\n.workers.dev\n", []string{
			`anybody can register names below the public suffix "co.uk"`,
			`anybody can register names below the public suffix "github.io"`,
			`customers of "amazonaws.com" choose names below it, anybody can be one`,
			`anybody can register names below the public suffix "workers.dev"`}},
	} {
		t.Run(tc.id, func(t *testing.T) {
			set, err := compileText("policy p {\n allow_list list\n}\n", tc.list)
			if err != nil {
				t.Fatal(err)
			}
			for i, w := range tc.want {
				tc.want[i] = fmt.Sprintf("list:%d: %s", min(i+1, strings.Count(tc.list, "\n")), w)
			}
			if got := set.Warnings(); !slices.Equal(got, tc.want) {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestWarningsHaveAPlace(t *testing.T) {
	set := setOf(t, "policy p {\n deny .com dns.google\n allow ok.example .net\n preset agents-wide\n}\n")
	got := set.Warnings()
	if len(got) == 0 || got[0] != `policy:3: every name below the top-level domain "net" is allowed, anybody can register one` {
		t.Errorf("got %q", got)
	}
	if !slices.ContainsFunc(got, func(w string) bool {
		return strings.HasPrefix(w, "preset/agents-wide:") && strings.HasSuffix(w, `"githubusercontent.com"`)
	}) {
		t.Errorf("no warning about githubusercontent.com in %q", got)
	}
}

// The names in the lists of warnings are such that rules can match them.
func TestWarningNames(t *testing.T) {
	for _, d := range dohResolvers {
		if n := mustName(t, d); n.String() != d {
			t.Errorf("%q is not canonical", d)
		}
	}
	for d := range tenants {
		if n := mustName(t, d); n.String() != d {
			t.Errorf("%q is not canonical", d)
		}
	}
}
