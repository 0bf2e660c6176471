//go:build linux

package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// limitLab is a lab with an upstream that is echo, and a web server without TLS, and the product in front of
// them.
func limitLab(t *testing.T, c config) (*lab, *gateway) {
	t.Helper()
	l := newLab(t)
	c.policy = allowing(".example.com")
	g := l.start(t, c)
	l.internet.dns.set("echo.example.com", addrs(webAddr))
	if _, err := l.internet.serve(l.internet.ns, netip.AddrPortFrom(webAddr, 443), echo); err != nil {
		t.Fatal(err)
	}
	if _, err := l.internet.hostPlain("echo.example.com", webAddr); err != nil {
		t.Fatal(err)
	}
	return l, g
}

// crowd connects n clients, which all send their hello at once.
func (l *lab) crowd(t *testing.T, n int) (conns []net.Conn, errs []error) {
	t.Helper()
	hello := realHello(&tls.Config{ServerName: "echo.example.com"})
	errs = make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		c, err := l.sandbox.dial("tcp", gatewayTLS)
		if err != nil {
			errs[i] = err
			continue
		}
		conns = append(conns, c)
		wg.Go(func() { errs[i] = exchangeBytes(c, hello) })
	}
	wg.Wait()
	return conns, errs
}

// connections connects n clients to a listener at the same time, as far as the gateway accepts them within a
// moment.
func (l *lab) connections(n int, to netip.AddrPort) (conns []net.Conn) {
	accepted := make(chan net.Conn, n)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if c, err := l.sandbox.dialWithin(500*time.Millisecond, "tcp", to); err == nil {
				accepted <- c
			}
		})
	}
	wg.Wait()
	close(accepted)
	for c := range accepted {
		conns = append(conns, c)
	}
	return conns
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// With 256 descriptors and 500 clients, some are served, the others are told why not, and when they have gone
// the gateway serves again.
func TestDescriptors(t *testing.T) {
	for _, tc := range []struct {
		name string
		config
	}{
		{"ops-010", config{}},
		{"ops-010/one thread", config{env: []string{"GOMAXPROCS=1"}}},
		{"ops-010/layer4", config{layer4: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.files = 256
			_, g := limitLab(t, tc.config)
			g.stampede(t, gatewayTLS) // before there was any other connection
			g.serves(t)
			for range 3 {
				conns := g.overwhelm(t, 500)
				if n, _ := g.caddy.descriptors(t); n > 256 {
					t.Errorf("%d descriptors", n)
				}
				g.stampede(t, gatewayTLS)
				closeAll(conns)
				g.serves(t)
			}
			must(t, 10*time.Second, "no tunnel is left", func() bool { return g.metric(t, "caddy_sandboxallow_open_tunnels") == 0 })
			if n := g.metric(t, "caddy_sandboxallow_panics_total"); n != 0 {
				t.Errorf("%v panics", n)
			}
		})
	}
}

// overwhelm connects more clients than there is room for. Each of them gets a tunnel or a refusal, and each
// refusal is counted. The connections are left as they are.
func (g *gateway) overwhelm(t *testing.T, clients int) []net.Conn {
	t.Helper()
	const limit = `caddy_sandboxallow_decisions_total{layer="tls",policy="default",reason="limit",verdict="deny"}`
	mark, before := g.caddy.log.mark(), g.metric(t, limit)
	conns, errs := g.lab.crowd(t, clients)
	served, refused := 0, 0
	for _, err := range errs {
		switch {
		case err == nil:
			served++
		case errors.Is(err, alertError(alertInternalError)):
			refused++
		case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
			// The alert was there, but so was the client's hello, still unread.
			refused++
		default:
			t.Errorf("a client got neither a tunnel nor a refusal: %v", err)
		}
	}
	t.Logf("%d served, %d refused", served, refused)
	if served == 0 || refused == 0 {
		t.Error("want some of both")
	}
	must(t, 5*time.Second, "each refusal is counted with reason limit", func() bool {
		return g.metric(t, limit) >= before+float64(refused) // those of a stampede may still come
	})
	must(t, 5*time.Second, "refusals are logged, folded to a few lines", func() bool {
		return slices.ContainsFunc(g.decisions(mark), func(d decision) bool { return d.Reason == "limit" && d.Verdict == "deny" })
	})
	return conns
}

// stampede has 500 clients of a listener connect, say nothing and go, while the process does not run for a moment, which is
// what a busy machine does to it. Those that the kernel has accepted by then are all there at once.
func (g *gateway) stampede(t *testing.T, to netip.AddrPort) {
	t.Helper()
	g.caddy.signal(t, syscall.SIGSTOP)
	silent := g.lab.connections(500, to)
	g.caddy.signal(t, syscall.SIGCONT)
	closeAll(silent)
}

// visits are what a client of each listener sends that is served for as long as it likes, and how the answer
// begins.
var visits = func() map[netip.AddrPort]struct{ sent, begins string } {
	const host = "echo.example.com"
	hello := string(realHello(&tls.Config{ServerName: host}))
	return map[netip.AddrPort]struct{ sent, begins string }{
		gatewayTLS:   {hello, "\x16\x03"},
		gatewayHTTP:  {head("GET /events?every=1m", host), "HTTP/1.1 200 "},
		gatewayProxy: {head("CONNECT "+host+":443", host) + hello, "HTTP/1.1 200 "},
	}
}()

// serves waits until the gateway has room on each of its listeners.
func (g *gateway) serves(t *testing.T) {
	t.Helper()
	if !g.caddy.running() {
		t.Fatalf("caddy ended: %v", g.caddy.err)
	}
	for to, visit := range visits {
		must(t, 15*time.Second, "the gateway serves again on "+to.String(), func() bool {
			c, err := g.lab.sandbox.dialWithin(time.Second, "tcp", to)
			if err != nil {
				return false
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			if _, err := io.WriteString(c, visit.sent); err != nil {
				return false
			}
			got := make([]byte, len(visit.begins))
			_, err = io.ReadFull(c, got)
			return err == nil && string(got) == visit.begins
		})
	}
}

// With 256 descriptors, a crowd on any listener, silent or served, leaves all of them serving once it has gone.
func TestCrowds(t *testing.T) {
	l, g := limitLab(t, config{files: 256})
	descriptors := func(t *testing.T) {
		t.Helper()
		if n, _ := g.caddy.descriptors(t); n > 256 {
			t.Errorf("%d descriptors", n)
		}
	}
	for to, visit := range visits {
		t.Run(to.String(), func(t *testing.T) {
			g.stampede(t, to)
			silent := l.connections(500, to)
			descriptors(t)
			g.stampede(t, to)
			closeAll(silent)
			g.serves(t)

			// Those that had a place may have given up by the time the last ones have connected: others come, until
			// some are served.
			var served []net.Conn
			must(t, 20*time.Second, "some of the crowd are served", func() bool {
				crowd := l.connections(500, to)
				for _, c := range crowd {
					_, _ = io.WriteString(c, visit.sent) // who is refused, may have been so already
				}
				served = append(served, crowd...)
				return g.metric(t, "caddy_sandboxallow_open_tunnels") > 10
			})
			descriptors(t)
			g.stampede(t, to)
			closeAll(served)
			g.serves(t)
		})
	}
	t.Run("connections that wait for a request", func(t *testing.T) {
		c := l.converse(t, gatewayHTTP)
		for i := range 300 {
			name := fmt.Sprintf("name%d.example.com", i)
			l.internet.dns.set(name, addrs(webAddr))
			c.ask(t, head("GET /", name)).is(t, page(name))
		}
		descriptors(t)
		closeAll(g.overwhelm(t, 500))
		g.serves(t)
	})
	if n := g.metric(t, "caddy_sandboxallow_panics_total"); n != 0 {
		t.Errorf("%v panics", n)
	}
}

// max_tunnels is kept to the number.
func TestMaxTunnels(t *testing.T) { byEachWay(t, testMaxTunnels) }

func testMaxTunnels(t *testing.T, c config) {
	c.options = "max_tunnels 10"
	l, g := limitLab(t, c)
	conns, errs := l.crowd(t, 30)
	defer closeAll(conns)
	served := len(slices.DeleteFunc(errs, func(err error) bool { return err != nil }))
	if served != 10 {
		t.Errorf("%d of 30 clients are served, want 10", served)
	}
	if n := g.metric(t, "caddy_sandboxallow_open_tunnels"); n != 10 {
		t.Errorf("%v tunnels open, want 10", n)
	}
	if n := g.metric(t, `caddy_sandboxallow_decisions_total{layer="tls",policy="default",reason="limit",verdict="deny"}`); n != 20 {
		t.Errorf("%v refused for the limit, want 20", n)
	}
}

// Connections to the HTTP servers count too, those that say nothing as well: they hold the descriptors that
// tunnels need.
func TestMaxConnections(t *testing.T) {
	for _, to := range []netip.AddrPort{gatewayHTTP, gatewayProxy} {
		t.Run(to.String(), func(t *testing.T) {
			l, g := limitLab(t, config{options: "max_tunnels 10"})
			conns := l.connections(30, to)
			defer closeAll(conns)
			var held atomic.Int64
			var wg sync.WaitGroup
			for _, c := range conns {
				wg.Go(func() {
					_ = c.SetReadDeadline(time.Now().Add(time.Second))
					b, err := io.ReadAll(c)
					switch {
					case errors.Is(err, os.ErrDeadlineExceeded) && len(b) == 0:
						held.Add(1)
					case !strings.HasPrefix(string(b), "HTTP/1.1 503 ") || !strings.Contains(string(b), reasonHeader+": limit\r\n"):
						t.Errorf("%q, %v, want 503 with reason limit", b, err)
					}
				})
			}
			wg.Wait()
			if len(conns) != 30 || held.Load() != 10 {
				t.Errorf("%d of %d connections are held, want 10 of 30", held.Load(), len(conns))
			}
			if _, err := l.tunnel("echo.example.com"); !errors.Is(err, alertError(alertInternalError)) {
				t.Errorf("a tunnel beside them: %v, want alert %d", err, alertInternalError)
			}
			closeAll(conns)
			g.serves(t)
			must(t, 5*time.Second, "no place is left taken", func() bool {
				conns, errs := l.crowd(t, 10)
				closeAll(conns)
				return errors.Join(errs...) == nil
			})
		})
	}
}

// SIGTERM ends the process although a thousand tunnels are open.
func TestShutdown(t *testing.T) {
	t.Run("ops-025", func(t *testing.T) {
		l, g := limitLab(t, config{})
		conns, errs := l.crowd(t, 1000)
		defer closeAll(conns)
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		for _, p := range []*process{g.caddy, g.coredns} {
			p.signal(t, syscall.SIGTERM)
		}
		for _, p := range []*process{g.caddy, g.coredns} {
			if code := p.ended(t, 10*time.Second); code != 0 {
				t.Errorf("%s ended with code %d", p.name, code)
			}
		}
		t.Logf("ended after %s", time.Since(start).Round(time.Millisecond))
		for _, c := range conns {
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Fatalf("a tunnel outlived the process: %d, %v", n, err)
			}
		}
	})
}
