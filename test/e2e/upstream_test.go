//go:build linux

package e2e

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// What the resolver and the addresses that it gives can do to a connection.
func TestUpstream(t *testing.T) {
	l := newLab(t)
	g := l.start(t, config{policy: "policy default {\n\tallow .example.com\n}\n"})
	syns := newTap(t, l.gateway, func(p packet) bool { return p.out && p.syn && p.to != markAddr.Addr() })
	to := func(a netip.Addr) int {
		n := 0
		for _, p := range syns.packets(t) {
			if p.to == a {
				n++
			}
		}
		return n
	}
	host := func(t *testing.T, name string, a netip.Addr, replies ...reply) *server {
		t.Helper()
		s, err := l.internet.host(name, a)
		if err != nil {
			t.Fatal(err)
		}
		l.internet.dns.set(name, replies...)
		return s
	}
	refused := func(t *testing.T, name string, alert int, reason string) {
		t.Helper()
		mark := g.caddy.log.mark()
		if _, err := l.tunnel(name); !errors.Is(err, alertError(alert)) {
			t.Errorf("%s: %v, want alert %d", name, err, alert)
		}
		g.denied(t, mark, name, reason, "allow .example.com")
	}

	t.Run("dial-021", func(t *testing.T) {
		for i, a := range []netip.Addr{gatewayAddr, gatewayAddr6, publicAddr, publicAddr6, netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()} {
			name := fmt.Sprintf("own%d.example.com", i)
			l.internet.dns.set(name, addrs(a))
			refused(t, name, alertAccessDenied, "private_address")
			if n := to(a); n != 0 {
				t.Errorf("the gateway dialled itself on %s %d times", a, n)
			}
		}
	})
	t.Run("dial-029", func(t *testing.T) {
		loopback := netip.MustParseAddr("127.0.0.1")
		host(t, "rebind.example.com", webAddr, reply{addrs: []netip.Addr{webAddr}}, reply{addrs: []netip.Addr{loopback}})
		l.reaches(t, "rebind.example.com")
		if n := to(loopback); n != 0 {
			t.Errorf("%d connections to the second address", n)
		}
		// Once the first answer is used up, the second one is judged too.
		must(t, 10*time.Second, "the resolver is asked again", func() bool {
			_, err := l.tunnel("rebind.example.com")
			return errors.Is(err, alertError(alertAccessDenied))
		})
		if n := to(loopback); n != 0 {
			t.Errorf("%d connections to the second address", n)
		}
	})
	t.Run("dial-031", func(t *testing.T) {
		l.internet.dns.set("broken.example.com", reply{rcode: dns.RcodeServerFailure})
		start := time.Now()
		refused(t, "broken.example.com", alertInternalError, "resolver_error")
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("refused after %s", d)
		}
		refused(t, "missing.example.com", alertInternalError, "no_address")
	})
	t.Run("dial-037", func(t *testing.T) {
		host(t, "half-dead.example.com", otherAddr, addrs(silentAddr, otherAddr))
		start := time.Now()
		l.reaches(t, "half-dead.example.com")
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("connected after %s", d)
		}
	})
	t.Run("dial-038", func(t *testing.T) {
		host(t, "half-closed.example.com", otherAddr, addrs(refusingAddr, otherAddr))
		start := time.Now()
		l.reaches(t, "half-closed.example.com")
		if d := time.Since(start); d > time.Second {
			t.Errorf("connected after %s", d)
		}
	})
	t.Run("dial-039", func(t *testing.T) {
		host(t, "six-dead.example.com", otherAddr, addrs(silentAddr6, otherAddr))
		start := time.Now()
		l.reaches(t, "six-dead.example.com")
		if d := time.Since(start); d > time.Second {
			t.Errorf("connected after %s, want the 250ms of RFC 8305 §5 and little more", d)
		}
	})
	t.Run("all-dead", func(t *testing.T) {
		l.internet.dns.set("closed.example.com", addrs(refusingAddr))
		refused(t, "closed.example.com", alertInternalError, "dial_error")
		l.internet.dns.set("dead.example.com", addrs(silentAddr, silentAddr6))
		start := time.Now()
		refused(t, "dead.example.com", alertInternalError, "dial_error")
		if d := time.Since(start); d > 7*time.Second {
			t.Errorf("refused after %s, want the 5s of dial_timeout", d)
		}
	})
	t.Run("mixed", func(t *testing.T) {
		// A public and a private address: the public one is dialled, the other one never, not even as the
		// address of the family that is tried first.
		private4, private6 := netip.MustParseAddr("192.168.1.1"), netip.MustParseAddr("fd00:ec2::254")
		host(t, "mixed.example.com", otherAddr, addrs(private6, private4, otherAddr))
		for range 5 {
			l.reaches(t, "mixed.example.com")
		}
		if n := to(private4) + to(private6); n != 0 {
			t.Errorf("%d connections to the private addresses", n)
		}
	})
	t.Run("dial-043", func(t *testing.T) {
		for _, port := range []uint16{2019, 9153} {
			for _, a := range []netip.Addr{gatewayAddr, gatewayAddr6, publicAddr} {
				if c, err := l.sandbox.dial("tcp", netip.AddrPortFrom(a, port)); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("%s port %d: %v, %v, want a refused connection", a, port, c, err)
				}
			}
		}
		// No listener but those that the configuration asks for is where the sandbox could reach it.
		got := g.listeners(t)
		if want := []string{"tcp 443", "tcp 53", "tcp 80", "tcp 8080", "udp 53"}; !slices.Equal(got, want) {
			t.Errorf("listeners beyond loopback: %v, want %v", got, want)
		}
	})
	// The last one: it takes the resolver away.
	t.Run("dial-032", func(t *testing.T) {
		before := g.metric(t, "go_goroutines")
		l.internet.dns.hush(true)
		t.Run("silent", func(t *testing.T) {
			start := time.Now()
			var wg sync.WaitGroup
			for i := range 1000 {
				c, err := l.sandbox.dial("tcp", gatewayTLS)
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					defer c.Close()
					hello := realHello(&tls.Config{ServerName: fmt.Sprintf("silent%d.example.com", i%10)})
					if err := exchangeBytes(c, hello); !errors.Is(err, alertError(alertInternalError)) {
						t.Errorf("%v, want alert %d", err, alertInternalError)
					}
				})
			}
			wg.Wait()
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("1,000 clients were refused after %s", d)
			}
			mark := g.caddy.log.mark()
			start = time.Now()
			_, err := l.tunnel("silent.example.com")
			if d := time.Since(start); !errors.Is(err, alertError(alertInternalError)) || d > 6*time.Second {
				t.Errorf("%v after %s, want alert %d within 5s", err, d, alertInternalError)
			}
			g.denied(t, mark, "silent.example.com", "resolver_error", "allow .example.com")
		})
		t.Run("closed", func(t *testing.T) {
			l.internet.dns.close()
			start := time.Now()
			refused(t, "unreachable.example.com", alertInternalError, "resolver_error")
			if d := time.Since(start); d > 6*time.Second {
				t.Errorf("refused after %s", d)
			}
		})
		must(t, 15*time.Second, "the goroutines of the refused clients end", func() bool {
			return g.metric(t, "go_goroutines") < before+50
		})
	})
}

// The host's search domains are not for allowed names: each is looked up as it is.
func TestSearchDomain(t *testing.T) {
	l := newLab(t)
	if err := l.gateway.etc("resolv.conf", "search corp.internal example.net\nnameserver "+resolverAddr.String()+"\noptions ndots:5\n"); err != nil {
		t.Fatal(err)
	}
	g := l.start(t, config{policy: "policy default {\n\tallow api.example.com gone.example.com\n}\n"})
	for _, name := range []string{"api.example.com", "gone.example.com.corp.internal", "api.example.com.corp.internal"} {
		if _, err := l.internet.host(name, webAddr); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("dial-047", func(t *testing.T) {
		l.reaches(t, "api.example.com")
		mark := g.caddy.log.mark()
		if _, err := l.tunnel("gone.example.com"); !errors.Is(err, alertError(alertInternalError)) {
			t.Errorf("a name without an address: %v, want alert %d", err, alertInternalError)
		}
		g.denied(t, mark, "gone.example.com", "no_address", "allow api")
		if names := append(l.internet.dns.below("corp.internal"), l.internet.dns.below("example.net")...); len(names) != 0 {
			t.Errorf("the resolver was asked for %v", names)
		}
	})
}

// listeners returns the ports on which the product listens beyond loopback, as "tcp 443", sorted.
func (g *gateway) listeners(tb testing.TB) []string {
	tb.Helper()
	beyond, _ := g.sockets(tb)
	return beyond
}

// sockets is listeners, and those on loopback.
func (g *gateway) sockets(tb testing.TB) (beyond, loopback []string) {
	tb.Helper()
	for _, file := range []string{"tcp", "tcp6", "udp", "udp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", g.caddy.pid(), file))
		if err != nil {
			tb.Fatal(err)
		}
		defer f.Close()
		proto := file[:3]
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			// st of proc(5): 0A is listening; a UDP socket without a peer is 07.
			if len(fields) < 4 || fields[3] != map[string]string{"tcp": "0A", "udp": "07"}[proto] {
				continue
			}
			addr, hex, _ := strings.Cut(fields[1], ":")
			port, err := strconv.ParseUint(hex, 16, 16)
			if err != nil {
				continue
			}
			list := &beyond
			// In the byte order of the machine.
			if addr == "0100007F" || addr == "00000000000000000000000001000000" {
				list = &loopback
			}
			*list = append(*list, fmt.Sprintf("%s %d", proto, port))
		}
	}
	slices.Sort(beyond)
	slices.Sort(loopback)
	return slices.Compact(beyond), slices.Compact(loopback)
}
