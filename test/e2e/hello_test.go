//go:build linux

package e2e

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a client may send first, against an upstream that sends everything back: it arrives unchanged.
func TestHello(t *testing.T) { byEachWay(t, testHello) }

func testHello(t *testing.T, c config) {
	l := newLab(t)
	c.policy = allowing("echo.example.com", "api.example.com")
	g := l.start(t, c)
	l.internet.dns.set("echo.example.com", addrs(webAddr))
	upstream, err := l.internet.serve(l.internet.ns, netip.AddrPortFrom(webAddr, 443), echo)
	if err != nil {
		t.Fatal(err)
	}
	// The same real server has a name that is not allowed.
	l.internet.dns.set("evil.example.net", addrs(webAddr))
	hello := realHello(&tls.Config{ServerName: "echo.example.com"})

	for _, tc := range []struct {
		id       string
		min, max uint16
	}{
		{"sni-001", tls.VersionTLS13, tls.VersionTLS13},
		{"sni-002", tls.VersionTLS12, tls.VersionTLS12},
		{"sni-003/1.0", tls.VersionTLS10, tls.VersionTLS10},
		{"sni-003/1.1", tls.VersionTLS10, tls.VersionTLS11},
	} {
		t.Run(tc.id, func(t *testing.T) {
			c, err := l.sandbox.dial("tcp", gatewayTLS)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			hello := realHello(&tls.Config{ServerName: "echo.example.com", MinVersion: tc.min, MaxVersion: tc.max})
			// What follows the hello in the same segment belongs to the upstream too.
			if err := exchangeBytes(c, append(hello, bytes.Repeat([]byte{23, 3, 3, 0, 1, 0xff}, 50)...)); err != nil {
				t.Fatal(err)
			}
		})
	}

	t.Run("sni-033", func(t *testing.T) {
		c, err := l.sandbox.dial("tcp", gatewayTLS) // Go sets TCP_NODELAY
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		short := forgedHello(serverNames("echo.example.com"))
		for i := range short[:len(short)-1] {
			if _, err := c.Write(short[i : i+1]); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // the case: one octet a millisecond
		}
		if _, err := c.Write(short[len(short)-1:]); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(short))
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, short) {
			t.Errorf("%x came back, want %x: %v", got, short, err)
		}
	})

	t.Run("sni-037", func(t *testing.T) {
		const clients, cut = 100, 1400
		if len(hello) <= cut {
			t.Fatalf("the hello has %d octets: not post-quantum", len(hello))
		}
		var wg sync.WaitGroup
		for range clients {
			c, err := l.sandbox.dial("tcp", gatewayTLS)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				defer c.Close()
				if _, err := c.Write(hello[:cut]); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(50 * time.Millisecond) // the case: the second segment comes so much later
				if _, err := c.Write(hello[cut:]); err != nil {
					t.Error(err)
					return
				}
				got := make([]byte, len(hello))
				_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
				if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, hello) {
					t.Errorf("%d octets came back changed, or not: %v", len(hello), err)
				}
			})
		}
		wg.Wait()
	})

	t.Run("sni-050", func(t *testing.T) {
		for _, a := range []netip.Addr{gatewayAddr, gatewayAddr6} {
			c, err := l.sandbox.dial("udp", netip.AddrPortFrom(a, 443))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			// A QUIC version 1 Initial is 1,200 octets at least.
			if _, err := c.Write(append([]byte{0xc3, 0, 0, 0, 1}, make([]byte, 1195)...)); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
			if _, err := c.Read(make([]byte, 1500)); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("udp %s: %v, want the ICMP error that makes clients use TCP", a, err)
			}
		}
	})

	t.Run("sni-053", func(t *testing.T) {
		mark := g.caddy.log.mark()
		start := time.Now()
		if answer := l.send(t, nil); len(answer) != 0 {
			t.Errorf("%q came back", answer)
		}
		if d := time.Since(start); d < 3*time.Second || d > 8*time.Second {
			t.Errorf("closed after %s, want the 5s of hello_timeout", d)
		}
		g.denied(t, mark, "", "hello_timeout", "")
	})

	t.Run("sni-055", func(t *testing.T) {
		mark := g.caddy.log.mark()
		start := time.Now()
		answer := l.send(t, realHello(&tls.Config{ServerName: "evil.example.net"}))
		if a := alert(answer); a != alertUnrecognizedName {
			t.Errorf("alert %d (%x), want unrecognized_name", a, answer)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("denied after %s", d)
		}
		g.denied(t, mark, "evil.example.net", "not_allowed", "")
	})

	t.Run("sni-056", func(t *testing.T) {
		need(t, "curl")
		if _, err := l.internet.host("api.example.com", otherAddr); err != nil {
			t.Fatal(err)
		}
		curl := func(name string) (string, error) {
			return l.curl("https://"+name+"/", "--resolve", name+":443:"+gatewayAddr.String())
		}
		asked := g.coredns.log.mark()
		if out, err := curl("api.example.com"); err != nil || out != page("api.example.com") {
			t.Errorf("allowed: %q, %v", out, err)
		}
		if out, err := curl("evil.example.net"); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("denied: %q, %v", out, err)
		}
		for _, line := range g.coredns.log.lines(asked) {
			// Each question has a line of the log plugin. Ours may be of denials a second ago.
			if !strings.Contains(line, "plugin/sandboxallow: ") {
				t.Errorf("curl asked CoreDNS: %q", line)
			}
		}
	})

	t.Run("sni-057", func(t *testing.T) {
		for _, port := range []uint16{8443, 22, 81, 2019} {
			if c, err := l.sandbox.dial("tcp", netip.AddrPortFrom(gatewayAddr, port)); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("port %d: %v, %v, want a refused connection", port, c, err)
			}
		}
	})

	t.Run("sni-065", func(t *testing.T) {
		l.open(t, "echo.example.com")
		before := upstream.accepted.Load()
		if _, err := l.tunnel("evil.example.net"); !errors.Is(err, alertError(alertUnrecognizedName)) {
			t.Errorf("the name that is not allowed: %v, want unrecognized_name", err)
		}
		if n := upstream.accepted.Load(); n != before {
			t.Errorf("%d connections more to the address that both have", n-before)
		}
	})
}

// A hello of several segments gets through a path with a small MTU, and so does what follows.
func TestMTU(t *testing.T) {
	l := newLab(t)
	l.start(t, config{policy: "policy default {\n\tallow echo.example.com\n}\n"})
	l.internet.dns.set("echo.example.com", addrs(webAddr))
	if _, err := l.internet.serve(l.internet.ns, netip.AddrPortFrom(webAddr, 443), echo); err != nil {
		t.Fatal(err)
	}
	payload := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
	through := func(t *testing.T) {
		c := l.open(t, "echo.example.com")
		done := make(chan error, 1)
		go func() {
			_, err := c.Write(payload)
			done <- err
		}()
		got := make([]byte, len(payload))
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, payload) {
			t.Errorf("%d octets came back changed, or not: %v", len(payload), err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	set := func(t *testing.T, n *namespace, args ...string) {
		if err := n.ip(args...); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("ops-028/1280", func(t *testing.T) {
		set(t, l.sandbox, "link", "set", linkGateway, "mtu", "1280")
		set(t, l.gateway, "link", "set", linkSandbox, "mtu", "1280")
		set(t, l.gateway, "link", "set", linkInternet, "mtu", "1280")
		set(t, l.internet.ns, "link", "set", linkGateway, "mtu", "1280")
		through(t)
	})
	t.Run("ops-028/576", func(t *testing.T) {
		// Of the route: a link with less than 1280 has no IPv6.
		set(t, l.sandbox, "route", "replace", "172.30.0.0/24", "dev", linkGateway, "src", sandboxAddr.String(), "mtu", "lock", "576")
		set(t, l.gateway, "route", "replace", "172.30.0.0/24", "dev", linkSandbox, "src", gatewayAddr.String(), "mtu", "lock", "576")
		through(t)
	})
}
