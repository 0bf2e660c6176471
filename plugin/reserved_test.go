package sandboxallow

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func txt(s ...string) want { return want{answers: `TXT "` + strings.Join(s, `" "`) + `"`} }

func TestReservedNames(t *testing.T) {
	const (
		strict = "answer 10.200.0.1\nallow example.com .github.com db.example.org:5432\ndeny gist.github.com"
		open   = "answer 10.200.0.1\nmode open\ndeny .corp.example"
		learn  = "answer 10.200.0.1\nmode learn\nallow example.com"
	)
	hash := func(body string) string { return parseBlock(t, body).store.Set().Hash() }
	tests := []struct {
		name  string
		body  string
		qname string
		qtype uint16
		want  want
	}{
		{"allowed", strict, "example.com.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=allow", "policy=default", "rule=allow example.com")},
		{"by a suffix", strict, "a.b.github.com.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=allow", "policy=default", "rule=allow .github.com")},
		{"not allowed", strict, "example.org.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=deny", "reason=not_allowed", "policy=default", "hint=allow example.org")},
		{"denied", strict, "gist.github.com.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=deny", "reason=denied", "policy=default", "rule=deny gist.github.com")},
		{"case", strict, "Example.COM.Why.SandboxAllow.", dns.TypeTXT,
			txt("verdict=allow", "policy=default", "rule=allow example.com")},
		{"on any port", strict, "db.example.org.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=allow", "policy=default", "rule=allow db.example.org:5432")},
		{"on its port", strict, "_5432.db.example.org.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=allow", "policy=default", "rule=allow db.example.org:5432")},
		{"on another port", strict, "_22.example.com.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=deny", "reason=port_not_allowed", "policy=default", "rule=allow example.com", "hint=allow example.com:22")},
		{"not allowed on a port", strict, "_8443.example.org.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=deny", "reason=not_allowed", "policy=default", "hint=allow example.org:8443")},
		{"no port, with a zero", strict, "_0443.github.com.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=allow", "policy=default", "rule=allow .github.com")},
		{"no port, too large", strict, "_65536.example.org.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=deny", "reason=not_allowed", "policy=default", "hint=allow _65536.example.org")},
		{"no port, a label", strict, "_dmarc.github.com.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=allow", "policy=default", "rule=allow .github.com")},
		{"port of a name like one", strict, "_443._8443._https.github.com.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=allow", "policy=default", "rule=allow .github.com")},
		{"port alone", strict, "_443.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=deny", "reason=not_allowed", "policy=default", "hint=allow _443")},
		{"an ancestor", strict, "com.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=deny", "reason=not_allowed", "policy=default", "hint=allow com")},
		{"open", open, "example.org.why.sandboxallow.", dns.TypeTXT, txt("verdict=allow", "policy=default")},
		{"open, special use", open, "db.internal.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=deny", "reason=not_allowed", "policy=default", "hint=allow db.internal")},
		{"open, metadata", open, "metadata.google.internal.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=deny", "reason=not_allowed", "policy=default", "hint=allow metadata.google.internal")},
		{"open, denied", open, "git.corp.example.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=deny", "reason=denied", "policy=default", "rule=deny .corp.example")},
		{"learn", learn, "example.org.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=would_deny", "reason=not_allowed", "policy=default", "hint=allow example.org")},

		{"escaped dot", strict, `a\.github.com.why.sandboxallow.`, dns.TypeTXT, txt("verdict=deny", "reason=bad_name", "policy=default")},
		{"NUL and quotes", strict, `a\000\"b\\.github.com.why.sandboxallow.`, dns.TypeTXT, txt("verdict=deny", "reason=bad_name", "policy=default")},
		{"U-label", strict, `b\195\188cher.example.why.sandboxallow.`, dns.TypeTXT, txt("verdict=deny", "reason=bad_name", "policy=default")},
		{"address", strict, "10.0.0.1.why.sandboxallow.", dns.TypeTXT, txt("verdict=deny", "reason=bad_name", "policy=default")},
		{"port of an address", strict, "_443.10.0.0.1.why.sandboxallow.", dns.TypeTXT, txt("verdict=deny", "reason=bad_name", "policy=default")},
		{"why of why", strict, "why.why.sandboxallow.", dns.TypeTXT, txt("verdict=deny", "reason=not_allowed", "policy=default", "hint=allow why")},

		{"policy", strict, "policy.sandboxallow.", dns.TypeTXT, txt("policy=default", "mode=strict", "hash="+hash(strict))},
		{"policy, case", open, "POLICY.sandboxallow.", dns.TypeTXT, txt("policy=default", "mode=open", "hash="+hash(open))},
		{"policy, learn", learn, "policy.sandboxallow.", dns.TypeTXT, txt("policy=default", "mode=learn", "hash="+hash(learn))},

		{"policy A", strict, "policy.sandboxallow.", dns.TypeA, nodata()},
		{"policy ANY", strict, "policy.sandboxallow.", dns.TypeANY, nodata()},
		{"why A", strict, "example.com.why.sandboxallow.", dns.TypeA, nodata()},
		{"why HTTPS", strict, "example.org.why.sandboxallow.", dns.TypeHTTPS, nodata()},
		{"why alone", strict, "why.sandboxallow.", dns.TypeTXT, nodata()},
		{"apex TXT", strict, "sandboxallow.", dns.TypeTXT, nodata()},
		{"apex A", strict, "SANDBOXALLOW.", dns.TypeA, nodata()},
		{"apex AAAA", open, "sandboxallow.", dns.TypeAAAA, nodata()},
		{"below policy", strict, "x.policy.sandboxallow.", dns.TypeTXT, nxdomain()},
		{"nothing", strict, "x.sandboxallow.", dns.TypeTXT, nxdomain()},
		{"nothing A", open, "x.sandboxallow.", dns.TypeA, nxdomain()},
		{"not why", strict, "example.org.notwhy.sandboxallow.", dns.TypeTXT, nxdomain()},
		{"why in one label", strict, `example\.why.sandboxallow.`, dns.TypeTXT, nxdomain()},

		// Reserved whatever a policy says, and no further than the label.
		{"allowed A", strict + "\nallow .sandboxallow", "x.sandboxallow.", dns.TypeA, nxdomain()},
		{"allowed why", strict + "\nallow .sandboxallow", "x.sandboxallow.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=allow", "policy=default", "rule=allow .sandboxallow")},
		{"denied why", strict + "\ndeny .sandboxallow", "example.com.why.sandboxallow.", dns.TypeTXT,
			txt("verdict=allow", "policy=default", "rule=allow example.com")},
		{"a longer label", strict, "why.notsandboxallow.", dns.TypeTXT, blocked(nxdomain(), "not_allowed: ")},
		{"an escaped dot before the label", strict, `why\.sandboxallow.`, dns.TypeTXT, blocked(nxdomain(), "bad_name: ")},
		{"a domain", strict, "why.sandboxallow.com.", dns.TypeTXT, blocked(nxdomain(), "not_allowed: ")},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s := parseBlock(t, tc.body)
			for _, edns := range []int{1232, -1} {
				q := query(tc.qname, tc.qtype, edns)
				got, _ := ask(t, s, "", q)
				tc.want.check(t, q, got)
				for _, rr := range got.Answer {
					if rr.Header().Ttl != 0 {
						t.Errorf("got TTL %d, want 0: the next client may have another policy", rr.Header().Ttl)
					}
				}
			}
		})
	}
}

// Each client is told of its own policy, and nobody where on the host a policy stands.
func TestReservedNamesByClient(t *testing.T) {
	doc := writeFile(t, "secretdocument", `policy build {
	client 10.1.0.0/16
	allow .example.com
	deny .secret.example.com
}

policy research {
	client 10.2.0.0/16
	mode open
	deny research.example.net
}
`)
	byClient := parseBlock(t, "answer 10.200.0.1\npolicy_file "+doc)
	both := parseBlock(t, "answer 10.200.0.1\npolicy_file "+doc+"\npolicy build")
	lost := parseBlock(t, "answer 10.200.0.1\npolicy_file "+doc)
	lost.listener.policy = "gone" // as after a reload
	hash := "hash=" + byClient.store.Set().Hash()
	noPolicy := []string{"verdict=deny", "reason=no_policy"}
	tests := []struct {
		name   string
		s      *SandboxAllow
		client string
		qname  string
		want   []string
	}{
		{"build", byClient, "10.1.0.1", "policy", []string{"policy=build", "mode=strict", hash}},
		{"research", byClient, "10.2.0.1", "policy", []string{"policy=research", "mode=open", hash}},
		{"research, mapped", byClient, "::ffff:10.2.0.1", "policy", []string{"policy=research", "mode=open", hash}},
		{"nobody's", byClient, "10.3.0.1", "policy", noPolicy},
		{"no address", byClient, "nonsense", "policy", noPolicy},
		{"build's why", byClient, "10.1.0.1", "research.example.net.why", []string{"verdict=deny", "reason=not_allowed", "policy=build", "hint=allow research.example.net"}},
		{"research's why", byClient, "10.2.0.1", "research.example.net.why", []string{"verdict=deny", "reason=denied", "policy=research", "rule=deny research.example.net"}},
		{"build's rule", byClient, "10.1.0.1", "a.secret.example.com.why", []string{"verdict=deny", "reason=denied", "policy=build", "rule=deny .secret.example.com"}},
		{"not research's", byClient, "10.2.0.1", "a.secret.example.com.why", []string{"verdict=allow", "policy=research"}},
		{"nobody's why", byClient, "10.3.0.1", "a.example.com.why", noPolicy},
		{"nobody's bad name", byClient, "10.3.0.1", `a\.b.why`, noPolicy},
		{"no address, why", byClient, "nonsense", "a.example.com.why", noPolicy},
		{"listener denies too", both, "10.2.0.1", "a.secret.example.com.why", []string{"verdict=deny", "reason=denied", "policy=research", "rule=deny .secret.example.com"}},
		{"listener does not allow", both, "10.2.0.1", "example.org.why", []string{"verdict=deny", "reason=not_allowed", "policy=research", "hint=allow example.org"}},
		{"listener's policy is gone", lost, "10.1.0.1", "a.example.com.why", []string{"verdict=deny", "reason=no_policy", "policy=build"}},
		{"listener's policy is gone, policy", lost, "10.1.0.1", "policy", []string{"verdict=deny", "reason=no_policy", "policy=build"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			q := query(tc.qname+".sandboxallow.", dns.TypeTXT, 1232)
			got, _ := ask(t, tc.s, tc.client, q)
			txt(tc.want...).check(t, q, got)
			for _, part := range []string{"secretdocument", filepath.Dir(doc)} {
				if strings.Contains(got.String(), part) {
					t.Errorf("got %q of the host in\n%v", part, got)
				}
			}
		})
	}
	// Nor does an Extended DNS Error tell it.
	t.Run("EDE", func(t *testing.T) {
		q := query("a.secret.example.com.", dns.TypeA, 1232)
		got, _ := ask(t, byClient, "10.1.0.1", q)
		blocked(nxdomain(), `denied: a.secret.example.com by rule "deny .secret.example.com"`).check(t, q, got)
		if strings.Contains(got.String(), "secretdocument") {
			t.Errorf("got a file name in\n%v", got)
		}
	})
}

// Nobody is let through by these questions, so they are no decisions.
func TestReservedNamesAreNoDecisions(t *testing.T) {
	logged := captureLog(t)
	s := parseBlock(t, p0+"\nlog all")
	before := series(t, "decisions_total")
	for _, qname := range []string{"example.com.why.sandboxallow.", "denied.test.why.sandboxallow.", "policy.sandboxallow.", "x.sandboxallow."} {
		q := query(qname, dns.TypeTXT, -1)
		w := &test.ResponseWriter{}
		ctx := s.Metadata(metadata.ContextWithMetadata(context.Background()), request.Request{Req: q, W: w})
		if _, err := s.ServeDNS(ctx, w, q); err != nil {
			t.Fatal(err)
		}
		if v := metadata.ValueFunc(ctx, "sandboxallow/verdict")(); v != "" {
			t.Errorf("%s: got verdict %q in the metadata, want none", qname, v)
		}
	}
	s.folder.Flush()
	if got := decisions(t, logged()); len(got) != 0 {
		t.Errorf("got %q in the log", got)
	}
	if got := series(t, "decisions_total"); !slices.Equal(got, before) {
		t.Errorf("got series %q, want %q", got, before)
	}
}

// Whatever is asked and whatever the policy is called, a reply fits, has verdict and reason, and is no
// lever for a flood.
func TestReservedNamesFit(t *testing.T) {
	var ports []string
	for p := 1; p <= 200; p++ {
		ports = append(ports, fmt.Sprint(p))
	}
	longest := label63 + "." + label63 + "." + label63 + "." + label63[:236-3*64]
	doc := writeFile(t, "policy", "policy "+label63+" {\n\tallow .example.com:"+strings.Join(ports, ",")+
		"\n\tdeny ."+longest[64:]+"\n}\n")
	s := parseBlock(t, "answer 10.200.0.1\npolicy_file "+doc)
	octets := strings.Repeat(`\255`, 63)
	for _, tc := range []struct {
		name, qname string
		want        []string // how the answer begins
	}{
		{"policy", "policy.sandboxallow.", []string{"policy=" + label63, "mode=strict", "hash="}},
		{"shortest", "a.why.sandboxallow.", []string{"verdict=deny", "reason=not_allowed", "policy=" + label63, "hint=allow a"}},
		{"a long rule", "example.com.why.sandboxallow.", []string{"verdict=allow", "policy=" + label63}},
		{"a long rule, another port", "_999.example.com.why.sandboxallow.", []string{"verdict=deny", "reason=port_not_allowed", "policy=" + label63, "hint=allow example.com:999"}},
		{"longest", longest + ".why.sandboxallow.", []string{"verdict=deny", "reason=denied", "policy=" + label63}},
		{"longest with a port", "_65535." + longest[7:235] + "x.why.sandboxallow.", []string{"verdict=deny", "reason=not_allowed", "policy=" + label63}},
		{"longest of no letters", octets + "." + octets + "." + octets + "." + strings.Repeat(`\000`, 236-3*64) + ".why.sandboxallow.",
			[]string{"verdict=deny", "reason=bad_name", "policy=" + label63}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, edns := range []int{-1, 512, 4096} {
				q := query(tc.qname, dns.TypeTXT, edns)
				got, _ := ask(t, s, "", q)
				if len(got.Answer) != 1 {
					t.Fatalf("got\n%v", got)
				}
				text := got.Answer[0].(*dns.TXT).Txt
				if len(text) < len(tc.want) {
					t.Fatalf("got %q, want %q", text, tc.want)
				}
				for i, want := range tc.want {
					if !strings.HasPrefix(text[i], want) {
						t.Errorf("got %q, want %q", text[i], want)
					}
				}
				size := packedLen(t, got)
				if size > dns.MinMsgSize {
					t.Errorf("got %d octets", size)
				}
				// A name of 63 octets for the policy is the worst that an operator can do.
				if asked := packedLen(t, q); size > 6*asked {
					t.Errorf("got %d octets for %d", size, asked)
				}
			}
		})
	}
}

func TestReservedNamesOfServer(t *testing.T) {
	udp, tcp := serve(t, p0)
	onBoth(t, udp, tcp, func(t *testing.T, network, addr string) {
		q := query("denied.test.why.sandboxallow.", dns.TypeTXT, -1)
		txt("verdict=deny", "reason=not_allowed", "policy=default", "hint=allow denied.test").check(t, q, exchange(t, network, addr, q))
		q = query(label63+"."+label63+"."+label63+"."+label63[:44]+".why.sandboxallow.", dns.TypeTXT, 1232)
		got := exchange(t, network, addr, q)
		txt("verdict=deny", "reason=not_allowed", "policy=default").check(t, q, got)
	})
}

// FuzzReserved asks why of any labels, as any client. Invariant: the answer is the verdict of the client's
// own policy, in plain text that fits, and says nothing of the other policy or of the host.
func FuzzReserved(f *testing.F) {
	const file = "thedocument"
	doc := writeFile(f, file, `policy one {
	client 10.1.0.0/16
	allow .example.com db.example.net:5432
	deny gist.example.com
}

policy two {
	client 10.2.0.0/16
	mode learn
	deny .onlytwo.example.org
}
`)
	s := parseBlock(f, "answer 10.200.0.1\npolicy_file "+doc)
	set := s.store.Set()
	for _, seed := range []string{
		"example.com", "gist.example.com", "_5432.db.example.net", "a.onlytwo.example.org", "_443.x", "_443", "a\x00b.c", "x.why.sandboxallow",
		"\xff\xfe", `a"b\c.d`, "10.0.0.1", "policy", strings.Repeat("a.", 100) + "b", strings.Repeat("\xff", 63) + "." + strings.Repeat("\xff", 63),
	} {
		for client := range byte(4) {
			f.Add(seed, client, uint16(dns.TypeTXT))
		}
		f.Add(seed, byte(1), uint16(dns.TypeA))
	}
	f.Fuzz(func(t *testing.T, asked string, client byte, qtype uint16) {
		qname := presentation(asked) + whyZone
		if _, ok := dns.IsDomainName(qname); !ok {
			return
		}
		if qtype == dns.TypeAXFR || qtype == dns.TypeIXFR {
			return
		}
		q := overWire(t, query(qname, qtype, 1232))
		addr := netip.AddrFrom4([4]byte{10, client % 4, 0, 1})
		got, _ := ask(t, s, addr.String(), q)
		if got == nil || got.Rcode != dns.RcodeSuccess || packedLen(t, got) > dns.MinMsgSize {
			t.Fatalf("got\n%v\nto %q", got, qname)
		}
		if qtype != dns.TypeTXT || asked == "" {
			nodata().check(t, q, got)
			return
		}
		text := got.Answer[0].(*dns.TXT).Txt
		host, port := asked, uint64(policy.AnyPort)
		if p, rest, ok := strings.Cut(asked, "."); ok {
			var n uint64
			if c, err := fmt.Sscanf(p+"\n", "_%d\n", &n); c == 1 && err == nil && p == fmt.Sprintf("_%d", n) && 0 < n && n < 1<<16 {
				host, port = rest, n
			}
		}
		n, _ := policy.ParseName(host)
		d := set.Select(addr, "").Lookup(n, uint16(port))
		if text[0] != "verdict="+d.Verdict.String() {
			t.Errorf("got %q, want verdict %s", text, d.Verdict)
		}
		if r := d.Reason.String(); r != "" && text[1] != "reason="+r {
			t.Errorf("got %q, want reason %s", text, r)
		}
		for _, s := range text {
			if len(s) > maxString || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) {
				t.Errorf("got string %q", s)
			}
			if strings.Contains(s, file) {
				t.Errorf("got %q of the host", s)
			}
			if strings.HasPrefix(s, "policy=") && s != "policy="+d.Policy || strings.HasPrefix(s, "rule=") && s != "rule="+d.Rule.Text() {
				t.Errorf("got %q, want policy %s and rule %s", s, d.Policy, d.Rule.Text())
			}
		}
	})
}

// presentation writes octets as the labels of a name, each dot the end of one.
func presentation(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '.', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\%03d`, c)
		}
	}
	if b.Len() > 0 {
		b.WriteByte('.')
	}
	return b.String()
}
