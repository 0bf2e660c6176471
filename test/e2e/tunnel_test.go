//go:build linux

package e2e

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// How tunnels end, and what they leave behind.
func TestTunnel(t *testing.T) { byEachWay(t, testTunnel) }

func testTunnel(t *testing.T, c config) {
	const name, idle = "up.example.com", 2 * time.Second
	l := newLab(t)
	c.policy, c.options = allowing(name), "idle_timeout 2s\n\t\thello_timeout 1s"
	g := l.start(t, c)
	l.internet.dns.set(name, addrs(webAddr))
	// The upstream's end of each tunnel, once the hello has gone back.
	upstreams := make(chan *net.TCPConn)
	hello := len(realHello(&tls.Config{ServerName: name}))
	_, err := l.internet.serve(l.internet.ns, netip.AddrPortFrom(webAddr, 443), func(c net.Conn) {
		if _, err := io.CopyN(c, c, int64(hello)); err != nil {
			_ = c.Close()
			return
		}
		upstreams <- c.(*net.TCPConn)
	})
	if err != nil {
		t.Fatal(err)
	}
	open := func(t *testing.T) (client, upstream *net.TCPConn) {
		t.Helper()
		client = l.open(t, name)
		select {
		case upstream = <-upstreams:
			t.Cleanup(func() { _ = upstream.Close() })
		case <-time.After(5 * time.Second):
			t.Fatal("the upstream has no connection")
		}
		return client, upstream
	}
	open(t) // what is opened once and kept, such as the resolver's socket, is there from now on
	must(t, 10*time.Second, "the first tunnel ends", func() bool { return g.metric(t, "caddy_sandboxallow_open_tunnels") == 0 })
	// Of the descriptors, the sockets: some pipes are kept for the next tunnel.
	_, before := g.caddy.descriptors(t)
	settles := func(t *testing.T, d time.Duration) {
		t.Helper()
		must(t, d, "as many sockets as before, and no open tunnel", func() bool {
			_, sockets := g.caddy.descriptors(t)
			return sockets <= before && g.metric(t, "caddy_sandboxallow_open_tunnels") == 0
		})
	}

	t.Run("half-close", func(t *testing.T) {
		client, upstream := open(t)
		// The client says all it has to say, and the answer comes after that.
		if _, err := client.Write([]byte("question")); err != nil {
			t.Fatal(err)
		}
		if err := client.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(upstream); err != nil || string(got) != "question" {
			t.Errorf("the upstream got %q, %v", got, err)
		}
		if _, err := upstream.Write([]byte("answer")); err != nil {
			t.Fatal(err)
		}
		_ = upstream.Close()
		if got, err := io.ReadAll(client); err != nil || string(got) != "answer" {
			t.Errorf("the client got %q, %v", got, err)
		}
		settles(t, time.Second)
	})
	t.Run("ops-003", func(t *testing.T) {
		for range 20 {
			client, upstream := open(t)
			_ = upstream.Close()
			// The client hears of it at once, and does not close.
			_ = client.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := client.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the client reads %v, want EOF", err)
			}
		}
		settles(t, idle+3*time.Second)
	})
	t.Run("ops-005", func(t *testing.T) {
		client, upstream := open(t)
		sent := bytes.Repeat([]byte("x"), 10<<10)
		if _, err := upstream.Write(sent); err != nil {
			t.Fatal(err)
		}
		_ = client.SetReadDeadline(time.Now().Add(5 * time.Second))
		got := make([]byte, len(sent))
		if n, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d octets, %v, want what was sent before the reset", n, err)
		}
		_ = upstream.SetLinger(0)
		_ = upstream.Close()
		_ = client.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client reads %v, want a reset", err)
		}
		settles(t, time.Second)
	})
	t.Run("ops-026", func(t *testing.T) {
		mark := g.caddy.log.mark()
		for range 50 {
			c, err := l.sandbox.dial("tcp", gatewayTLS)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
		}
		// One that waits for the gateway to speak first, as some checks do.
		if answer := l.send(t, nil); len(answer) != 0 {
			t.Errorf("%x came back to silence", answer)
		}
		settles(t, 3*time.Second)
		if lines := g.caddy.log.with(mark, `"level":"error"`); len(lines) != 0 {
			t.Errorf("logged as errors: %q", lines)
		}
		var ds []decision
		must(t, 5*time.Second, "the last one is logged", func() bool { ds = g.decisions(mark); return len(ds) > 0 })
		if len(ds) != 1 || ds[0].Reason != "hello_timeout" {
			t.Errorf("50 connections that were closed at once and one that was not are %d decisions, want the last one: %+v", len(ds), ds)
		}
	})
	// The last one: the sandbox has no route after it.
	t.Run("ops-006", func(t *testing.T) {
		for range 5 {
			open(t)
		}
		if err := l.sandbox.ip("link", "set", linkGateway, "down"); err != nil {
			t.Fatal(err)
		}
		settles(t, idle+3*time.Second)
	})
}

// The bytes of a tunnel do not pass through the process: what it reads and writes does not grow with them.
func TestSplice(t *testing.T) {
	need(t, "curl")
	const size = 128 << 20
	l := newLab(t)
	g := l.start(t, config{policy: allowing("small.example.com", "big.example.com")})
	for _, name := range []string{"small.example.com", "big.example.com"} {
		if _, err := l.internet.host(name, webAddr); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range []way{overTLS, byConnect} {
		t.Run(w.name, func(t *testing.T) {
			if out, err := l.curlBy(w, w.url("small.example.com")); err != nil || out != page("small.example.com") {
				t.Fatalf("%q, %v", out, err)
			}
			readBefore, writtenBefore := g.caddy.io(t)
			mark := g.caddy.log.mark()
			if _, err := l.curlBy(w, w.url("big.example.com")+fmt.Sprintf("data?size=%d", size), "--output", "/dev/null"); err != nil {
				t.Fatal(err)
			}
			if d := g.decidedBy(t, w.layer, mark, msgClosed, "big.example.com"); d.BytesOut < size {
				t.Errorf("%d octets recorded, want %d and more", d.BytesOut, size)
			}
			read, written := g.caddy.io(t)
			if r, w := read-readBefore, written-writtenBefore; r > size/100 || w > size/100 {
				t.Errorf("caddy read %d octets and wrote %d for a tunnel of %d", r, w, size)
			}
		})
	}
}
