//go:build linux

package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"golang.org/x/sys/unix"
)

// The names of the tests of HTTP. The server of the allowed one serves the other one too, as those of a CDN do.
const (
	allowedHost = "api.example.com"
	evilHost    = "evil.example.net"
)

// httpLab is a lab with these names, and the product in front of them.
func httpLab(t *testing.T, c config) (*lab, *gateway) {
	t.Helper()
	l := newLab(t)
	if c.policy == "" {
		c.policy = allowing(allowedHost)
	}
	g := l.start(t, c)
	for _, name := range []string{allowedHost, evilHost} {
		if _, err := l.internet.host(name, webAddr); err != nil {
			t.Fatal(err)
		}
		if _, err := l.internet.hostPlain(name, webAddr); err != nil {
			t.Fatal(err)
		}
	}
	return l, g
}

// is fails the test unless an answer is that of the upstream, with a body.
func (a answer) is(tb testing.TB, body string) {
	tb.Helper()
	if a.status != http.StatusOK || a.reason != "" || a.body != body {
		tb.Errorf("answer %+v, want 200 from the upstream and %q", a, body)
	}
}

// refuses fails the test unless an answer is the gateway's, with a status and a reason.
func (a answer) refuses(tb testing.TB, status int, reason string) {
	tb.Helper()
	if a.status != status || a.reason != reason || !strings.HasPrefix(a.body, "sandboxallow: "+reason+": ") {
		tb.Errorf("answer %+v, want %d %s", a, status, reason)
	}
}

// Requests on port 80, from clients that DNS has sent there.
func TestHTTP(t *testing.T) {
	l, g := httpLab(t, config{options: "idle_timeout 2s"})
	// Each question goes to the resolver: no answer lasts.
	l.internet.dns.set(allowedHost, reply{addrs: []netip.Addr{webAddr}})
	upstream, err := l.internet.hostPlain(evilHost, webAddr)
	if err != nil {
		t.Fatal(err)
	}
	get := func(host string) string { return head("GET /", host) }

	t.Run("http-002", func(t *testing.T) {
		mark := g.caddy.log.mark()
		c := l.converse(t, gatewayHTTP)
		c.ask(t, get(allowedHost)).is(t, page(allowedHost))
		c.ask(t, get(evilHost)).refuses(t, http.StatusForbidden, "not_allowed")
		c.ask(t, get(allowedHost)).is(t, page(allowedHost))
		g.deniedBy(t, overHTTP.layer, mark, evilHost, "not_allowed", "")
	})
	t.Run("http-004", func(t *testing.T) {
		c := l.converse(t, gatewayHTTP)
		c.say(t, get(allowedHost)+get(evilHost)+get(allowedHost))
		c.hear(t, "GET").is(t, page(allowedHost))
		c.hear(t, "GET").refuses(t, http.StatusForbidden, "not_allowed")
		c.hear(t, "GET").is(t, page(allowedHost))
	})
	t.Run("kept alive", func(t *testing.T) {
		c := l.converse(t, gatewayHTTP)
		c.ask(t, get(allowedHost)).is(t, page(allowedHost))
		dialled, asked := upstream.accepted.Load(), l.internet.dns.questions(allowedHost)
		for range 5 {
			c.ask(t, get(allowedHost)).is(t, page(allowedHost))
		}
		// A client of its own goes by the same connection to the upstream: it waits for whoever comes next.
		l.converse(t, gatewayHTTP).ask(t, get(allowedHost)).is(t, page(allowedHost))
		if n := upstream.accepted.Load() - dialled; n != 0 {
			t.Errorf("%d connections more to the upstream", n)
		}
		if n := l.internet.dns.questions(allowedHost) - asked; n != 0 {
			t.Errorf("%d questions more to the resolver", n)
		}
	})
	t.Run("http-017", func(t *testing.T) {
		c := l.converse(t, gatewayHTTP)
		ws := openSocket(t, c, "ws://"+allowedHost+"/socket")
		talks(t, ws)
		start := time.Now()
		if _, err := ws.Read(make([]byte, 1)); err == nil || time.Since(start) > 6*time.Second {
			t.Errorf("a socket without traffic, after %s: %v, want its end after the 2s of idle_timeout", time.Since(start), err)
		}
	})
	t.Run("http-015", func(t *testing.T) {
		need(t, "curl")
		// What curl does without being told otherwise on http:// URLs with this option: Upgrade: h2c.
		out, err := l.curl("http://"+allowedHost+"/request", "--http2")
		if err != nil {
			t.Fatal(err)
		}
		var got heard
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		if got.Method != "GET" || got.Target != "/request" || got.Host != allowedHost || !strings.HasPrefix(got.Header.Get("User-Agent"), "curl/") {
			t.Errorf("the upstream heard %+v", got)
		}
		for _, field := range []string{"Connection", "Upgrade", "Http2-Settings", "Via", "X-Forwarded-For", "Accept-Encoding"} {
			if v := got.Header.Get(field); v != "" {
				t.Errorf("the upstream heard %s: %s", field, v)
			}
		}
	})
	t.Run("events", func(t *testing.T) {
		c := l.converse(t, gatewayHTTP)
		c.say(t, head("GET /events?every=1s", allowedHost))
		hears(t, c.stream(t), 2) // before there is a third
	})
	t.Run("http-024", func(t *testing.T) {
		need(t, "curl")
		to := func(url string) string { return "http://" + allowedHost + "/redirect?to=" + url }
		out, err := l.curl(to("http://169.254.169.254/"), "--include")
		if err != nil || !strings.Contains(out, "Location: http://169.254.169.254/\r\n") {
			t.Errorf("the redirect does not come as it was sent: %q, %v", out, err)
		}
		for _, tc := range []struct {
			url, says string
			options   []string
		}{
			{"http://" + evilHost + "/", "(6) Could not resolve host: " + evilHost, nil},
			// As if the client knew the gateway without DNS.
			{"http://" + evilHost + "/", "returned error: 403", []string{"--resolve", evilHost + ":80:" + gatewayAddr.String()}},
			{"http://169.254.169.254/", "returned error: 403", []string{"--connect-to", "169.254.169.254:80:" + gatewayHTTP.String()}},
			{"http://169.254.169.254/", "(28)", []string{"--connect-timeout", "1"}}, // past the gateway there is no way
		} {
			out, err := l.curl(to(tc.url), append(tc.options, "--location", "--fail")...)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("redirect to %s, curl %q: %q, %v, want %q", tc.url, tc.options, out, err, tc.says)
			}
		}
	})
	if n := l.internet.dns.questions(evilHost); n != 0 {
		t.Errorf("%s is not allowed, and the gateway asked for it %d times", evilHost, n)
	}
	if n := g.metric(t, "caddy_sandboxallow_panics_total"); n != 0 {
		t.Errorf("%v panics", n)
	}
}

// A gateway of TLS alone has no way through for plain HTTP: nobody listens, and nothing is forwarded.
func TestTLSOnly(t *testing.T) {
	l, _ := httpLab(t, config{tlsOnly: true, policy: "policy default {\n\tmode open\n}\n"})
	l.reaches(t, allowedHost)
	t.Run("http-025", func(t *testing.T) {
		for _, to := range []netip.AddrPort{gatewayHTTP, gatewayProxy} {
			if c, err := l.sandbox.dial("tcp", to); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s: %v, %v, want a refused connection", to, c, err)
			}
		}
	})
}

// openSocket opens a WebSocket over a connection.
func openSocket(tb testing.TB, c net.Conn, url string) *websocket.Conn {
	tb.Helper()
	cfg, err := websocket.NewConfig(url, "http://localhost/")
	if err != nil {
		tb.Fatal(err)
	}
	ws, err := websocket.NewClient(cfg, c)
	if err != nil {
		tb.Fatalf("%s: %v", url, err)
	}
	return ws
}

// talks fails the test unless what a WebSocket sends comes back, several times.
func talks(tb testing.TB, ws *websocket.Conn) {
	tb.Helper()
	for _, text := range []string{"one", strings.Repeat("two", 20_000), "three"} {
		if _, err := io.WriteString(ws, text); err != nil {
			tb.Fatal(err)
		}
		got := make([]byte, len(text)) // in as many messages as the server likes
		if n, err := io.ReadFull(ws, got); err != nil || string(got) != text {
			tb.Fatalf("%d octets came back for %d, or others: %v", n, len(text), err)
		}
	}
}

// hears fails the test unless n events come out of a stream.
func hears(tb testing.TB, events io.Reader, n int) {
	tb.Helper()
	start := time.Now()
	b := make([]byte, n*len(event))
	if m, err := io.ReadFull(events, b); err != nil || string(b) != strings.Repeat(event, n) {
		tb.Errorf("%q after %s, %v, want %d events", b[:m], time.Since(start), err, n)
	}
}
