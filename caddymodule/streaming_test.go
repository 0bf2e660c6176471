package caddymodule

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/decision"
)

// sse is an origin's stream of events: it says what is sent to it, until that is closed.
func sse(w *web, head string) chan<- string {
	say := make(chan string)
	w.on("/sse", func(c *served, r request) {
		c.say(head)
		for s := range say {
			c.say(s)
		}
		c.Close()
	})
	return say
}

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

const streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

// What an upstream says is passed on at once, the head too.
func TestStreaming(t *testing.T) {
	for name, head := range map[string]string{
		"events":        streamHead,
		"other type":    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
		"with a length": "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
		"until the end": "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			g := startHTTP(t, setup{})
			say := sse(g.web, head)
			defer close(say)
			c := g.dial(0)
			c.send("GET /sse HTTP/1.1", g.host("www.example.com"))
			r, err := http.ReadResponse(c.in, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				event := fmt.Sprintf("data: %d\n\n", i)
				if strings.Contains(head, "chunked") {
					say <- chunk(event)
				} else {
					say <- event
				}
				got := make([]byte, len(event))
				if _, err := io.ReadFull(r.Body, got); err != nil || string(got) != event {
					t.Fatalf("event %d: %q, %v", i, got, err)
				}
			}
		})
	}
}

// A change of the policy cuts what it no longer allows, and no client takes the half for the whole.
func TestHTTPRevoked(t *testing.T) {
	for name, version := range map[string]string{"1.1": "HTTP/1.1", "1.0": "HTTP/1.0"} {
		for _, tc := range []struct{ name, head, event string }{
			{"chunked", streamHead, chunk("data\n")},
			{"length", "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", "data\n"},
			{"until the end", "HTTP/1.1 200 OK\r\n\r\n", "data\n"},
		} {
			t.Run(name+", "+tc.name, func(t *testing.T) {
				g := startHTTP(t, setup{})
				say := sse(g.web, tc.head)
				defer close(say)
				c, other := g.dial(0), g.dial(0)
				c.send("GET /sse "+version, g.host("www.example.com"))
				other.send("GET /sse "+version, g.host("api.example.com"))
				r, err := http.ReadResponse(c.in, nil)
				if err != nil {
					t.Fatal(err)
				}
				if r.StatusCode != 200 {
					t.Fatalf("got %+v", r)
				}
				if _, err := http.ReadResponse(other.in, nil); err != nil {
					t.Fatal(err)
				}
				say <- tc.event
				g.set(document(g.web.port, "\tdeny www.example.com"))
				e := g.entry(msgRevoked)
				if e["name"] != "www.example.com" || e["reason"] != "denied" || e["verdict"] != "deny" {
					t.Errorf("log: %v", e)
				}
				if rest, err := io.ReadAll(r.Body); err == nil {
					t.Errorf("the client takes %q for all of it", rest)
				}
				if open.len() != 1 {
					t.Errorf("%d requests in progress, want the other one", open.len())
				}
			})
		}
	}
	t.Run("before the response", func(t *testing.T) {
		g := startHTTP(t, setup{})
		g.web.on("/slow", func(c *served, r request) { io.Copy(io.Discard, c) })
		c := g.dial(0)
		c.send("GET /slow HTTP/1.1", g.host("www.example.com"))
		g.web.next(t)
		g.set(document(g.web.port, "\tdeny www.example.com"))
		if r := c.receive("GET"); !r.is(403, "denied") {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("upload", func(t *testing.T) {
		g := startHTTP(t, setup{})
		c := g.dial(0)
		c.send("POST / HTTP/1.1", g.host("www.example.com"), "Content-Length: 1000000")
		io.WriteString(c, "half")
		g.entry(decision.MsgAllowed)
		g.set("policy default {\n\tallow other.test\n}\n")
		if r := c.receive("POST"); !r.is(403, "not_allowed") {
			t.Errorf("got %+v", r)
		}
		waitFor(t, "the request to be forgotten", func() bool { return open.len() == 0 })
	})
}

// webSocket has an origin take /ws for an upgrade, and echo from then on.
func webSocket(w *web) {
	w.on("/ws", func(c *served, r request) {
		if r.field("Connection") != "Upgrade" || !strings.EqualFold(r.field("Upgrade"), "websocket") {
			c.say("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n")
			return
		}
		c.say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n")
		io.Copy(c, c.in)
		c.Close()
	})
}

// upgrade asks for a WebSocket.
func (c *client) upgrade(host string) {
	c.t.Helper()
	c.send("GET /ws HTTP/1.1", host, "Connection: keep-alive, Upgrade", "Upgrade: WebSocket", "Sec-WebSocket-Key: k", "Sec-WebSocket-Version: 13")
	r, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if r.StatusCode != 101 || r.Header.Get("Sec-Websocket-Accept") != "x" || !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || r.Header.Get("Server") != "" {
		c.t.Fatalf("got %+v", r)
	}
}

func TestWebSocket(t *testing.T) {
	start := func(t *testing.T, options string) (*httpGateway, *client) {
		g := startHTTP(t, setup{options: options, sites: []string{transparentSite, forwardProxy}})
		webSocket(g.web)
		c := g.dial(0)
		c.upgrade(g.host("www.example.com"))
		return g, c
	}
	t.Run("http-017", func(t *testing.T) {
		g, c := start(t, "")
		got := g.web.next(t)
		if got.field("Sec-WebSocket-Key") != "k" || got.field("Upgrade") != "WebSocket" {
			t.Errorf("the origin got %q", got.fields)
		}
		ahead := net.Conn(readAhead{c.Conn, c.in})
		for range 3 {
			if err := echo(ahead, strings.Repeat("frame", 10_000)); err != nil {
				t.Error(err)
			}
		}
		if n := open.held.Load(); n != 1 {
			t.Errorf("%d places are taken, want 1", n)
		}
		c.Close()
		if e := g.entry(msgClosed); e["bytes_in"] != 150_000. || e["bytes_out"] != 150_000. || e["upstream"] != fmt.Sprintf("%s:%d", upstreamAddr, g.web.port) {
			t.Errorf("log: %v", e)
		}
		waitFor(t, "the place to be given back", func() bool { return open.held.Load() == 0 })
	})
	t.Run("in absolute form", func(t *testing.T) {
		g, _ := start(t, "")
		c := g.dial(1)
		c.send(fmt.Sprintf("GET http://www.example.com:%d/ws HTTP/1.1", g.web.port), "Host: x", "Connection: Upgrade", "Upgrade: websocket")
		if r, err := http.ReadResponse(c.in, nil); err != nil || r.StatusCode != 101 {
			t.Fatalf("got %+v, %v", r, err)
		}
		if err := echo(readAhead{c.Conn, c.in}, "frame"); err != nil {
			t.Error(err)
		}
	})
	t.Run("refused by the origin", func(t *testing.T) {
		g, _ := start(t, "")
		g.web.on("/no", func(c *served, r request) { c.say("HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n") })
		c := g.dial(0)
		if r := c.get("GET /no HTTP/1.1", g.host("www.example.com"), "Connection: Upgrade", "Upgrade: websocket"); r.status != 401 {
			t.Errorf("got %+v", r)
		}
		if r := c.get("GET / HTTP/1.1", g.host("www.example.com")); r.status != 200 {
			t.Errorf("the next request: %+v", r)
		}
	})
	t.Run("denied", func(t *testing.T) {
		g, _ := start(t, "")
		r := g.ask(0, "GET /ws HTTP/1.1", g.host("evil.test"), "Connection: Upgrade", "Upgrade: websocket")
		if !r.is(403, "not_allowed") {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("to another protocol", func(t *testing.T) {
		g, _ := start(t, "")
		g.web.on("/other", func(c *served, r request) {
			c.say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
		})
		r := g.ask(0, "GET /other HTTP/1.1", g.host("www.example.com"), "Connection: Upgrade", "Upgrade: websocket")
		if !r.is(502, "dial_error") {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("revoked", func(t *testing.T) {
		g, c := start(t, "")
		g.set(document(g.web.port, "\tdeny www.example.com"))
		if err := c.closed(); err != nil {
			t.Error(err)
		}
		if e := g.entry(msgRevoked); e["reason"] != "denied" || e["name"] != "www.example.com" {
			t.Errorf("log: %v", e)
		}
		waitFor(t, "the place to be given back", func() bool { return open.held.Load() == 0 })
	})
	t.Run("idle", func(t *testing.T) {
		g, c := start(t, "idle_timeout 400ms")
		ahead := net.Conn(readAhead{c.Conn, c.in})
		for range 6 { // longer than the limit, but never idle
			time.Sleep(150 * time.Millisecond)
			if err := echo(ahead, "x"); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		if err := c.closed(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d < 200*time.Millisecond {
			t.Errorf("closed after %v of silence, want 400 ms", d)
		}
		g.entry(msgClosed)
	})
	// One that sends and never reads an answer is not idle; nor is one that only listens.
	t.Run("one way", func(t *testing.T) {
		g := startHTTP(t, setup{options: "idle_timeout 400ms"})
		g.web.on("/down", func(c *served, r request) {
			c.say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			for range 8 {
				time.Sleep(150 * time.Millisecond)
				c.say("x")
			}
			c.Close()
		})
		g.web.on("/up", func(c *served, r request) {
			c.say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			b, _ := io.ReadAll(io.LimitReader(c.in, 8))
			c.say(fmt.Sprint(len(b)))
			c.Close()
		})
		for _, path := range []string{"/down", "/up"} {
			c := g.dial(0)
			c.send("GET "+path+" HTTP/1.1", g.host("www.example.com"), "Connection: Upgrade", "Upgrade: websocket")
			if r, err := http.ReadResponse(c.in, nil); err != nil || r.StatusCode != 101 {
				t.Fatalf("got %+v, %v", r, err)
			}
			want := "xxxxxxxx"
			if path == "/up" {
				want = "8"
				for range 8 {
					time.Sleep(150 * time.Millisecond)
					io.WriteString(c, "y")
				}
			}
			if got, err := io.ReadAll(c.in); string(got) != want {
				t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
			}
		}
	})
}

// A request in which no byte moves is ended; one that is slow is not.
func TestHTTPIdle(t *testing.T) {
	g := startHTTP(t, setup{options: "idle_timeout 400ms"})
	www := g.host("www.example.com")
	g.web.on("/never", func(c *served, r request) { io.Copy(io.Discard, c) })
	g.web.on("/stops", func(c *served, r request) {
		c.say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
		io.Copy(io.Discard, c)
	})
	g.web.on("/drips", func(c *served, r request) {
		c.say("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n")
		for range 8 {
			time.Sleep(150 * time.Millisecond)
			c.say("x")
		}
	})
	t.Run("no response", func(t *testing.T) {
		if r := g.ask(0, "GET /never HTTP/1.1", www); !r.is(504, "dial_error") {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("half a response", func(t *testing.T) {
		if r := g.ask(0, "GET /stops HTTP/1.1", www); r.status != 200 || r.err == nil || r.body != "half" {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("slow response", func(t *testing.T) {
		if r := g.ask(0, "GET /drips HTTP/1.1", www); r.status != 200 || r.body != "xxxxxxxx" || r.err != nil {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("slow upload", func(t *testing.T) {
		c := g.dial(0)
		c.send("POST / HTTP/1.1", www, "Content-Length: 8")
		for range 8 {
			time.Sleep(150 * time.Millisecond)
			io.WriteString(c, "x")
		}
		if r := c.receive("POST"); r.status != 200 {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("half an upload", func(t *testing.T) {
		c := g.dial(0)
		c.send("POST / HTTP/1.1", www, "Content-Length: 8")
		io.WriteString(c, "xxx")
		if r := c.receive("POST"); r.err == nil && r.status < 400 {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("client that reads nothing", func(t *testing.T) {
		g.web.on("/flood", func(c *served, r request) {
			c.say("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
			for {
				if _, err := c.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		})
		c := g.dial(0)
		c.send("GET /flood HTTP/1.1", www)
		g.skipLog()
		waitFor(t, "the request to be ended", func() bool { return open.len() == 0 && g.web.conns.Load() > 0 })
	})
	waitFor(t, "all to be forgotten", func() bool { return open.len() == 0 })
}

// A client that goes away takes its request with it.
func TestHTTPClientGone(t *testing.T) {
	g := startHTTP(t, setup{})
	gone := make(chan error, 1)
	g.web.on("/wait", func(c *served, r request) {
		_, err := io.Copy(io.Discard, c.in)
		gone <- err
	})
	c := g.dial(0)
	c.send("GET /wait HTTP/1.1", g.host("www.example.com"))
	g.web.next(t)
	c.Close()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Fatal("the origin still waits")
	}
	e := g.entry(msgClosed)
	if e["reason"] != "" || e["verdict"] != "allow" {
		t.Errorf("log: %v", e)
	}
	waitFor(t, "the place to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
}

// reset reports whether err is of a connection that the other side has reset.
func reset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// ended reads to the end of a connection, which has to come in time.
func ended(c net.Conn) error {
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := io.Copy(io.Discard, bufio.NewReader(c))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("still open after 10 s")
	}
	return err
}
