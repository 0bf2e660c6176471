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

	"golang.org/x/sys/unix"
)

// Around a reload, as at any other time, a name that a site brokers goes by that site or not at all: no client gets the
// certificate of the server itself. That a connection is lost which comes just then is how Caddy reloads: with the
// server that had not begun with it, or, by a route of layer4, with the socket that it waited at.
func TestBrokerReload(t *testing.T) { byEachWay(t, testBrokerReload) }

func testBrokerReload(t *testing.T, c config) {
	const later = "later.example.net" // brokered by the second configuration alone
	l := newLab(t)
	bearer := "Bearer {file." + l.secret(t, "openai", openAIKey) + "}"
	site := brokered(openAI, "", "https://"+openAI, "Authorization", bearer)
	c.policy, c.sites = allowing(openAI, later), site
	g, a := l.startBroker(t, c)
	root := l.trust(t, g)
	key := field{"Authorization", "Bearer " + openAIKey}
	for _, name := range []string{openAI, later} {
		if err := a.host(l.internet, name, key, otherAddr); err != nil {
			t.Fatal(err)
		}
	}
	// once asks over a connection of its own, and reports whether it was brokered.
	once := func(name string) (bool, error) {
		c, err := l.sandbox.dial("tcp", gatewayTLS)
		if err != nil {
			return false, err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		s := tls.Client(c, l.ca.client(name))
		if err := s.Handshake(); err != nil {
			return false, err
		}
		chain := s.ConnectionState().VerifiedChains[0]
		ours := chain[len(chain)-1].Equal(root)
		if _, err := fmt.Fprint(s, head("GET /v1/models", name, "Connection: close")); err != nil {
			return ours, err
		}
		resp, err := http.ReadResponse(converseOver(s).r, nil)
		if err != nil {
			return ours, err
		}
		defer resp.Body.Close()
		if ours && resp.StatusCode != http.StatusOK {
			return ours, fmt.Errorf("%s, %s", resp.Status, resp.Header.Get(reasonHeader))
		}
		return ours, nil
	}
	reload := func() { g.reloadCaddy(t, l.publicRoots(t)) }

	kept := converseOver(l.secure(t, openAI))
	kept.ask(t, head("GET /v1/models", openAI)).is(t, welcome)
	served, lost := whileVisited(t, func() (lost bool, err error) {
		ours, err := once(openAI)
		lost = errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err == nil && !ours {
			err = errors.New("not brokered")
		}
		return lost, err
	}, func() {
		for range 5 {
			reload()
		}
	})
	if served < 50 || lost > served/10 {
		t.Errorf("%d requests, and %d lost", served, lost)
	}
	// What was open is served to its end, or is closed; it is never handed to somebody else.
	if _, err := fmt.Fprint(kept, head("GET /v1/models", openAI)); err == nil {
		if resp, err := http.ReadResponse(kept.r, nil); err == nil && resp.StatusCode != http.StatusOK {
			t.Errorf("a connection from before: %s", resp.Status)
		}
	}

	// A site that comes is there from the first connection on, and one that goes is gone.
	if ours, err := once(later); err != nil || ours {
		t.Errorf("%s, which no site brokers yet: brokered %v, %v", later, ours, err)
	}
	g.write(t, "Caddyfile", strings.ReplaceAll(g.read(t, "Caddyfile"), openAI, later))
	reload()
	for range 20 {
		if ours, err := once(later); err != nil || !ours {
			t.Errorf("%s: brokered %v, %v", later, ours, err)
		}
		if ours, err := once(openAI); err != nil || ours {
			t.Errorf("%s, whose site is gone: brokered %v, %v", openAI, ours, err)
		}
	}
	n := a.count()
	if resp := converseOver(l.secure(t, openAI)).ask(t, head("GET /v1/models", openAI)); resp.status != http.StatusUnauthorized {
		t.Errorf("%s without its site: %+v", openAI, resp)
	}
	for _, c := range a.since(n) {
		if c.Header.Get("Authorization") != "" {
			t.Errorf("the upstream got %q", c.Header)
		}
	}
}

// What a configuration must not be, since it would look like brokering and be none: the gateway does not start.
func TestBrokerMistakes(t *testing.T) {
	l := newLab(t)
	site := func(address, lines string) string { return address + " {\n" + lines + "\n}\n" }
	proxy := "\treverse_proxy https://" + openAI + " {\n\t\ttransport sandboxallow\n\t}"
	for _, tc := range []struct{ name, sites, says string }{
		{"port of its own", site("https://"+openAI, "\tbind 0.0.0.0\n\tsandboxallow broker\n"+proxy), "sandboxallow/broker"},
		{"any host", site("https://", "\tsandboxallow broker\n"+proxy), "https://"},
		{"without TLS", site("http://"+openAI, "\tsandboxallow broker\n"+proxy), "https://"},
		{"bound, and does not broker", site("https://"+openAI, "\tbind sandboxallow/broker\n\trespond hello"), "sandboxallow broker"},
		{"in a handle block", site("https://"+openAI, "\tsandboxallow broker\n\thandle {\n"+proxy+"\n\t}"), "handle"},
		{"not HTTPS to the upstream", site("https://"+openAI, "\tsandboxallow broker\n\treverse_proxy http://"+openAI+" {\n\t\ttransport sandboxallow\n\t}"), "HTTPS"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := l.prepare(t, config{policy: allowing(openAI), sites: tc.sites, global: "skip_install_trust"})
			p := g.startCaddy(t, config{})
			if code := p.ended(t, startTimeout); code == 0 {
				t.Error("it started")
			}
			if all := p.log.tail(5); !strings.Contains(all, tc.says) {
				t.Errorf("no %q in\n%s", tc.says, all)
			}
		})
	}
}

// The listener of Postgres is no way by a site, nor one to it.
func TestBrokerPostgres(t *testing.T) {
	l := newLab(t)
	bearer := "Bearer {file." + l.secret(t, "openai", openAIKey) + "}"
	g := l.start(t, config{
		policy: allowing(openAI + ":443,5432"),
		sites:  brokered(openAI, "", "https://"+openAI, "Authorization", bearer),
		env:    []string{l.publicRoots(t)},
		global: layer4(layer4Route(":5432", "sandboxallow postgres", "upstream_port 5432"),
			layer4Route(":5433", "sandboxallow postgres", "upstream_port 443")),
	})
	upstream, err := l.internet.host(openAI, otherAddr)
	if err != nil {
		t.Fatal(err)
	}
	for port, to := range map[uint16]uint16{5432: 5432, 5433: 443} {
		mark := g.caddy.log.mark()
		c := l.converse(t, netip.AddrPortFrom(gatewayAddr, port))
		c.say(t, "\x00\x00\x00\x08\x04\xd2\x16\x2f") // SSLRequest
		answer := make([]byte, 1)
		if _, err := io.ReadFull(c, answer); err != nil || answer[0] != 'S' {
			t.Fatalf("%q to SSLRequest, %v", answer, err)
		}
		// Whatever the certificate: libpq does not look at it by default.
		s := tls.Client(c, &tls.Config{ServerName: openAI, InsecureSkipVerify: true})
		_, _ = io.WriteString(s, head("GET /v1/models", openAI))
		if said, _ := io.ReadAll(s); !strings.Contains(string(said), "not_brokered") || strings.Contains(string(said), "HTTP/1.1") {
			t.Errorf("port %d: %q", to, said)
		}
		if d := g.decidedBy(t, "postgres", mark, msgDenied, openAI); d.Reason != "not_brokered" || d.Port != to {
			t.Errorf("decision %+v, want not_brokered on port %d", d, to)
		}
	}
	if n := upstream.accepted.Load(); n != 0 {
		t.Errorf("%d connections to the upstream", n)
	}
}
