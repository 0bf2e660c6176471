//go:build linux

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The policy of the matrix, and what its names are in the internet.
const matrixPolicy = `policy default {
	allow api.example.com .example.org
	allow private.example.net
	allow odd.example.net:8443
	deny  secret.example.org
}
`

// Every client, with the product as the examples set it up: an allowed name works, and each kind of denial
// fails in the client's own words, at once.
func TestClients(t *testing.T) {
	l := newLab(t)
	g := l.startExamples(t, matrixPolicy)
	hosts := map[string]netip.Addr{
		"api.example.com":     webAddr,
		"www.example.org":     otherAddr,
		"secret.example.org":  otherAddr,
		"private.example.net": netip.MustParseAddr("10.0.0.5"),
		"odd.example.net":     webAddr,
		"denied.example.net":  otherAddr,
		"known.example.net":   otherAddr,
	}
	servers := make(map[string]*server)
	for name, a := range hosts {
		s, err := l.internet.host(name, a)
		if err != nil {
			t.Fatal(err)
		}
		servers[name] = s
	}
	// These names lead a client to the gateway without a question to CoreDNS.
	if err := l.sandbox.etc("hosts", "127.0.0.1 localhost\n"+gatewayAddr.String()+" known.example.net secret.example.org\n"); err != nil {
		t.Fatal(err)
	}

	for i := range clients {
		c := &clients[i]
		t.Run(c.name, func(t *testing.T) {
			c.ready(t, l)
			fails := func(t *testing.T, host, says string) {
				t.Helper()
				out, err := c.fetch(l, host)
				if err == nil {
					t.Fatalf("%s: got %q, want a failure", host, out)
				}
				if !strings.Contains(err.Error(), says) {
					t.Errorf("%s: the client says\n%v\nwant %q in it", host, err, says)
				}
			}

			t.Run("allowed", func(t *testing.T) {
				mark := g.caddy.log.mark()
				out, err := c.fetch(l, "api.example.com")
				if err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(out, page("api.example.com")) {
					t.Errorf("got %q, want %q in it", out, page("api.example.com"))
				}
				d := g.decided(t, mark, msgAllowed, "api.example.com")
				if want := servers["api.example.com"].addr.String(); d.Upstream != want {
					t.Errorf("upstream %q, want %q", d.Upstream, want)
				}
				if want := g.line("allow api"); d.Rule != want || d.Policy != "default" || d.Port != 443 {
					t.Errorf("rule %q of policy %q, port %d, want %q of default, 443", d.Rule, d.Policy, d.Port, want)
				}
				d = g.decided(t, mark, msgClosed, "api.example.com")
				if d.BytesIn == 0 || d.BytesOut == 0 {
					t.Errorf("%d bytes in, %d out", d.BytesIn, d.BytesOut)
				}
			})
			t.Run("denied-dns", func(t *testing.T) {
				mark, asked := g.caddy.log.mark(), g.coredns.log.mark()
				fails(t, "denied.example.net", c.noName)
				must(t, 5*time.Second, "CoreDNS logs the denial", func() bool {
					return len(g.coredns.log.with(asked, "denied.example.net. NXDOMAIN verdict=deny reason=not_allowed")) > 0
				})
				if ds := g.decisions(mark); len(ds) != 0 {
					t.Errorf("a name that does not exist came to the gateway: %+v", ds)
				}
			})
			t.Run("denied-sni", func(t *testing.T) {
				mark := g.caddy.log.mark()
				fails(t, "known.example.net", c.unrecognized)
				g.denied(t, mark, "known.example.net", "not_allowed", "")
			})
			t.Run("denied-rule", func(t *testing.T) {
				mark := g.caddy.log.mark()
				fails(t, "secret.example.org", c.unrecognized)
				g.denied(t, mark, "secret.example.org", "denied", "deny  secret")
			})
			t.Run("private", func(t *testing.T) {
				mark := g.caddy.log.mark()
				fails(t, "private.example.net", c.accessDenied)
				g.denied(t, mark, "private.example.net", "private_address", "allow private")
			})
			t.Run("port", func(t *testing.T) {
				mark := g.caddy.log.mark()
				fails(t, "odd.example.net", c.unrecognized)
				g.denied(t, mark, "odd.example.net", "port_not_allowed", "allow odd")
			})
		})
	}

	t.Run("silence", func(t *testing.T) {
		for _, name := range []string{"private.example.net"} {
			s := servers[name]
			if n := s.accepted.Load(); n != 0 {
				t.Errorf("%s: %d connections to %s", name, n, s.addr)
			}
			c, err := l.gateway.dial("tcp", s.addr)
			if err != nil {
				t.Errorf("%s: the gateway could not have reached %s at all: %v", name, s.addr, err)
				continue
			}
			_ = c.Close()
		}
		for _, name := range []string{"denied.example.net", "known.example.net", "secret.example.org", "odd.example.net"} {
			if n := l.internet.dns.questions(name); n != 0 {
				t.Errorf("%s is denied, and the gateway asked for it %d times", name, n)
			}
		}
	})
}

// Over IPv6 as over IPv4, on both sides of the gateway.
func TestIPv6(t *testing.T) {
	need(t, "curl")
	l := newLab(t)
	g := l.start(t, config{policy: "policy default {\n\tallow six.example.org\n}\n"})
	s, err := l.internet.host("six.example.org", webAddr6)
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range []string{"-4", "-6"} {
		mark := g.caddy.log.mark()
		out, err := l.curl("https://six.example.org/", family)
		if err != nil || out != page("six.example.org") {
			t.Errorf("curl %s: %q, %v", family, out, err)
		}
		d := g.decided(t, mark, msgAllowed, "six.example.org")
		if want := map[string]netip.Addr{"-4": sandboxAddr, "-6": sandboxAddr6}[family]; d.Client != want {
			t.Errorf("curl %s: client %s, want %s", family, d.Client, want)
		}
		if d.Upstream != s.addr.String() {
			t.Errorf("curl %s: upstream %s, want %s", family, d.Upstream, s.addr)
		}
	}
}

// A large answer arrives complete.
func TestDownload(t *testing.T) {
	need(t, "curl", "wget")
	const size = 128 << 20
	l := newLab(t)
	l.start(t, config{policy: "policy default {\n\tallow big.example.com\n}\n"})
	if _, err := l.internet.host("big.example.com", webAddr); err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("https://big.example.com/data?size=%d", size)
	want := sum(size)
	file := filepath.Join(l.dir, "big")
	for name, download := range map[string]func() (string, error){
		"curl": func() (string, error) { return l.curl(url, "--output", file) },
		"wget": func() (string, error) {
			return l.run("wget", "--no-verbose", "--tries=1", "--ca-certificate="+l.ca.file, "--output-document", file, url)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := download(); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got := sha256.Sum256(b); hex.EncodeToString(got[:]) != want {
				t.Errorf("%d octets with another hash, want %d", len(b), size)
			}
		})
	}
}

// Node has two resolvers, and its fetch tries one address family after the other.
func TestNode(t *testing.T) {
	need(t, "node")
	l := newLab(t)
	l.start(t, config{policy: "policy default {\n\tallow api.example.com\n}\n", ipv4Only: true})
	if _, err := l.internet.host("api.example.com", webAddr); err != nil {
		t.Fatal(err)
	}
	type answers struct{ Lookup, Resolve4, Resolve6 any }
	resolve := func(t *testing.T, name string) (a answers) {
		out, err := l.run("node", testdata("resolve.mjs"), name)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(out), &a); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		return a
	}
	only := func(v any) bool {
		list, ok := v.([]any)
		return ok && len(list) == 1 && list[0] == gatewayAddr.String()
	}

	t.Run("dns-060", func(t *testing.T) {
		a := resolve(t, "api.example.com")
		if !only(a.Lookup) || !only(a.Resolve4) || a.Resolve6 != "ENODATA" {
			t.Errorf("allowed name: %+v, want the gateway, the gateway, ENODATA", a)
		}
		a = resolve(t, "denied.example.net")
		if a.Lookup != "ENOTFOUND" || a.Resolve4 != "ENOTFOUND" || a.Resolve6 != "ENOTFOUND" {
			t.Errorf("denied name: %+v, want ENOTFOUND each time", a)
		}
	})
	t.Run("dns-061", func(t *testing.T) {
		// What fetch connects to are the addresses of lookup: a single one leaves no dead family to try.
		sandbox := newTap(t, l.sandbox, func(p packet) bool { return p.out && p.syn })
		out, err := l.run("env", "NODE_EXTRA_CA_CERTS="+l.ca.file, "node", testdata("fetch.mjs"), "https://api.example.com/")
		if err != nil || out != page("api.example.com") {
			t.Fatalf("%q, %v", out, err)
		}
		syns := sandbox.packets(t)
		if len(syns) != 1 || syns[0].to != gatewayAddr {
			t.Errorf("connections %+v, want one, to %s", syns, gatewayAddr)
		}
	})
}
