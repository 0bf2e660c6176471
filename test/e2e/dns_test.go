//go:build linux

package e2e

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// Questions that stub resolvers ask in ways of their own, and what a second nameserver would do.
func TestStubs(t *testing.T) {
	need(t, "curl")
	l := newLab(t)
	g := l.start(t, config{policy: "policy default {\n\tallow api.example.com\n}\n"})
	for name, a := range map[string]netip.Addr{"api.example.com": webAddr, "denied.example.net": otherAddr} {
		if _, err := l.internet.host(name, a); err != nil {
			t.Fatal(err)
		}
	}
	musl := clientNamed(t, "musl")
	// A public resolver as the second one, which the sandbox can send to and never hears from.
	const second = "203.0.113.53"
	if err := l.internet.dns.serve(l.internet.ns, netip.AddrPortFrom(netip.MustParseAddr(second), 53)); err != nil {
		t.Fatal(err)
	}
	both := "nameserver " + gatewayAddr.String() + "\nnameserver " + second + "\n"
	only := "nameserver " + gatewayAddr.String() + "\n"
	resolvConf := func(t *testing.T, content string) {
		t.Helper()
		if err := l.sandbox.etc("resolv.conf", content); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.sandbox.etc("resolv.conf", only) })
	}
	sent := newTap(t, l.sandbox, func(p packet) bool { return p.out && p.to == netip.MustParseAddr(second) })

	t.Run("dns-055", func(t *testing.T) {
		resolvConf(t, both)
		before := len(sent.packets(t))
		if out, err := l.curl("https://denied.example.net/"); err == nil || !strings.Contains(err.Error(), "(6) Could not resolve host") {
			t.Errorf("%q, %v", out, err)
		}
		if n := len(sent.packets(t)) - before; n != 0 {
			t.Errorf("the denial was not final: %d packets to the second nameserver", n)
		}
	})
	t.Run("dns-056", func(t *testing.T) {
		musl.ready(t, l)
		resolvConf(t, both)
		before := len(sent.packets(t))
		if out, err := musl.fetch(l, overTLS, "api.example.com"); err != nil || out != page("api.example.com") {
			t.Errorf("allowed: %q, %v", out, err)
		}
		if out, err := musl.fetch(l, overTLS, "denied.example.net"); err == nil || !strings.Contains(err.Error(), musl.noName) {
			t.Errorf("denied: %q, %v", out, err)
		}
		if len(sent.packets(t)) == before {
			t.Error("musl did not ask the second nameserver: the test proves nothing")
		}
		if n := l.internet.dns.questions("denied.example.net"); n != 0 {
			t.Errorf("%d questions reached the second nameserver", n)
		}
	})
	t.Run("dns-057", func(t *testing.T) {
		musl.ready(t, l) // Debian 12 has 1.2.3, which has no TCP
		if out, err := musl.fetch(l, overTLS, "api.example.com"); err != nil || out != page("api.example.com") {
			t.Errorf("%q, %v", out, err)
		}
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			r := g.ask(t, "api.example.com", qtype)
			if r.Truncated || r.Len() > dns.MinMsgSize || len(r.Answer) != 1 {
				t.Errorf("%s: truncated %t, %d octets, %d answers", dns.TypeToString[qtype], r.Truncated, r.Len(), len(r.Answer))
			}
		}
	})
	t.Run("dns-058", func(t *testing.T) {
		c, err := l.sandbox.dial("udp", netip.AddrPortFrom(gatewayAddr, 53))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		co := &dns.Conn{Conn: c}
		_ = co.SetDeadline(time.Now().Add(5 * time.Second))
		want := make(map[uint16]uint16) // type by id
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			m := new(dns.Msg).SetQuestion("api.example.com.", qtype)
			want[m.Id] = qtype
			if err := co.WriteMsg(m); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			r, err := co.ReadMsg()
			if err != nil {
				t.Fatalf("%d replies are missing: %v", len(want), err)
			}
			if len(r.Question) != 1 || want[r.Id] != r.Question[0].Qtype {
				t.Errorf("reply %d to %v, want one to %v", r.Id, r.Question, want)
			}
			delete(want, r.Id)
		}
	})
}
