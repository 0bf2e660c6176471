package learn

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func TestLooksGenerated(t *testing.T) {
	for _, label := range strings.Fields(`d111111abcdef8 550e8400-e29b-41d4-a716-446655440000 deadbeef01 a1b2c3 0123 20261129 sn4g5e6l rr4---sn4g5e6l7
		kqxzvbnmwrtp x7f3q2 prod-8f14e45fceea bucket_9f86d081 cafebabedeadbeef`) {
		if !looksGenerated(label) {
			t.Errorf("%s looks chosen", label)
		}
	}
	for _, label := range strings.Fields(`www api api2 s3 us-east-1 eu-west-3b raw objects release-assets github-cloud registry-1 docker-images-prod
		healthcheck oauth2 web3 v1 cdn01 ip-10-0-0-1 xn--bcher-kva xn--1234567890 storage-download archive security facade decade accede 2fa b2b`) {
		if looksGenerated(label) {
			t.Errorf("%s looks generated", label)
		}
	}
}

func TestEndless(t *testing.T) {
	series := func(format string, n int) string {
		var s []string
		for i := range n {
			s = append(s, fmt.Sprintf(format, i))
		}
		return strings.Join(s, " ")
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var hashes []string
	for range 20 {
		hashes = append(hashes, fmt.Sprintf("%08x", rnd.Uint32()|0xa0000001))
	}
	for _, tc := range []struct{ name, labels, want string }{
		{"chosen", "www api cdn static img docs blog mail shop news forum wiki git ci dev test stage prod eu us", ""},
		{"languages", "en de fr it es pt nl pl sv da no fi cs sk hu ro bg el tr uk ru ja ko zh ar he hi th vi id", ""},
		{"hashes", strings.Join(hashes, " "), "generated"},
		{"hashes and some others", strings.Join(hashes, " ") + " www api cdn img", "generated"},
		{"hashes and many others", strings.Join(hashes[:12], " ") + " www api cdn img docs blog", ""},
		{"series", series("shard-%d", 20), "numbered"},
		{"series with zeros", series("n%04d", 20), "numbered"},
		{"long numbers", series("%04d", 20), "generated"},
		{"two series", series("web%d", 12) + " " + series("db%d", 12), "numbered"},
		{"numbers that are no series", "web1 db2 s3 ec2 route53 v8 k8s h2 ipv6 oauth2 i18n l10n b2b p2p mp3 base64 utf8 rfc1 c3 d4", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := endless(strings.Fields(tc.labels), 20); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestGrowing(t *testing.T) {
	const day = 24 * 60 * 60
	spread := func(n int, over int64) (firsts []int64) {
		for i := range n {
			firsts = append(firsts, 1000+over*int64(i)/int64(n))
		}
		return firsts
	}
	for _, tc := range []struct {
		name   string
		firsts []int64
		to     int64
		want   bool
	}{
		{"all the time", spread(20, 2*day), 1000 + 2*day, true},
		{"for an hour", spread(20, 3600), 1000 + 3600, false},
		{"on the first day of four", spread(20, day), 1000 + 4*day, false},
		{"on the first three days of four", spread(20, 3*day), 1000 + 4*day, false},
		{"one more at the end", append(spread(20, day), 1000+2*day), 1000 + 2*day, false},
		{"times unknown", make([]int64, 20), 0, false},
		{"some unknown", append(spread(20, 2*day), 0), 1000 + 2*day, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := growing(tc.firsts, 1000, tc.to); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// hashed returns n decisions on generated names; %s in the pattern is the hash.
func hashed(pattern string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "10.0.0.1 default %s would\n", fmt.Sprintf(pattern, fmt.Sprintf("%06xa%d", i*7919%0xffffff, i)))
	}
	return b.String()
}

func TestWildcards(t *testing.T) {
	for _, tc := range []struct {
		name, log string
		from      int
		want      string // the rules, without comments; "names" for as many as were used
	}{
		{"generated", hashed("%s.cdn.example.com:443", 20), 20, "*.cdn.example.com"},
		{"too few", hashed("%s.cdn.example.com:443", 19), 20, "names"},
		{"never", hashed("%s.cdn.example.com:443", 100), 0, "names"},
		{"the domain itself", hashed("%s.cdn.example.com:443", 20) + "10.0.0.1 default cdn.example.com:443 would\n", 20, ".cdn.example.com"},
		{"the domain itself on another port", hashed("%s.cdn.example.com:443", 20) + "10.0.0.1 default cdn.example.com:8443 would\n", 20,
			"cdn.example.com:8443 *.cdn.example.com"},
		{"ports", hashed("%s.cdn.example.com:443", 20) + hashed("%s.cdn.example.com:8443", 2), 20, "*.cdn.example.com:443,8443"},
		{"in the middle", hashed("api.%s.example.com:443", 20), 20, "*.example.com"},
		{"at two levels", hashed("a1b2c3d4.%s.gw.example.com:443", 20) + hashed("%s.aaaa1111.gw.example.com:443", 30), 20, "*.gw.example.com"},
		{"beside chosen ones", hashed("%s.cdn.example.com:443", 20) + "10.0.0.1 default www.example.com:443 would\n", 20, "*.cdn.example.com www.example.com"},
		{"a registered domain below a public suffix", hashed("%s.example.co.uk:443", 20), 20, "*.example.co.uk"},
		{"a customer's domain", hashed("%s.someone.github.io:443", 20), 20, "*.someone.github.io"},
		{"a domain inside", hashed("%s.corp.internal:443", 20), 20, "*.corp.internal"},
		{"with others that were only asked for", hashed("%s.cdn.example.com:443", 20) + hashed("x.%s.cdn.example.com:dns", 30), 20, "*.cdn.example.com"},
		// A client that has no connection to show for them may make up as many as it likes.
		{"only asked for", hashed("%s.cdn.example.com:dns", 100), 20, "names"},
		{"nearly all only asked for", hashed("x%s.cdn.example.com:dns", 100) + hashed("%s.cdn.example.com:443", 19), 20, "names"},
		{"left before it was connected", strings.ReplaceAll(hashed("%s.cdn.example.com:443", 100), "would", "would left"), 20, "names"},
		{"denied", strings.ReplaceAll(hashed("%s.cdn.example.com:443", 100), "would", "deny"), 20, "names"},
		// Below these anybody gets names.
		{"a top-level domain", hashed("%s.com:443", 20), 20, "names"},
		{"a public suffix", hashed("%s.co.uk:443", 20), 20, "names"},
		{"a private public suffix", hashed("%s.github.io:443", 20), 20, "names"},
		{"a provider's domain", hashed("%s.cloudfront.net:443", 20), 20, "names"},
		{"below a provider's domain", hashed("%s.eu-west-1.rds.amazonaws.com:443", 20), 20, "names"},
		{"above a public suffix", hashed("x.%s.s3.amazonaws.com:443", 20), 20, "names"},
		{"single labels", hashed("%s:443", 20), 20, "names"},
		{"top-level domain that nobody knows", hashed("%s.internal:443", 20), 20, "names"},
		{"beside a DoH resolver", hashed("%s.nextdns.io:443", 20), 20, "names"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := learn(t, Options{WildcardFrom: tc.from, Denied: true}, logOf(t, tc.log))
			if len(r.Missing) > 0 {
				t.Fatal(r.Missing)
			}
			var rules []string
			for l := range strings.Lines(r.Document) {
				if w := strings.Fields(l); len(w) > 1 && w[0] == "allow" {
					rules = append(rules, w[1])
				}
			}
			if tc.want == "names" {
				if r.Domains != 0 || r.Names != len(rules) || len(rules) != strings.Count(tc.log, "\n") || strings.Contains(r.Document, "*") {
					t.Errorf("got %q", rules)
				}
			} else if got := strings.Join(rules, " "); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			set := load(t, r.Document)
			if tc.want != "names" && len(set.Warnings()) > 0 {
				t.Error(set.Warnings())
			}
			sel := set.Select(netip.MustParseAddr("10.0.0.1"), "")
			for l := range strings.Lines(tc.log) {
				name, _, _ := strings.Cut(strings.Fields(l)[2], ":")
				if n, err := policy.ParseName(name); err != nil || sel.Lookup(n, policy.AnyPort).Verdict != policy.Allow {
					t.Errorf("%s is not allowed", name)
				}
			}
			for _, name := range []string{"example.com", "www.example.org", "not-used.com", "someone-else.github.io", "other.co.uk", "d1.cloudfront.net"} {
				if n, _ := policy.ParseName(name); sel.Lookup(n, 443).Verdict != policy.Deny {
					t.Errorf("%s is allowed", name)
				}
			}
		})
	}
}

// Names that look chosen have no end either where new ones come all the time.
func TestWildcardOfGrowth(t *testing.T) {
	letters := func(i int) string { return string([]byte{byte('a' + i%26), byte('a' + i/26), 'x'}) }
	log := func(minutes int) string {
		var b strings.Builder
		for i := range 40 {
			fmt.Fprintf(&b, "10.0.0.1 default %s.example.com:443 would - 1 %d\n", letters(i), i*minutes)
			fmt.Fprintf(&b, "10.0.0.1 default %s.example.org:443 would - 1 %d\n", letters(i%20), i*minutes) // no new ones later
		}
		return b.String()
	}
	r := learn(t, Options{WildcardFrom: 20}, logOf(t, log(60)))
	if r.Domains != 1 || r.Names != 20 || !strings.Contains(r.Document, "*.example.com   # all below: 40 new names such as aax.example.com, 40 times since") {
		t.Errorf("in 40 hours: got\n%s", r.Document)
	}
	if r := learn(t, Options{WildcardFrom: 20}, logOf(t, log(1))); r.Domains != 0 || r.Names != 60 {
		t.Errorf("in 40 minutes: got\n%s", r.Document)
	}
}
