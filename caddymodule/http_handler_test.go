package caddymodule

import (
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sandboxallow/sandboxallow/internal/decision"
)

// The cases of requests that DNS has led here. What is refused does not reach an origin.
func TestHTTP(t *testing.T) {
	g := startHTTP(t, setup{})
	www, api, evil := g.host("www.example.com"), g.host("api.example.com"), g.host("evil.test")
	port := g.web.port

	t.Run("http-001", func(t *testing.T) {
		if r := g.ask(0, "GET /x HTTP/1.1", www); r.err != nil || r.status != 200 || r.reason() != "" {
			t.Errorf("got %+v", r)
		}
		if got := g.web.next(t); got.line != "GET /x HTTP/1.1" || "Host: "+got.field("Host") != www {
			t.Errorf("the origin got %+v", got)
		}
	})
	t.Run("http-002", func(t *testing.T) {
		c := g.dial(0)
		if r := c.get("GET / HTTP/1.1", www); r.status != 200 {
			t.Errorf("first: %+v", r)
		}
		g.web.next(t)
		if r := c.get("GET / HTTP/1.1", evil); !r.is(403, "not_allowed") || !strings.Contains(r.body, "evil.test") {
			t.Errorf("second: %+v", r)
		}
		g.web.none(t)
		if r := c.get("GET / HTTP/1.1", www); r.status != 200 {
			t.Errorf("third: %+v", r)
		}
		g.web.next(t)
	})
	t.Run("http-003", func(t *testing.T) {
		c := g.dial(0)
		for _, host := range []string{www, api, www} {
			if r := c.get("GET / HTTP/1.1", host); r.status != 200 {
				t.Errorf("%s: %+v", host, r)
			}
			if got := g.web.next(t); "Host: "+got.field("Host") != host {
				t.Errorf("the origin got %+v, want %s", got, host)
			}
		}
	})
	t.Run("http-004", func(t *testing.T) {
		c := g.dial(0)
		c.send("GET /1 HTTP/1.1", www, "", "GET /2 HTTP/1.1", evil, "", "GET /3 HTTP/1.1", www)
		for i, status := range []int{200, 403, 200} {
			if r := c.receive("GET"); r.status != status {
				t.Errorf("response %d: %+v", i+1, r)
			}
		}
		for _, path := range []string{"/1", "/3"} {
			if got := g.web.next(t); got.line != "GET "+path+" HTTP/1.1" {
				t.Errorf("the origin got %+v", got)
			}
		}
		g.web.none(t)
	})
	t.Run("http-015", func(t *testing.T) {
		r := g.ask(0, "GET / HTTP/1.1", www, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
		if r.status != 200 {
			t.Errorf("got %+v", r)
		}
		if got := g.web.next(t); len(got.fields) != 1 {
			t.Errorf("the origin got %q, want Host alone", got.fields)
		}
	})
	t.Run("http-024", func(t *testing.T) {
		g.web.on("/302", func(c *served, r request) {
			c.say("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n")
		})
		c := g.dial(0)
		if r := c.get("GET /302 HTTP/1.1", www); r.status != 302 || r.header.Get("Location") != "http://169.254.169.254/" {
			t.Errorf("got %+v", r)
		}
		g.web.next(t)
		if r := c.get("GET / HTTP/1.1", "Host: 169.254.169.254"); !r.is(403, "bad_name") {
			t.Errorf("the next request: %+v", r)
		}
	})

	// Each on a connection of its own. Go's server and Caddy's refuse much of this themselves, without a reason.
	tooLong := "Cookie: " + strings.Repeat("x", 64<<10)
	for _, tc := range []struct {
		name   string
		lines  []string
		status int
		reason string
	}{
		{"http-005", []string{"GET / HTTP/1.1", www, evil}, 400, "bad_request"},
		{"http-005", []string{"GET / HTTP/1.1", www, www}, 400, "bad_request"},
		{"http-005", []string{"GET / HTTP/1.1", www, "hOST: evil.test"}, 400, "bad_request"},
		{"http-005", []string{"GET / HTTP/1.0", www, evil}, 400, "bad_request"},
		{"http-005", []string{fmt.Sprintf("GET http://www.example.com:%d/ HTTP/1.1", port), www, evil}, 400, "bad_request"},
		{"http-006", []string{"GET / HTTP/1.0"}, 400, "bad_request"},
		{"http-006", []string{"GET / HTTP/1.1"}, 400, "bad_request"},
		{"http-006", []string{"GET / HTTP/1.1", "Connection: close"}, 400, "bad_request"},
		{"http-007", []string{"GET / HTTP/1.1", "Host: "}, 400, "bad_request"},
		{"http-007", []string{"GET / HTTP/1.1", "Host:"}, 400, "bad_request"},
		{"http-007", []string{"GET / HTTP/1.0", "Host:"}, 400, "bad_request"},
		{"http-007", []string{"GET / HTTP/1.1", "Host: ."}, 400, "bad_request"},
		{"http-007", []string{"GET / HTTP/1.1", "Host: :80"}, 400, "bad_request"},
		{"http-008", []string{fmt.Sprintf("GET http://evil.test:%d/ HTTP/1.1", port), www}, 403, "not_allowed"},
		{"http-008", []string{"GET http://user@www.example.com/ HTTP/1.1", www}, 400, "bad_request"},
		{"http-008", []string{"GET https://www.example.com/ HTTP/1.1", www}, 400, "bad_request"},
		{"http-008", []string{"GET http:///x HTTP/1.1", www}, 400, "bad_request"},
		{"http-009", []string{"GET / HTTP/1.1", "Host: www.example.com"}, 400, "bad_request"}, // means port 80
		{"http-009", []string{"GET / HTTP/1.1", "Host: www.example.com:80"}, 400, "bad_request"},
		{"http-009", []string{"GET / HTTP/1.1", "Host: www.example.com:"}, 400, "bad_request"},
		{"http-009", []string{"GET / HTTP/1.1", "Host: www.example.com:abc"}, 400, "bad_request"},
		{"http-009", []string{"GET / HTTP/1.1", fmt.Sprintf("Host: www.example.com:0%d", port)}, 400, "bad_request"},
		{"http-010", []string{"GET / HTTP/1.1", "Host: www.example.com@evil.test"}, 400, "bad_request"},
		{"http-010", []string{"GET / HTTP/1.1", "Host: www.example.com/evil"}, 400, "bad_request"},
		{"http-010", []string{"GET / HTTP/1.1", "Host: www.example.com evil.test"}, 400, "bad_request"},
		{"http-010", []string{"GET / HTTP/1.1", "Host: www.example.com\tevil.test"}, 400, "bad_request"},
		{"http-010", []string{"GET / HTTP/1.1", "Host: www.example.com\x00.evil.test"}, 400, "bad_request"},
		{"http-010", []string{"GET / HTTP/1.1", "Host: www.example.com\\evil.test"}, 400, "bad_request"},
		{"http-010", []string{"GET / HTTP/1.1", "Host: www%2eexample.com"}, 400, "bad_request"},
		{"http-010", []string{"GET / HTTP/1.1", "Host: www.example.com,evil.test"}, 400, "bad_request"},
		{"http-010", []string{"GET / HTTP/1.1", "Host: www.example.com;"}, 400, "bad_request"},
		{"http-011", []string{"GET / HTTP/1.1", "Host: 127.0.0.1"}, 403, "bad_name"},
		{"http-011", []string{"GET / HTTP/1.1", fmt.Sprintf("Host: 127.0.0.2:%d", port)}, 403, "bad_name"},
		{"http-011", []string{"GET / HTTP/1.1", "Host: [::1]"}, 403, "bad_name"},
		{"http-011", []string{"GET / HTTP/1.1", "Host: 169.254.169.254"}, 403, "bad_name"},
		{"http-011", []string{"GET / HTTP/1.1", "Host: 2130706433"}, 403, "bad_name"},
		{"http-011", []string{fmt.Sprintf("GET http://127.0.0.2:%d/ HTTP/1.1", port), www}, 403, "bad_name"},
		{"http-012", []string{"GET / HTTP/1.1", g.host("www.example.com.") + "."}, 400, "bad_request"},
		{"http-012", []string{"GET / HTTP/1.1", g.host("www.example.com..")}, 403, "bad_name"},
		{"http-013", []string{"GET / HTTP/1.1", strings.Replace(www, ":", " :", 1)}, 400, "bad_request"},
		{"http-013", []string{"GET / HTTP/1.1", "Host: evil.test", " " + www}, 400, "bad_request"},
		{"http-013", []string{"GET / HTTP/1.1", www, "X: y", " z", strings.Replace(evil, "Host", "Host ", 1)}, 400, "bad_request"},
		{"http-013", []string{"GET / HTTP/1.1", " " + www, evil}, 400, "bad_request"},
		{"http-019", []string{"GET / HTTP/1.1", tooLong, www}, 431, ""},
		{"http-019", []string{"GET / HTTP/1.1", "X: " + strings.Repeat("x", 32<<10), www}, 431, ""},
		{"http-019", []string{"GET /" + strings.Repeat("x", 64<<10) + " HTTP/1.1", www}, 431, ""},
		{"connect", []string{fmt.Sprintf("CONNECT www.example.com:%d HTTP/1.1", port), www}, 400, "bad_request"},
		{"two lengths", []string{"POST / HTTP/1.1", www, "Content-Length: 1", "Content-Length: 2"}, 400, "bad_request"},
		{"two codings", []string{"POST / HTTP/1.1", www, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"}, 501, ""},
		{"no version", []string{"GET /", www}, 400, "bad_request"},
		{"version", []string{"GET / HTTP/3.0", www}, 505, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer g.web.none(t)
			g.skipLog()
			c := g.dial(0)
			c.send(tc.lines...)
			r := c.receive("GET")
			if r.status == tc.status && r.reason() == "" && tc.reason != "bad_name" && tc.reason != "not_allowed" {
				return
			}
			if !r.is(tc.status, tc.reason) {
				t.Errorf("%.200q: got %+v, want %d %s", tc.lines, r, tc.status, tc.reason)
			}
			if h := r.header; h.Get("Content-Type") != "text/plain; charset=utf-8" || h.Get("Server") != "" || strings.Count(r.body, "\n") != 1 {
				t.Errorf("%.200q: got %v %q", tc.lines, h, r.body)
			}
			if e := g.entry(decision.MsgDenied); e["reason"] != tc.reason || e["layer"] != "http" || e["verdict"] != "deny" || e["client"] != "127.0.0.1" {
				t.Errorf("log: %v", e)
			}
		})
	}
	t.Run("http-008", func(t *testing.T) {
		if r := g.ask(0, fmt.Sprintf("GET http://www.example.com:%d/p?q HTTP/1.1", port), evil); r.status != 200 {
			t.Errorf("got %+v", r)
		}
		if got := g.web.next(t); got.line != "GET /p?q HTTP/1.1" || "Host: "+got.field("Host") != www {
			t.Errorf("the origin got %+v", got)
		}
	})
	t.Run("http-012", func(t *testing.T) {
		for _, host := range []string{g.host("WWW.Example.COM"), g.host("www.example.com."), fmt.Sprintf("hOsT: \t%s \t", strings.TrimPrefix(www, "Host: "))} {
			if r := g.ask(0, "GET / HTTP/1.1", host); r.status != 200 {
				t.Errorf("%s: got %+v", host, r)
			}
			if got := g.web.next(t); "Host: "+got.field("Host") != www {
				t.Errorf("%s: the origin got %+v", host, got)
			}
		}
	})
	t.Run("http-013", func(t *testing.T) { // Go takes a bare LF for a line end; what is sent on has none
		c := g.dial(0)
		io.WriteString(c, "GET / HTTP/1.1\n"+www+"\nX: y\n\n")
		if r := c.receive("GET"); r.status != 200 {
			t.Errorf("got %+v", r)
		}
		if got := g.web.next(t); len(got.fields) != 2 || got.field("X") != "y" {
			t.Errorf("the origin got %q", got.fields)
		}
		// Nor does a bare CR end a line, or part a field from the next.
		c = g.dial(0)
		io.WriteString(c, "GET / HTTP/1.1\r\n"+www+"\r\nX: y\rHost: evil.test\r\n\r\n")
		if r := c.receive("GET"); r.status != 400 {
			t.Errorf("a bare CR: got %+v", r)
		}
		g.web.none(t)
	})
	t.Run("http-019", func(t *testing.T) {
		for _, size := range []int{8 << 10, 15 << 10} {
			if r := g.ask(0, "GET / HTTP/1.1", "Cookie: "+strings.Repeat("x", size), www); r.status != 200 {
				t.Errorf("%d octets: got %+v", size, r)
			}
			if got := g.web.next(t); len(got.field("Cookie")) != size {
				t.Errorf("the origin got a field of %d octets, want %d", len(got.field("Cookie")), size)
			}
		}
	})
	t.Run("http-023", func(t *testing.T) {
		// Go's server answers for itself, before any handler: nothing is forwarded.
		if r := g.ask(0, "OPTIONS * HTTP/1.1", www); r.status != 200 || r.body != "" {
			t.Errorf("OPTIONS *: got %+v", r)
		}
		g.web.none(t)
		for _, method := range []string{"FOO", "OPTIONS", "TRACE", "PROPFIND", "PRI"} {
			if r := g.ask(0, method+" /x HTTP/1.1", www); r.status != 200 {
				t.Errorf("%s: got %+v", method, r)
			}
			if got := g.web.next(t); got.line != method+" /x HTTP/1.1" {
				t.Errorf("the origin got %+v", got)
			}
		}
	})
}

// What an upstream that is no good has for the client.
func TestHTTPUpstreamErrors(t *testing.T) {
	g := startHTTP(t, setup{document: "policy default {\n\tports %d\n\tprivate 127.0.0.2/32 127.0.0.3/32\n\tallow .example.com:%d\n\tdeny gist.example.com\n\tallow other.test:1\n}\n"})
	for _, tc := range []struct {
		host   string
		status int
		reason string
		hint   bool
	}{
		{"evil.test", 403, "not_allowed", true},
		{"gist.example.com", 403, "denied", true},
		{"other.test", 403, "port_not_allowed", true},
		{"private.example.com", 403, "private_address", false},
		{"meta.example.com", 403, "private_address", false},
		{"gone.example.com", 502, "no_address", false},
		{"fail.example.com", 502, "resolver_error", false},
		{"dead.example.com", 502, "dial_error", false},
	} {
		t.Run(tc.host, func(t *testing.T) {
			count := g.app.metrics.decisions.WithLabelValues("http", "default", "deny", tc.reason)
			before := testutil.ToFloat64(count)
			for _, method := range []string{"GET", "HEAD", "POST"} {
				r := g.ask(0, method+" / HTTP/1.1", g.host(tc.host), "Content-Length: 0")
				if method == "HEAD" && r.body == "" {
					r.body = "sandboxallow: " + tc.reason + ": "
				}
				if !r.is(tc.status, tc.reason) || method != "HEAD" && !strings.Contains(r.body, tc.host) {
					t.Errorf("%s: got %+v, want %d %s", method, r, tc.status, tc.reason)
				}
				e := g.entry(decision.MsgDenied)
				if e["reason"] != tc.reason || e["name"] != tc.host || e["port"] != float64(g.web.port) || e["policy"] != "default" {
					t.Errorf("log: %v", e)
				}
				if _, ok := e["hint"]; ok != tc.hint {
					t.Errorf("hint %v, want one: %v", e["hint"], tc.hint)
				}
			}
			if after := testutil.ToFloat64(count); after != before+3 {
				t.Errorf("decisions_total went from %v to %v, want 3 more", before, after)
			}
		})
	}
	g.web.none(t)

	www := g.host("www.example.com")
	for _, tc := range []struct {
		name string
		f    func(*served, request)
	}{
		{"closes", func(c *served, r request) { c.Close() }},
		{"resets", func(c *served, r request) { c.reset() }},
		{"speaks no HTTP", func(c *served, r request) { c.say("SSH-2.0-x\r\n"); c.Close() }},
		{"half a head", func(c *served, r request) { c.say("HTTP/1.1 200 OK\r\nContent-"); c.Close() }},
		{"head without an end", func(c *served, r request) {
			c.say("HTTP/1.1 200 OK\r\n")
			for range maxResponseHead/1000 + 100 {
				c.say("X: " + strings.Repeat("x", 1000) + "\r\n")
			}
			c.Close()
		}},
		{"switches unasked", func(c *served, r request) {
			c.say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		}},
		{"two lengths", func(c *served, r request) {
			c.say("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g.web.on("/bad", tc.f)
			if r := g.ask(0, "GET /bad HTTP/1.1", www); !r.is(502, "dial_error") {
				t.Errorf("got %+v", r)
			}
			if e := g.entry(msgClosed); e["name"] != "www.example.com" || e["error"] == nil {
				t.Errorf("log: %v, want the error", e)
			}
		})
	}
	waitFor(t, "all requests to be forgotten", func() bool { return open.len() == 0 })
}

// A response that breaks off does not look like all of it.
func TestHTTPBrokenResponse(t *testing.T) {
	g := startHTTP(t, setup{})
	www := g.host("www.example.com")
	for name, head := range map[string]string{
		"length":  "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf",
		"chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"chunk":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nhalf",
	} {
		for _, end := range []string{"close", "reset"} {
			t.Run(name+", "+end, func(t *testing.T) {
				g.web.on("/half", func(c *served, r request) {
					c.say(head)
					time.Sleep(50 * time.Millisecond) // for the head to get through
					if end == "reset" {
						c.reset()
					}
					c.Close()
				})
				r := g.ask(0, "GET /half HTTP/1.1", www)
				if r.status != 200 || r.err == nil || r.body != "half" {
					t.Errorf("got %+v, want an error behind the half", r)
				}
				if e := g.entry(msgClosed); e["error"] == nil {
					t.Errorf("log: %v, want the error", e)
				}
			})
		}
	}
}

// One decision and one end for each request, with what it has moved.
func TestHTTPLog(t *testing.T) {
	g := startHTTP(t, setup{})
	g.web.on("/up", func(c *served, r request) { c.say("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n1234567") })
	c := g.dial(0)
	for range 2 { // on a new connection to the upstream, and on the one that waits
		c.send("POST /up HTTP/1.1", g.host("WWW.example.com"), "Content-Length: 5")
		io.WriteString(c, "12345")
		if r := c.receive("POST"); r.status != 200 {
			t.Fatalf("got %+v", r)
		}
		for _, want := range []struct {
			msg     string
			in, out float64
		}{{decision.MsgAllowed, 0, 0}, {msgClosed, 5, 7}} {
			e := g.entry(want.msg)
			for field, v := range map[string]any{
				"layer": "http", "client": "127.0.0.1", "policy": "default", "name": "www.example.com", "port": float64(g.web.port),
				"verdict": "allow", "reason": "", "rule": g.policy + ":4", "upstream": fmt.Sprintf("%s:%d", upstreamAddr, g.web.port),
				"bytes_in": want.in, "bytes_out": want.out,
			} {
				if e[field] != v {
					t.Errorf("%s: %s is %v, want %v", want.msg, field, e[field], v)
				}
			}
			if _, ok := e["error"]; ok {
				t.Errorf("%s: error %v", want.msg, e["error"])
			}
		}
	}
	if es := g.entries(); len(es) != 0 {
		t.Errorf("more in the log: %v", es)
	}
	for label, want := range map[string]float64{"in": 10, "out": 14} {
		if got := testutil.ToFloat64(g.app.metrics.bytes.WithLabelValues(label)); got != want {
			t.Errorf("bytes_total %s is %v, want %v", label, got, want)
		}
	}
	if got := testutil.ToFloat64(g.app.metrics.decisions.WithLabelValues("http", "default", "allow", "")); got != 2 {
		t.Errorf("decisions_total is %v, want 2", got)
	}
}

// What a client says of its address does not select the policy.
func TestHTTPClientAddress(t *testing.T) {
	g := startHTTP(t, setup{
		document: "policy default {\n}\npolicy some {\n\tclient 127.0.0.7\n\tports %d\n\tprivate 127.0.0.2\n\tallow .example.com\n}\n",
		globals:  "servers {\ntrusted_proxies static private_ranges 127.0.0.0/8\n}",
	})
	www := g.host("www.example.com")
	for _, field := range []string{"X-Forwarded-For: 127.0.0.7", "Forwarded: for=127.0.0.7", "X-Real-IP: 127.0.0.7", "X-Client-IP: 127.0.0.7", "CF-Connecting-IP: 127.0.0.7"} {
		if r := g.ask(0, "GET / HTTP/1.1", www, field); !r.is(403, "not_allowed") {
			t.Errorf("%s: got %+v", field, r)
		}
	}
	if r := g.dial(0, "127.0.0.7").get("GET / HTTP/1.1", www, "X-Forwarded-For: 127.0.0.9"); r.status != 200 {
		t.Errorf("from the address itself: got %+v", r)
	}
	if got := g.web.next(t); got.field("X-Forwarded-For") != "127.0.0.9" {
		t.Errorf("the origin got %q", got.fields)
	}
}

// Both policies must admit where the handler names one too.
func TestHTTPListenerPolicy(t *testing.T) {
	g := startHTTP(t, setup{
		document: "policy default {\n\tports %d\n\tprivate 127.0.0.2\n\tallow .example.com\n}\n" +
			"policy strict {\n\tclient 10.0.0.0/8\n\tports %d\n\tprivate 127.0.0.2\n\tallow www.example.com\n}\n",
		sites: []string{"sandboxallow {\nupstream_port %d\npolicy strict\n}", "sandboxallow {\nupstream_port %d\n}"},
	})
	for _, tc := range []struct {
		site   int
		name   string
		status int
	}{{0, "www.example.com", 200}, {0, "api.example.com", 403}, {1, "api.example.com", 200}, {1, "evil.test", 403}} {
		if r := g.ask(tc.site, "GET / HTTP/1.1", g.host(tc.name)); r.status != tc.status {
			t.Errorf("site %d, %s: got %+v, want %d", tc.site, tc.name, r, tc.status)
		}
	}
	g.set("policy default {\n\tports %d\n\tprivate 127.0.0.2\n\tallow .example.com\n}\n")
	if r := g.ask(0, "GET / HTTP/1.1", g.host("www.example.com")); !r.is(403, "no_policy") {
		t.Errorf("with the policy of the listener gone: got %+v", r)
	}
}

// A head is due in time, all of it.
func TestHTTPHeadTimeout(t *testing.T) {
	t.Run("http-018", func(t *testing.T) {
		g := startHTTP(t, setup{globals: "servers {\ntimeouts {\nread_header 400ms\n}\n}"})
		c := g.dial(0)
		start := time.Now()
		for i := 0; ; i++ {
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nX: y"[i%20:i%20+1]); err != nil {
				break
			}
			if time.Since(start) > 10*time.Second {
				t.Fatal("a head of one octet in 20 ms is read for 10 s")
			}
			time.Sleep(20 * time.Millisecond)
		}
		g.web.none(t)
	})
	t.Run("default", func(t *testing.T) {
		for _, tc := range []struct {
			name, globals, options string
			head, read, write      time.Duration
		}{
			{"ours", "", "idle_timeout 3m", 10 * time.Second, 3 * time.Minute, 3 * time.Minute},
			{"the operator's", "servers {\ntimeouts {\nread_header 7s\nread_body_idle 8s\nwrite_idle 9s\n}\n}", "", 7 * time.Second, 8 * time.Second, 9 * time.Second},
		} {
			t.Run(tc.name, func(t *testing.T) {
				startHTTP(t, setup{globals: tc.globals, options: tc.options})
				srv := httpServer(t)
				for _, d := range []struct {
					name string
					got  caddy.Duration
					want time.Duration
				}{{"read_header", srv.ReadHeaderTimeout, tc.head}, {"read_idle", srv.ReadIdleTimeout, tc.read}, {"write_idle", srv.WriteIdleTimeout, tc.write}} {
					if time.Duration(d.got) != d.want {
						t.Errorf("%s is %v, want %v", d.name, time.Duration(d.got), d.want)
					}
				}
			})
		}
	})
}

// httpServer returns the server of the first site.
func httpServer(t *testing.T) *caddyhttp.Server {
	t.Helper()
	app, err := caddy.ActiveContext().App("http")
	if err != nil {
		t.Fatal(err)
	}
	return app.(*caddyhttp.App).Servers["srv0"]
}

// A panic ends the request and nothing else.
func TestHTTPPanic(t *testing.T) {
	g := startHTTP(t, setup{sites: []string{transparentSite, forwardProxy}})
	healthy := g.app.dialer
	restore := func() { g.app.dialer, g.app.upstreams.dial = healthy, healthy.Dial }
	t.Cleanup(restore)
	g.app.dialer, g.app.upstreams.dial = nil, nil
	if r := g.ask(0, "GET / HTTP/1.1", g.host("www.example.com")); r.status == 200 {
		t.Errorf("got %+v", r)
	}
	if r := g.ask(1, fmt.Sprintf("CONNECT www.example.com:%d HTTP/1.1", g.web.port)); r.status == 200 {
		t.Errorf("CONNECT: got %+v", r)
	}
	waitFor(t, "the panics to be counted", func() bool { return testutil.ToFloat64(g.app.metrics.panics) == 2 })
	waitFor(t, "the places to be given back", func() bool { return open.held.Load() == 0 })
	restore()
	if r := g.ask(0, "GET / HTTP/1.1", g.host("www.example.com")); r.status != 200 {
		t.Errorf("after the panics: got %+v", r)
	}
}

// What Caddy says of itself is not said of the servers behind.
func TestHTTPOwnFields(t *testing.T) {
	g := startHTTP(t, setup{})
	w := httptest.NewRecorder()
	w.Header().Set("Server", "Caddy")
	w.Header().Set("Alt-Svc", `h3=":8443"`) // if it speaks HTTP/3
	h := &HTTPHandler{app: g.app}
	if err := h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil), nil); err != nil {
		t.Fatal(err)
	}
	if got := w.Result(); got.Header.Get("Server") != "" || got.Header.Get("Alt-Svc") != "" || got.Header.Get(reasonField) == "" {
		t.Errorf("got %v", got.Header)
	}
}
