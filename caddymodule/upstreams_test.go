package caddymodule

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// A connection to an upstream is used again, and costs neither a look-up nor a dial then.
func TestUpstreamsReuse(t *testing.T) {
	g := startHTTP(t, setup{sites: []string{transparentSite, forwardProxy}})
	www := g.host("www.example.com")
	c := g.dial(0)
	for range 20 {
		if r := c.get("GET / HTTP/1.1", www); r.body != "connection 1" {
			t.Fatalf("got %+v", r)
		}
	}
	for range 5 { // on other connections of clients, through the other site, and with a body
		if r := g.ask(0, "GET / HTTP/1.1", www); r.body != "connection 1" {
			t.Errorf("got %+v", r)
		}
		if r := g.ask(1, fmt.Sprintf("GET http://www.example.com:%d/ HTTP/1.1", g.web.port), "Host: x"); r.body != "connection 1" {
			t.Errorf("got %+v", r)
		}
		c := g.dial(0)
		c.send("POST / HTTP/1.1", www, "Content-Length: 1")
		io.WriteString(c, "x")
		if r := c.receive("POST"); r.body != "connection 1" {
			t.Errorf("got %+v", r)
		}
	}
	if n, m := samples(t, g.app.metrics.resolve), samples(t, g.app.metrics.dial); n != 1 || m != 1 {
		t.Errorf("%d names resolved, %d addresses dialled, want one each", n, m)
	}
	// Names do not share one, be it to the same address.
	if r := g.ask(0, "GET / HTTP/1.1", g.host("api.example.com")); r.body != "connection 2" {
		t.Errorf("got %+v", r)
	}
}

// A connection that `private` has lifted serves nobody whose policy has no such line, at whichever site.
func TestUpstreamsApart(t *testing.T) {
	const with, without = "\tports %d\n\tallow .example.com\n\tprivate 127.0.0.2\n", "\tports %d\n\tallow .example.com\n"
	for _, tc := range []struct {
		name, document string
		sites          []string
	}{
		{"client with, default without", "policy default {\n" + without + "}\npolicy lifted {\n\tclient 127.0.0.7\n" + with + "}\n", nil},
		{"listener without", "policy default {\n" + without + "}\npolicy lifted {\n\tclient 127.0.0.7\n" + with + "}\npolicy strict {\n\tclient 10.0.0.1\n" + without + "}\n",
			[]string{"sandboxallow {\nupstream_port %d\npolicy lifted\n}", transparentSite, "sandboxallow {\nupstream_port %d\npolicy strict\n}"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := startHTTP(t, setup{document: tc.document, sites: tc.sites})
			www := g.host("www.example.com")
			for round := range 3 {
				for site := range g.addrs {
					lifted := site < 2
					r := g.dial(site, "127.0.0.7").get("GET / HTTP/1.1", www)
					if lifted != (r.status == 200) || !lifted && !r.is(403, "private_address") {
						t.Errorf("round %d, site %d, with the line: got %+v", round, site, r)
					}
					if lifted {
						g.web.next(t)
					}
					if r := g.dial(site, "127.0.0.1").get("GET / HTTP/1.1", www); !r.is(403, "private_address") {
						t.Errorf("round %d, site %d, without: got %+v", round, site, r)
					}
					g.web.none(t)
				}
			}
			if n := samples(t, g.app.metrics.dial); n == 0 || int(g.web.conns.Load()) > 2 {
				t.Errorf("%d dialled, %d connections", n, g.web.conns.Load())
			}
		})
	}
	t.Run("two with", func(t *testing.T) {
		g := startHTTP(t, setup{document: "policy a {\n\tclient 127.0.0.7\n" + with + "}\npolicy b {\n\tclient 127.0.0.8\n" + with + "}\n"})
		for range 2 {
			for i, from := range []string{"127.0.0.7", "127.0.0.8"} {
				if r := g.dial(0, from).get("GET / HTTP/1.1", g.host("www.example.com")); r.body != fmt.Sprintf("connection %d", i+1) {
					t.Errorf("from %s: got %+v", from, r)
				}
			}
		}
		if r := g.dial(0, "127.0.0.9").get("GET / HTTP/1.1", g.host("www.example.com")); !r.is(403, "no_policy") {
			t.Errorf("got %+v", r)
		}
	})
}

// A change of the policy lets go of the connections that wait.
func TestUpstreamsReload(t *testing.T) {
	g := startHTTP(t, setup{})
	www := g.host("www.example.com")
	c := g.dial(0)
	if r := c.get("GET / HTTP/1.1", www); r.body != "connection 1" {
		t.Fatalf("got %+v", r)
	}
	g.web.next(t)
	g.set(strings.Replace(document(g.web.port), "private "+upstreamAddr, "private 127.0.0.9", 1))
	if r := c.get("GET / HTTP/1.1", www); !r.is(403, "private_address") {
		t.Errorf("without the line: got %+v", r)
	}
	g.web.none(t)
	waitFor(t, "the connection that waited to be closed", func() bool { return g.web.live.Load() == 0 })

	g.set(document(g.web.port))
	if r := c.get("GET / HTTP/1.1", www); r.body != "connection 2" {
		t.Errorf("with the line again: got %+v", r)
	}
	g.web.next(t)

	// One that is in use stays until its request ends, which nothing forbids, and is not used again.
	say := sse(g.web, streamHead)
	s := g.dial(0)
	s.send("GET /sse HTTP/1.1", www)
	r, err := http.ReadResponse(s.in, nil)
	if err != nil {
		t.Fatal(err)
	}
	g.set(document(g.web.port, "\tallow other.test"))
	say <- chunk("still here")
	got := make([]byte, 10)
	if _, err := io.ReadFull(r.Body, got); err != nil {
		t.Fatalf("the stream was cut: %v", err)
	}
	close(say)
	io.Copy(io.Discard, r.Body)
	if r := c.get("GET / HTTP/1.1", www); r.body != "connection 3" {
		t.Errorf("after the change: got %+v", r)
	}
	waitFor(t, "the older connection to be closed", func() bool { return g.web.live.Load() == 1 })
	if n := len(g.app.upstreams.bys); n != 1 {
		t.Errorf("connections are kept for %d selections, want those of this set", n)
	}
	if n := g.app.upstreams.held.Load(); n != 1 {
		t.Errorf("%d connections are counted, want 1", n)
	}
}

// A new configuration has connections of its own, and the last one leaves none.
func TestUpstreamsStop(t *testing.T) {
	g := startHTTP(t, setup{})
	if r := g.ask(0, "GET / HTTP/1.1", g.host("www.example.com")); r.status != 200 {
		t.Fatalf("got %+v", r)
	}
	before := g.app
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the connection to be closed", func() bool { return g.web.live.Load() == 0 })
	waitFor(t, "the count to be given back", func() bool { return before.upstreams.held.Load() == 0 })
	waitFor(t, "the place to be given back", func() bool { return open.held.Load() == 0 })
}

// One that the upstream has closed in the meantime is not the client's trouble.
func TestUpstreamsStale(t *testing.T) {
	g := startHTTP(t, setup{})
	www := g.host("www.example.com")
	g.web.on("/close", func(c *served, r request) {
		c.say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		c.Close()
	})
	c := g.dial(0)
	for i := range 20 {
		if r := c.get("GET /close HTTP/1.1", www); r.status != 200 {
			t.Errorf("%d: got %+v", i, r)
		}
	}
	// Nor where a request cannot be sent twice, once the end has been seen.
	for i := range 3 {
		waitFor(t, "the end of the connection to be seen", func() bool { return g.app.upstreams.held.Load() == 0 })
		if r := c.get("POST /close HTTP/1.1", www, "Content-Length: 0"); r.status != 200 {
			t.Errorf("POST %d: got %+v", i, r)
		}
	}
	waitFor(t, "the count to be given back", func() bool { return g.app.upstreams.held.Load() == 0 && open.len() == 0 })
}

// Those that wait are bounded, whatever the number of names.
func TestUpstreamsBounded(t *testing.T) {
	names := make(map[string]string)
	for i := range 30 {
		names[fmt.Sprintf("n%d.example.com", i)] = upstreamAddr
	}
	g := startHTTP(t, setup{names: names})
	g.app.upstreams.waiting = 3
	c := g.dial(0)
	for i := range 30 {
		if r := c.get("GET / HTTP/1.1", g.host(fmt.Sprintf("n%d.example.com", i))); r.status != 200 {
			t.Errorf("got %+v", r)
		}
		if n := g.app.upstreams.held.Load(); n > 5 {
			t.Errorf("%d connections are held for one request and 3 that may wait", n)
		}
	}
	waitFor(t, "the others to be closed", func() bool { return g.web.live.Load() <= 4 })
}

// The gateway does not connect to itself, whatever a policy lifts.
func TestHTTPLoop(t *testing.T) {
	g := startHTTP(t, setup{
		sites:    []string{forwardProxy, transparentSite},
		names:    map[string]string{"loop.example.com": "127.0.1.1", "other.example.com": "127.0.1.2"},
		document: "policy default {\n\tprivate 127.0.0.0/8\n\tallow .example.com:*\n}\n",
	})
	for site, name := range []string{"loop.example.com", "other.example.com"} {
		_, port, _ := net.SplitHostPort(g.addrs[site])
		if r := g.ask(0, fmt.Sprintf("GET http://%s:%s/ HTTP/1.1", name, port), "Host: x"); !r.is(403, "private_address") {
			t.Errorf("%s: got %+v", name, r)
		}
		if r := g.dial(0).connect(name + ":" + port); !r.is(403, "private_address") {
			t.Errorf("CONNECT %s: got %+v", name, r)
		}
	}
}

// Changes of the policy while everything is in use: afterwards nothing is left, and nothing was served that was
// not allowed.
func TestHTTPStorm(t *testing.T) {
	g := startProxy(t, setup{document: opaqueDocument, sites: []string{forwardProxy, transparentSite}})
	say := make(chan struct{})
	g.web.speak(nil)
	g.web.on("/stream", func(c *served, r request) {
		c.say(streamHead)
		for {
			if _, err := io.WriteString(c, chunk("event")); err != nil {
				return
			}
			select {
			case <-say:
				c.Close()
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	webSocket(g.web)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	use := func(f func()) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f()
				}
			}
		})
	}
	www := g.host("www.example.com")
	for range 3 {
		use(func() {
			c := g.dial(1)
			defer c.Close()
			for range 5 {
				r := c.get("GET / HTTP/1.1", www)
				// A response that has begun may be cut off.
				if r.status != 200 && (r.err != nil || r.status != 403) {
					t.Errorf("got %+v", r)
				}
				if r.err != nil || r.close {
					return
				}
			}
		})
		use(func() {
			c := g.dial(1)
			defer c.Close()
			c.send("GET /stream HTTP/1.1", www)
			io.CopyN(io.Discard, c.in, 2000)
		})
		use(func() {
			c := g.dial(0)
			defer c.Close()
			if r := c.connect(g.target("www.example.com")); r.status == 200 {
				io.WriteString(c, "GET / HTTP/1.1\r\n"+www+"\r\n\r\n")
				c.receive("GET")
			}
		})
		use(func() {
			h := g.dialHTTP2(1)
			defer h.Close()
			s := h.get(g.target("www.example.com"), "/stream")
			s.wait("bytes", func() bool { return s.data.Len() > 100 || s.ended || s.reset_ })
			s.reset()
			h.get(g.target("www.example.com"), "/").response()
		})
	}
	for i := range 20 {
		if i%2 == 0 {
			g.set("policy default {\n\tprivate 127.0.0.2\n\tallow api.example.com:%d\n}\n")
			waitFor(t, "what is not allowed to end", func() bool { return open.len() == 0 })
		} else {
			g.set(opaqueDocument)
		}
		time.Sleep(20 * time.Millisecond)
	}
	close(stop)
	close(say)
	wg.Wait()
	waitFor(t, "everything to be given back", func() bool { return open.len() == 0 && open.held.Load() == 0 })
	g.set("policy default {\n}\n")
	waitFor(t, "the connections to the origin to be closed", func() bool { return g.web.live.Load() == 0 && g.app.upstreams.held.Load() == 0 })
	panics(t, g.httpGateway)
}

// With the last configuration goes everything that is open.
func TestHTTPStop(t *testing.T) {
	g := startHTTP(t, setup{sites: []string{transparentSite, forwardProxy}})
	webSocket(g.web)
	say := sse(g.web, streamHead)
	defer close(say)
	www := g.host("www.example.com")
	stream, ws, tunnel := g.dial(0), g.dial(0), g.dial(1)
	stream.send("GET /sse HTTP/1.1", www)
	if _, err := http.ReadResponse(stream.in, nil); err != nil {
		t.Fatal(err)
	}
	ws.upgrade(www)
	if r := tunnel.connect(fmt.Sprintf("www.example.com:%d", g.web.port)); r.status != 200 {
		t.Fatalf("got %+v", r)
	}
	waitFor(t, "all three to be open", func() bool { return open.len() == 3 })
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*client{"stream": stream, "WebSocket": ws, "tunnel": tunnel} {
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.Copy(io.Discard, c.in); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the %s is still open", name)
		}
	}
	waitFor(t, "everything to be given back", func() bool { return open.len() == 0 && open.held.Load() == 0 && g.app.upstreams.held.Load() == 0 })
}

// A proxy of the environment is not for us.
func TestUpstreamsEnvironment(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"} {
		t.Setenv(name, "http://127.0.0.1:1")
	}
	g := startHTTP(t, setup{})
	if r := g.ask(0, "GET / HTTP/1.1", g.host("www.example.com")); r.status != 200 {
		t.Errorf("got %+v", r)
	}
}

// forwardproxy-030: a document that is no good changes nothing, an empty policy denies everything.
func TestHTTPBadPolicy(t *testing.T) {
	t.Run("forwardproxy-030", func(t *testing.T) {
		g := startHTTP(t, setup{sites: []string{forwardProxy}})
		line := fmt.Sprintf("GET http://www.example.com:%d/ HTTP/1.1", g.web.port)
		evil := fmt.Sprintf("GET http://evil.test:%d/ HTTP/1.1", g.web.port)
		for _, bad := range []string{"policy default {\n\tallow https://x/\n}\n", "policy default {\n", "nonsense\n", ""} {
			failures := g.policyFailures(t)
			g.write(bad)
			waitFor(t, "the bad document to be seen", func() bool { return g.policyFailures(t) > failures })
			if r := g.ask(0, line, "Host: x"); r.status != 200 {
				t.Errorf("%q: allowed: got %+v", bad, r)
			}
			if r := g.ask(0, evil, "Host: x"); !r.is(403, "not_allowed") {
				t.Errorf("%q: not allowed: got %+v", bad, r)
			}
			g.write(document(g.web.port))
			waitFor(t, "the document to be good again", func() bool { return !g.app.store.Stale() })
		}
		os.Remove(g.policy)
		waitFor(t, "the missing document to be seen", g.app.store.Stale)
		if r := g.ask(0, line, "Host: x"); r.status != 200 {
			t.Errorf("missing document: got %+v", r)
		}
		g.write(document(g.web.port))
		waitFor(t, "the document to be good again", func() bool { return !g.app.store.Stale() })
		g.set("policy default {\n}\n")
		if r := g.ask(0, line, "Host: x"); !r.is(403, "not_allowed") {
			t.Errorf("a policy without rules: got %+v", r)
		}
	})
}

// policyFailures returns how many documents were not taken.
func (g *httpGateway) policyFailures(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile(g.log)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(data, []byte("policy not taken"))
}

// A client that was told of a new name by DNS finds it here.
func TestHTTPSettles(t *testing.T) {
	g := startHTTP(t, setup{document: "policy default {\n\tports %d\n\tprivate 127.0.0.2\n\tallow api.example.com\n}\n"})
	c := g.dial(0)
	c.get("GET / HTTP/1.1", g.host("api.example.com"))
	g.write(document(g.web.port))
	if r := c.get("GET / HTTP/1.1", g.host("www.example.com")); r.status != 200 {
		t.Errorf("right after the name was added: got %+v", r)
	}
	start := time.Now()
	if r := c.get("GET / HTTP/1.1", g.host("evil.test")); !r.is(403, "not_allowed") || time.Since(start) > 2*time.Second {
		t.Errorf("a name that is not: got %+v after %v", r, time.Since(start))
	}
}
