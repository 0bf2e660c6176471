//go:build linux

package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// Two addresses of one gateway, and two of its name server: one where the names of a list get through, and one
// where all public names do.
const (
	pairPolicy = `policy open {
	mode open
}
policy strict {
	client 172.30.0.64/28
	allow  api.example.com
}
`
	pairCorefile = `.:53 {
	bind 172.30.0.10
	sandboxallow {
		answer 172.30.0.20
		policy_file %[1]s
		policy strict
	}
}
.:53 {
	bind 172.30.0.11
	sandboxallow {
		answer 172.30.0.21
		policy_file %[1]s
		policy open
	}
}
`
	pairCaddyfile = `{
	admin unix/%[2]s
	%[3]s
	sandboxallow {
		policy_file %[1]s
		%[4]s
	}
}
http://:80 {
	bind 172.30.0.20
	sandboxallow {
		policy strict
	}
}
http://:80 {
	bind 172.30.0.21
	sandboxallow {
		policy open
	}
}
http://:8080 {
	bind 172.30.0.20
	sandboxallow forward_proxy {
		policy strict
	}
}
http://:8080 {
	bind 172.30.0.21
	sandboxallow forward_proxy {
		policy open
	}
}
`
)

// listenerPair is an address of the name server, and the one of the gateway that it answers with.
type listenerPair struct {
	policy            string
	resolver, gateway netip.Addr
}

var (
	strictPair = listenerPair{"strict", netip.MustParseAddr("172.30.0.10"), gatewayAddr}
	openPair   = listenerPair{"open", netip.MustParseAddr("172.30.0.11"), netip.MustParseAddr("172.30.0.21")}
)

// A policy that a listener names must admit too, besides the client's own. Which listener a client comes to is
// its own choice, so a client that is to be strict whatever it does has a client line.
func TestListenerPolicies(t *testing.T) { byEachWay(t, testListenerPolicies) }

func testListenerPolicies(t *testing.T, c config) {
	const metadata = "metadata.google.internal"
	l := newLab(t)
	anybody, listed := sandboxAddr, netip.MustParseAddr("172.30.0.70")
	for _, add := range []struct {
		to   *namespace
		addr netip.Addr
		dev  string
	}{
		{l.sandbox, listed, linkGateway},
		{l.gateway, strictPair.resolver, linkSandbox},
		{l.gateway, openPair.resolver, linkSandbox},
		{l.gateway, openPair.gateway, linkSandbox},
	} {
		if err := add.to.ip("addr", "add", add.addr.String()+"/24", "dev", add.dev); err != nil {
			t.Fatal(err)
		}
	}
	g := l.prepare(t, config{policy: pairPolicy})
	g.write(t, "Corefile", fmt.Sprintf(pairCorefile, g.policyFile))
	routes, listen := "", "listen 172.30.0.20:443 {\npolicy strict\n}\nlisten 172.30.0.21:443 {\npolicy open\n}"
	if c.layer4 {
		routes = layer4(layer4Route("172.30.0.20:443", "sandboxallow", "policy strict"), layer4Route("172.30.0.21:443", "sandboxallow", "policy open"))
		listen = ""
	}
	g.write(t, "Caddyfile", fmt.Sprintf(pairCaddyfile, g.policyFile, g.path(adminSocket), routes, listen))
	g.run(t, config{})
	for _, name := range []string{allowedHost, evilHost, metadata} {
		if _, err := l.internet.host(name, webAddr); err != nil {
			t.Fatal(err)
		}
		if _, err := l.internet.hostPlain(name, webAddr); err != nil {
			t.Fatal(err)
		}
	}

	for _, tc := range []struct {
		client netip.Addr
		by     listenerPair
		name   string
		policy string // the client's
		admits bool
	}{
		{anybody, strictPair, allowedHost, "open", true},
		{anybody, strictPair, evilHost, "open", false},
		{anybody, openPair, allowedHost, "open", true},
		{anybody, openPair, evilHost, "open", true},
		{anybody, openPair, metadata, "open", false},
		{listed, strictPair, allowedHost, "strict", true},
		{listed, strictPair, evilHost, "strict", false},
		{listed, openPair, allowedHost, "strict", true},
		{listed, openPair, evilHost, "strict", false},
		{listed, openPair, metadata, "strict", false},
	} {
		t.Run(fmt.Sprintf("%s by %s to %s", tc.client, tc.by.policy, tc.name), func(t *testing.T) {
			dial := func(network string, a netip.Addr, port uint16) *conversation {
				t.Helper()
				c, err := l.sandbox.dialFrom(tc.client, network, netip.AddrPortFrom(a, port))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				return converseOver(c)
			}
			r, err := exchangeOver(dial("udp", tc.by.resolver, 53).Conn, new(dns.Msg).SetQuestion(dns.Fqdn(tc.name), dns.TypeA))
			switch {
			case err != nil:
				t.Error(err)
			case tc.admits && (len(r.Answer) != 1 || !strings.HasSuffix(r.Answer[0].String(), "\t"+tc.by.gateway.String())):
				t.Errorf("DNS: %v, want %s", r.Answer, tc.by.gateway)
			case !tc.admits && r.Rcode != dns.RcodeNameError:
				t.Errorf("DNS: %s, want NXDOMAIN", dns.RcodeToString[r.Rcode])
			}

			for _, door := range []struct {
				layer string
				port  uint16
				get   func(c *conversation) (body string, err error)
			}{
				{"tls", 443, func(c *conversation) (string, error) {
					return getPage(tls.Client(c, l.ca.client(tc.name)), tc.name)
				}},
				{"http", 80, func(c *conversation) (string, error) { return getPage(c, tc.name) }},
				{"proxy", 8080, func(c *conversation) (string, error) {
					if a := c.ask(t, head("CONNECT "+tc.name+":443", tc.name)); a.status != http.StatusOK {
						return "", fmt.Errorf("CONNECT: %+v", a)
					}
					return getPage(tls.Client(c, l.ca.client(tc.name)), tc.name)
				}},
			} {
				mark := g.caddy.log.mark()
				body, err := door.get(dial("tcp", tc.by.gateway, door.port))
				if admits := err == nil && body == page(tc.name); admits != tc.admits {
					t.Errorf("%s: %q, %v, want it admitted: %t", door.layer, body, err, tc.admits)
				}
				msg := msgDenied
				if tc.admits {
					msg = msgAllowed
				}
				if d := g.decidedBy(t, door.layer, mark, msg, tc.name); d.Client != tc.client || d.Policy != tc.policy {
					t.Errorf("decision %+v, want policy %s for %s", d, tc.policy, tc.client)
				}
			}
		})
	}
}

// What a route of layer4 is for besides PostgreSQL: clients of a load balancer, which tells their addresses and is let in
// alone, as caddymodule/README.md has it.
func TestRoutes(t *testing.T) {
	l := newLab(t)
	anybody, balancer, behind := sandboxAddr, netip.MustParseAddr("172.30.0.5"), netip.MustParseAddr("172.30.0.65")
	if err := l.sandbox.ip("addr", "add", balancer.String()+"/24", "dev", linkGateway); err != nil {
		t.Fatal(err)
	}
	g := l.start(t, config{
		policy: allowing("www.example.org") + "policy research {\n\tclient " + behind.String() + "\n\tallow " + allowedHost + "\n}\n",
		global: `layer4 {
		:8443 {
			@balancer remote_ip ` + balancer.String() + `
			route @balancer {
				proxy_protocol {
					fallback_policy require
				}
				sandboxallow {
					upstream_port 443
				}
			}
		}
	}`,
	})
	for _, name := range []string{allowedHost, "www.example.org"} {
		if _, err := l.internet.host(name, webAddr); err != nil {
			t.Fatal(err)
		}
	}
	// get asks for a page from an address, and before that says something.
	get := func(from netip.Addr, port uint16, said, name string) error {
		t.Helper()
		c, err := l.sandbox.dialFrom(from, "tcp", netip.AddrPortFrom(gatewayAddr, port))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.WriteString(c, said); err != nil {
			t.Fatal(err)
		}
		body, err := getPage(tls.Client(c, l.ca.client(name)), name)
		if err == nil && body != page(name) {
			t.Errorf("%q, want %q", body, page(name))
		}
		return err
	}
	header := "PROXY TCP4 " + behind.String() + " " + gatewayAddr.String() + " 1024 443\r\n"
	for _, tc := range []struct {
		name   string
		from   netip.Addr
		port   uint16
		said   string
		asks   string
		client netip.Addr // that decides
		admits bool
	}{
		{"by the balancer", balancer, 8443, header, allowedHost, behind, true},
		{"by the balancer, denied", balancer, 8443, header, "www.example.org", behind, false},
		{"not by it", anybody, 443, "", "www.example.org", anybody, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mark, msg := g.caddy.log.mark(), msgDenied
			if tc.admits {
				msg = msgAllowed
			}
			switch err := get(tc.from, tc.port, tc.said, tc.asks); {
			case tc.admits && err != nil:
				t.Error(err)
			case !tc.admits && (err == nil || !strings.Contains(err.Error(), "unrecognized name")):
				t.Errorf("%v, want unrecognized_name", err)
			}
			if d := g.decided(t, mark, msg, tc.asks); d.Client != tc.client || d.Port != 443 {
				t.Errorf("decision %+v, want client %s and port 443", d, tc.client)
			}
		})
	}
	for _, tc := range []struct {
		name string
		from netip.Addr
		said string
	}{
		{"a header of somebody else's", anybody, header},
		{"somebody else", anybody, ""},
		{"the balancer, without a header", balancer, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mark := g.caddy.log.mark()
			err := get(tc.from, 8443, tc.said, allowedHost)
			if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
				t.Errorf("%v, want it closed", err)
			}
			for _, d := range g.decisions(mark) {
				if d.Name == allowedHost && d.Client != behind { // not the end of a tunnel from before
					t.Errorf("decision %+v, want none", d)
				}
			}
		})
	}
}
