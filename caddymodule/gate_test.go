package caddymodule

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sandboxallow/sandboxallow/internal/decision"
)

// Connections count from accept(2) on, whether they say something or not.
func TestGate(t *testing.T) {
	g := startHTTP(t, setup{options: "max_tunnels 3", sites: []string{transparentSite, forwardProxy}})
	www := g.host("www.example.com")
	places := func(n int64) {
		t.Helper()
		waitFor(t, fmt.Sprintf("%d places to be taken", n), func() bool { return open.held.Load() == n })
	}
	refused := func(site int) {
		t.Helper()
		g.skipLog()
		for _, first := range []bool{false, true} { // whoever speaks first
			c := g.dial(site)
			if first {
				io.WriteString(c, "GET / HTTP/1.1\r\n"+www+"\r\n\r\n")
			}
			r := c.receive("GET")
			if !r.is(503, "limit") || !r.close {
				t.Errorf("above the limit, client speaks first: %v: got %+v", first, r)
			}
			if err := c.closed(); err != nil {
				t.Error(err)
			}
			if e := g.entry(decision.MsgDenied); e["reason"] != "limit" || e["client"] != "127.0.0.1" || !strings.Contains(fmt.Sprint(e["error"]), "max_tunnels") {
				t.Errorf("log: %v", e)
			}
		}
	}

	silent := g.dial(0)
	places(1)
	idle := g.dial(1)
	if r := idle.get("GET / HTTP/1.1", www); !r.is(400, "bad_request") {
		t.Errorf("got %+v", r)
	}
	busy := g.dial(0)
	if r := busy.get("GET / HTTP/1.1", www); r.status != 200 {
		t.Errorf("got %+v", r)
	}
	places(3)
	refused(0)
	refused(1)
	if got := testutil.ToFloat64(g.app.metrics.decisions.WithLabelValues("http", "default", "deny", "limit")); got != 4 {
		t.Errorf("decisions_total is %v, want 4", got)
	}
	for range 3 { // what is in takes no place anew
		if r := busy.get("GET / HTTP/1.1", www); r.status != 200 {
			t.Errorf("at the limit: got %+v", r)
		}
	}
	places(3)
	silent.Close()
	places(2)
	if r := g.ask(0, "GET / HTTP/1.1", www); r.status != 200 {
		t.Errorf("below the limit again: got %+v", r)
	}
	places(2)
	idle.Close()
	busy.Close()
	places(0)

	// One that is taken over is held until it ends.
	webSocket(g.web)
	ws := g.dial(0)
	ws.upgrade(www)
	tunnel := g.dial(1)
	if r := tunnel.connect(fmt.Sprintf("www.example.com:%d", g.web.port)); r.status != 200 {
		t.Fatalf("got %+v", r)
	}
	third := g.dial(0)
	places(3)
	refused(0)
	ws.Close()
	places(2)
	tunnel.Close()
	places(1)
	third.Close()
	places(0)

	// So is one whose request is denied, ends in the middle, or closes the connection itself.
	for range 5 {
		g.ask(0, "GET / HTTP/1.1", g.host("evil.test"))
		g.ask(0, "GET / HTTP/1.1", www, "Connection: close")
		g.ask(0, "GET / HTTP/1.0", www)
		g.ask(0, "nonsense, and nothing but nonsense")
		c := g.dial(0)
		io.WriteString(c, "GET / HTT")
		c.Close()
		g.ask(1, fmt.Sprintf("CONNECT evil.test:%d HTTP/1.1", g.web.port))
		places(0)
	}
}

// connect opens a tunnel. What the upstream says is not part of the response.
func (c *client) connect(target string, fields ...string) response {
	c.t.Helper()
	c.send(append([]string{"CONNECT " + target + " HTTP/1.1"}, fields...)...)
	r, err := http.ReadResponse(c.in, &http.Request{Method: "CONNECT"})
	if err != nil {
		return response{err: err}
	}
	if r.StatusCode == 200 {
		return response{status: 200, header: r.Header}
	}
	body, err := io.ReadAll(r.Body)
	return response{r.StatusCode, r.Header, string(body), r.Trailer, r.Close, err}
}

// A connection of which another handler takes possession is that handler's.
func TestGateOtherHandler(t *testing.T) {
	g := startHTTP(t, setup{sites: []string{"handle /ws {\nreverse_proxy 127.0.0.2:%d\n}\nhandle {\nsandboxallow {\nupstream_port %d\n}\n}"}})
	webSocket(g.web)
	for _, before := range []bool{false, true} { // a request of ours on the same connection
		c := g.dial(0)
		if before {
			if r := c.get("GET / HTTP/1.1", g.host("evil.test")); !r.is(403, "not_allowed") {
				t.Fatalf("got %+v", r)
			}
		}
		c.send("GET /ws HTTP/1.1", g.host("www.example.com"), "Connection: Upgrade", "Upgrade: websocket")
		if r, err := http.ReadResponse(c.in, nil); err != nil || r.StatusCode != 101 {
			t.Fatalf("got %+v, %v", r, err)
		}
		c.Close()
		waitFor(t, "the place to be given back", func() bool { return open.held.Load() == 0 })
	}
}

// In HTTP/2 a connection takes a place, and each request on it.
func TestGateHTTP2(t *testing.T) {
	g := startHTTP(t, setup{options: "max_tunnels 3"})
	g.web.on("/slow", func(c *served, r request) {
		io.ReadFull(c.in, make([]byte, 1)) // until the connection ends
	})
	h := g.dialHTTP2(0)
	waitFor(t, "the connection to be counted", func() bool { return open.held.Load() == 1 })
	host := fmt.Sprintf("www.example.com:%d", g.web.port)
	a, b := h.get(host, "/slow"), h.get(host, "/slow")
	waitFor(t, "the requests to be counted", func() bool { return open.held.Load() == 3 })
	c := h.get(host, "/")
	if r := c.response(); !r.is(503, "limit") {
		t.Errorf("above the limit: got %+v", r)
	}
	if r := g.ask(0, "GET / HTTP/1.1", "Host: "+host); !r.is(503, "limit") {
		t.Errorf("another connection: got %+v", r)
	}
	a.reset()
	waitFor(t, "the place to be given back", func() bool { return open.held.Load() == 2 })
	if r := h.get(host, "/").response(); r.status != 200 {
		t.Errorf("below the limit again: got %+v", r)
	}
	b.reset()
	h.Close()
	waitFor(t, "the places to be given back", func() bool { return open.held.Load() == 0 })
}

// A server that both sites are in is counted once.
func TestGateOnce(t *testing.T) {
	g := startHTTP(t, setup{sites: []string{"@a path /a\nsandboxallow @a {\nupstream_port %d\n}\nsandboxallow {\nupstream_port %d\n}"}})
	c := g.dial(0)
	for _, path := range []string{"/a", "/b"} {
		if r := c.get("GET "+path+" HTTP/1.1", g.host("www.example.com")); r.status != 200 {
			t.Errorf("got %+v", r)
		}
		if n := open.held.Load(); n != 1 {
			t.Errorf("%d places are taken, want 1", n)
		}
	}
}

// A crowd that comes and goes leaves nothing behind.
func TestGateCrowd(t *testing.T) {
	g := startHTTP(t, setup{options: "max_tunnels 20"})
	www := g.host("www.example.com")
	done := make(chan response)
	for range 100 {
		go func() {
			c := g.dial(0)
			defer c.Close()
			io.WriteString(c, "GET / HTTP/1.1\r\n"+www+"\r\n\r\n")
			r := c.receive("GET")
			time.Sleep(time.Millisecond)
			done <- r
		}()
	}
	for range 100 {
		if r := <-done; r.status != 200 && !r.is(503, "limit") {
			t.Errorf("got %+v", r)
		}
	}
	waitFor(t, "all places to be given back", func() bool { return open.held.Load() == 0 })
	if r := g.ask(0, "GET / HTTP/1.1", www); r.status != 200 {
		t.Errorf("afterwards: got %+v", r)
	}
}
