package policy

import (
	"net/netip"
	"testing"
)

func TestSelect(t *testing.T) {
	const nested = `policy default {
	}
	policy wide {
		client 10.0.0.0/8 fd00::/8
	}
	policy net {
		client 10.1.0.0/16 fd00:1::/64 192.0.2.0/25
	}
	policy one {
		client 10.1.2.3 fd00:1::7
	}
	policy link {
		client fe80::/10
	}
	`
	for _, tc := range []struct {
		name   string
		doc    string
		client string // "" for the zero Addr
		want   string // "" for none
	}{
		{"default", nested, "192.0.2.128", "default"},
		{"default, IPv6", nested, "2001:db8::1", "default"},
		{"short prefix", nested, "10.2.0.1", "wide"},
		{"longer prefix", nested, "10.1.0.1", "net"},
		{"longest prefix", nested, "10.1.2.3", "one"},
		{"beside the longest prefix", nested, "10.1.2.4", "net"},
		{"first of a prefix", nested, "192.0.2.0", "net"},
		{"last of a prefix", nested, "192.0.2.127", "net"},
		{"beside a prefix", nested, "192.0.1.255", "default"},
		{"IPv6, short prefix", nested, "fdff::1", "wide"},
		{"IPv6, longer prefix", nested, "fd00:1::8", "net"},
		{"IPv6, longest prefix", nested, "fd00:1::7", "one"},
		{"IPv4-mapped", nested, "::ffff:10.1.2.3", "one"},
		{"IPv4-mapped, default", nested, "::ffff:192.0.2.128", "default"},
		{"IPv4-compatible is IPv6", nested, "::10.1.2.3", "default"},
		{"zone", nested, "fe80::1%eth0", "link"},
		{"IPv4-mapped with a zone", nested, "::ffff:10.1.2.3%eth0", "one"},
		{"no address", nested, "", ""},

		{"no default", "policy a {\nclient 10.0.0.0/8\n}\n", "192.0.2.1", ""},
		{"no default, IPv6", "policy a {\nclient 10.0.0.0/8\n}\n", "2001:db8::1", ""},
		{"no default, its client", "policy a {\nclient 10.0.0.0/8\n}\n", "10.0.0.1", "a"},
		{"all of IPv4 is not IPv6", "policy a {\nclient 0.0.0.0/0\n}\n", "::1", ""},
		{"all of IPv6 is not IPv4", "policy a {\nclient ::/0\n}\n", "127.0.0.1", ""},
		{"all of IPv4", "policy a {\nclient 0.0.0.0/0\n}\n", "127.0.0.1", "a"},
		{"all, but no address", "policy a {\nclient 0.0.0.0/0 ::/0\n}\n", "", ""},
		{"the order does not matter", "policy a {\nclient 10.1.0.0/16\n}\npolicy b {\nclient 10.0.0.0/8\n}\npolicy c {\nclient 10.1.1.0/24\n}\n", "10.1.2.3", "a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var client netip.Addr
			if tc.client != "" {
				client = netip.MustParseAddr(tc.client)
			}
			sel := setOf(t, tc.doc).Select(client, "")
			if got := sel.Policy(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			d := decide(t, sel, mustName(t, "example.com"), 443)
			want := Decision{Reason: ReasonNotAllowed, Policy: tc.want}
			if tc.want == "" {
				want.Reason = ReasonNoPolicy
			}
			if d != want {
				t.Errorf("Lookup: got %+v, want %+v", d, want)
			}
		})
	}
}

func TestZeroSelection(t *testing.T) {
	var sel Selection
	want := Decision{Verdict: Deny, Reason: ReasonNoPolicy}
	if got := decide(t, sel, mustName(t, "example.com"), 443); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if sel.Policy() != "" || sel.Mode() != Strict || sel.Lifts(netip.MustParseAddr("10.0.0.1")) {
		t.Errorf("got policy %q, mode %s", sel.Policy(), sel.Mode())
	}
}

// Where the listener names a policy too, both must admit; the record names the client's.
func TestSelectListener(t *testing.T) {
	set := setOf(t, `policy client {
		client 10.0.0.0/8
		allow .both.example .client.example
		allow ports.example
		deny  no.both.example
	}
	policy learner {
		client 10.1.0.0/16
		mode learn
	}
	policy listener {
		client 192.0.2.0/24
		allow .both.example .listener.example
		allow ports.example:8443
		deny  nowhere.both.example
	}
	policy openl {
		client 198.51.100.0/24
		mode open
	}
	policy learnl {
		client 203.0.113.0/24
		mode learn
	}
	`)
	for _, tc := range []struct {
		name     string
		client   string
		listener string
		question string
		want     string
		policy   string
		rule     string
	}{
		{"both allow", "10.0.0.1", "listener", "a.both.example:443", "allow", "client", "policy:3"},
		{"the client's alone", "10.0.0.1", "listener", "a.client.example:443", "not_allowed", "client", ""},
		{"the client's alone, no listener's", "10.0.0.1", "", "a.client.example:443", "allow", "client", "policy:3"},
		{"the listener's alone", "10.0.0.1", "listener", "a.listener.example:443", "not_allowed", "client", ""},
		{"neither", "10.0.0.1", "listener", "a.example:443", "not_allowed", "client", ""},
		{"the client's denies", "10.0.0.1", "listener", "no.both.example:443", "denied+below", "client", "policy:5"},
		{"the listener's denies", "10.0.0.1", "listener", "nowhere.both.example:443", "denied+below", "client", "policy:15"},
		{"the listener's on another port", "10.0.0.1", "listener", "ports.example:443", "port_not_allowed", "client", "policy:14"},
		{"the client's on another port", "10.0.0.1", "listener", "ports.example:8443", "port_not_allowed", "client", "policy:4"},
		{"above names of both", "10.0.0.1", "listener", "both.example:22", "port_not_allowed+below", "client", "policy:3"},
		{"above names of one", "10.0.0.1", "openl", "client.example:22", "port_not_allowed+below", "client", "policy:3"},
		{"an open listener", "10.0.0.1", "openl", "a.client.example:443", "allow", "client", "policy:3"},
		{"an open listener adds nothing", "10.0.0.1", "openl", "a.example:443", "not_allowed", "client", ""},
		{"a client that learns", "10.1.0.1", "openl", "a.example:443", "would_deny not_allowed", "learner", ""},
		{"a client that learns, strict listener", "10.1.0.1", "listener", "a.example:443", "not_allowed", "learner", ""},
		{"a client that learns, listener that allows", "10.1.0.1", "listener", "a.both.example:443", "would_deny not_allowed", "learner", ""},
		{"a listener that learns", "10.0.0.1", "learnl", "a.client.example:443", "would_deny not_allowed", "client", ""},
		{"a listener that learns, strict client", "10.0.0.1", "learnl", "a.example:443", "not_allowed", "client", ""},
		{"one policy for both", "10.0.0.1", "client", "a.client.example:443", "allow", "client", "policy:3"},
		{"listener's policy is gone", "10.0.0.1", "gone", "a.both.example:443", "no_policy", "client", ""},
		{"no policy for the client", "172.16.0.1", "openl", "a.example:443", "no_policy", "", ""},
		{"no policy at all", "172.16.0.1", "gone", "a.example:443", "no_policy", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sel := set.Select(netip.MustParseAddr(tc.client), tc.listener)
			n, port := question(t, tc.question)
			d := decide(t, sel, n, port)
			if got := outcome(d); got != tc.want || d.Policy != tc.policy || d.Rule.String() != tc.rule {
				t.Errorf("got %s by %q in %q, want %s by %q in %q", got, d.Rule, d.Policy, tc.want, tc.rule, tc.policy)
			}
		})
	}
}

func TestLifts(t *testing.T) {
	set := setOf(t, `policy a {
		client 10.0.0.0/8
		private 10.20.0.0/30 fd00:1::/64
		private 192.0.2.7
	}
	policy b {
		client 172.16.0.0/12
		private 10.20.0.2 fd00:1::1
	}
	policy c {
		client 192.168.0.0/16
	}
	`)
	for _, tc := range []struct {
		client   string
		listener string
		yes      []string
		no       []string
	}{
		{"10.0.0.1", "", []string{"10.20.0.0", "10.20.0.3", "::ffff:10.20.0.1", "fd00:1::ffff", "192.0.2.7"},
			[]string{"10.20.0.4", "10.19.255.255", "fd00:2::1", "fd00:1::1%eth0", "::10.20.0.1", "192.0.2.8", "127.0.0.1"}},
		{"10.0.0.1", "a", []string{"10.20.0.0"}, []string{"10.20.0.4"}},
		{"10.0.0.1", "b", []string{"10.20.0.2", "fd00:1::1"}, []string{"10.20.0.1", "fd00:1::2", "192.0.2.7"}},
		{"172.16.0.1", "a", []string{"10.20.0.2"}, []string{"10.20.0.1", "192.0.2.7"}},
		{"10.0.0.1", "c", nil, []string{"10.20.0.2"}},
		{"192.168.0.1", "a", nil, []string{"10.20.0.2"}},
		{"10.0.0.1", "gone", nil, []string{"10.20.0.2"}},
		{"192.0.2.1", "a", nil, []string{"10.20.0.2"}},
	} {
		sel := set.Select(netip.MustParseAddr(tc.client), tc.listener)
		for _, s := range tc.yes {
			if !sel.Lifts(netip.MustParseAddr(s)) {
				t.Errorf("%s at %q: %s not lifted", tc.client, tc.listener, s)
			}
		}
		for _, s := range tc.no {
			if sel.Lifts(netip.MustParseAddr(s)) {
				t.Errorf("%s at %q: %s lifted", tc.client, tc.listener, s)
			}
		}
		if sel.Lifts(netip.Addr{}) {
			t.Errorf("%s at %q: the zero address lifted", tc.client, tc.listener)
		}
	}
}

func TestMetadataAddr(t *testing.T) {
	for s, want := range map[string]bool{
		"169.254.169.254":        true,
		"::ffff:169.254.169.254": true,
		"fd00:ec2::254":          true,
		"fe80::a9fe:a9fe":        true,
		"fe80::a9fe:a9fe%eth0":   true,
		"100.100.100.200":        true,
		"169.254.169.255":        false,
		"fd00:ec2::255":          false,
		"8.8.8.8":                false,
	} {
		if got := MetadataAddr(netip.MustParseAddr(s)); got != want {
			t.Errorf("MetadataAddr(%s) = %t, want %t", s, got, want)
		}
	}
	if MetadataAddr(netip.Addr{}) {
		t.Error("the zero address is a metadata address")
	}
}
