package caddymodule

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/decision"
)

// Requests of HTTP/2 in clear text are judged as others, each by its own authority.
func TestHTTP2(t *testing.T) {
	g := startHTTP(t, setup{sites: []string{transparentSite, forwardProxy}})
	www, evil := fmt.Sprintf("www.example.com:%d", g.web.port), fmt.Sprintf("evil.test:%d", g.web.port)
	pseudo := func(method, authority, path string, more ...string) []string {
		return append([]string{":method: " + method, ":scheme: http", ":authority: " + authority, ":path: " + path}, more...)
	}
	for site := range 2 {
		h := g.dialHTTP2(site)
		for range 3 {
			if r := h.get(www, "/p?q", "user-agent: x", "te: trailers").response(); r.status != 200 || r.header.Get("Server") != "" {
				t.Errorf("got %+v", r)
			}
			got := g.web.next(t)
			want := []string{"Host: " + www, "User-Agent: x", "Te: trailers"}
			if got.line != "GET /p?q HTTP/1.1" || !sameFields(got.fields, want) || got.conn != 1 {
				t.Errorf("the origin got %+v, want %q", got, want)
			}
			if r := h.get(evil, "/").response(); !r.is(403, "not_allowed") {
				t.Errorf("got %+v", r)
			}
		}
	}

	for _, tc := range []struct {
		name   string
		fields []string
		status int // 0: the stream is reset, or refused by Go's server or Caddy's
		reason string
		line   string // what the origin gets
	}{
		{"host too", pseudo("GET", www, "/", "host: "+www), 200, "", "GET / HTTP/1.1"},
		{"host differs", pseudo("GET", www, "/", "host: "+evil), 0, "bad_request", ""},
		{"host differs", pseudo("GET", evil, "/", "host: "+www), 0, "bad_request", ""},
		{"host in other case", pseudo("GET", www, "/", "host: "+strings.ToUpper(www)), 0, "bad_request", ""},
		{"two hosts", pseudo("GET", www, "/", "host: "+www, "host: "+evil), 0, "bad_request", ""},
		{"host alone", []string{":method: GET", ":scheme: http", ":path: /", "host: " + www}, 200, "", "GET / HTTP/1.1"},
		{"two hosts, no authority", []string{":method: GET", ":scheme: http", ":path: /", "host: " + www, "host: " + evil}, 0, "bad_request", ""},
		{"no host", []string{":method: GET", ":scheme: http", ":path: /"}, 400, "bad_request", ""},
		{"empty authority", pseudo("GET", "", "/"), 400, "bad_request", ""},
		{"two authorities", pseudo("GET", www, "/", ":authority: "+evil), 0, "", ""},
		{"path in authority", pseudo("GET", www+"/evil", "/"), 0, "bad_request", ""},
		{"userinfo", pseudo("GET", "a@"+www, "/"), 0, "bad_request", ""},
		{"address", pseudo("GET", "127.0.0.2", "/"), 403, "bad_name", ""},
		{"case and dot", pseudo("GET", fmt.Sprintf("WWW.example.com.:%d", g.web.port), "/"), 200, "", "GET / HTTP/1.1"},
		{"space in path", pseudo("GET", www, "/x HTTP/1.1"), 400, "bad_request", ""},
		{"space in query", pseudo("GET", www, "/x?y HTTP/1.0"), 400, "bad_request", ""},
		{"line end in path", pseudo("GET", www, "/x\r\nHost: evil.test"), 0, "", ""},
		{"line end in query", pseudo("GET", www, "/x?\r\nHost: evil.test"), 0, "", ""},
		{"line end in field", pseudo("GET", www, "/", "x: a\r\nHost: evil.test"), 0, "", ""},
		{"NUL in field", pseudo("GET", www, "/", "x: a\x00b"), 0, "", ""},
		{"odd path", pseudo("GET", www, "/a%2fb|c\"?x;y=%"), 200, "", "GET /a%2fb|c\"?x;y=% HTTP/1.1"},
		{"slashes", pseudo("GET", www, "//evil.test/"), 200, "", "GET //evil.test/ HTTP/1.1"},
		{"no slash", pseudo("GET", www, "x"), 0, "", ""},
		{"absolute path", pseudo("GET", www, "http://evil.test/"), 0, "", ""},
		{"method with a space", pseudo("GET /x", www, "/"), 0, "bad_request", ""},
		{"odd method", pseudo("FOO", www, "/"), 200, "", "FOO / HTTP/1.1"},
		{"connection", pseudo("GET", www, "/", "connection: close"), 0, "", ""},
		{"upgrade", pseudo("GET", www, "/", "upgrade: websocket"), 0, "", ""},
		{"transfer-encoding", pseudo("GET", www, "/", "transfer-encoding: chunked"), 0, "", ""},
		{"upper case", pseudo("GET", www, "/", "X: y"), 0, "", ""},
		{"extended CONNECT", []string{":method: CONNECT", ":protocol: websocket", ":scheme: http", ":path: /", ":authority: " + www}, 0, "bad_request", ""},
		{"CONNECT with a path", pseudo("CONNECT", www, "/"), 0, "", ""},
		{"cookies", pseudo("GET", www, "/", "cookie: a=b", "cookie: c=d"), 200, "", "GET / HTTP/1.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for site := range 2 {
				h := g.dialHTTP2(site)
				r := h.open(true, tc.fields...).response()
				switch {
				case tc.status == 0 && r.err != nil, tc.status == 0 && r.status == 400 && (r.reason() == "" || r.reason() == tc.reason):
				case tc.reason != "" && r.is(tc.status, tc.reason):
				case tc.reason != "" && r.status == tc.status && r.reason() == "": // Caddy itself
				case tc.reason == "" && r.status == tc.status && r.err == nil:
					if got := g.web.next(t); got.line != tc.line || got.field("Host") != www {
						t.Errorf("the origin got %+v", got)
					}
				default:
					t.Errorf("site %d: got %+v, want %d %s", site, r, tc.status, tc.reason)
				}
				g.web.none(t)
				h.Close()
			}
		})
	}
	t.Run("CONNECT to the transparent site", func(t *testing.T) {
		h := g.dialHTTP2(0)
		if r := h.open(false, ":method: CONNECT", ":authority: "+www).response(); !r.is(400, "bad_request") {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("body and trailers", func(t *testing.T) {
		g.web.on("/trailers", func(c *served, r request) {
			c.say("HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 3\r\n\r\n")
		})
		h := g.dialHTTP2(0)
		s := h.open(false, pseudo("POST", www, "/trailers", "trailer: x-late")...)
		s.write([]byte("hello"), false)
		s.trailers("x-late: y")
		r := s.response()
		if r.body != "abc" || r.trailer.Get("X-Sum") != "3" {
			t.Errorf("got %+v", r)
		}
		if got := g.web.next(t); got.body != "hello" || !slices.Equal(got.trailer, []string{"X-Late: y"}) {
			t.Errorf("the origin got %+v", got)
		}
	})
	t.Run("broken off", func(t *testing.T) {
		g.web.on("/half", func(c *served, r request) {
			c.say("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
			time.Sleep(50 * time.Millisecond)
			c.Close()
		})
		if r := g.dialHTTP2(0).get(www, "/half").response(); r.status != 200 || r.err == nil {
			t.Errorf("got %+v, want a reset", r)
		}
		g.web.next(t)
	})
	t.Run("revoked", func(t *testing.T) {
		say := sse(g.web, streamHead)
		defer close(say)
		h := g.dialHTTP2(0)
		a, b := h.get(www, "/sse"), h.get(fmt.Sprintf("api.example.com:%d", g.web.port), "/sse")
		a.head()
		b.head()
		g.set(document(g.web.port, "\tdeny www.example.com"))
		if r := a.response(); r.err == nil {
			t.Errorf("got %+v, want a reset", r)
		}
		if e := g.entry(msgRevoked); e["name"] != "www.example.com" || e["reason"] != "denied" {
			t.Errorf("log: %v", e)
		}
		say <- chunk("more") // to either: the one that is cut reads no more
		say <- chunk("more")
		b.wait("bytes", func() bool { return b.data.Len() > 0 })
	})
	panics(t, g)
}

func TestConnectHTTP2(t *testing.T) {
	g := startProxy(t, setup{options: "hello_timeout 500ms"})
	tlsOrigin := g.web.speaks()
	openStream := func(t *testing.T, h *http2Client, name string) *http2Stream {
		t.Helper()
		s := h.open(false, ":method: CONNECT", ":authority: "+g.target(name))
		if status := s.head(); status != 200 {
			t.Fatalf("CONNECT %s: %d", name, status)
		}
		return s
	}
	in := func(s *http2Stream) streamEnd { return streamEnd{s.c, s} }
	h := g.dialHTTP2(0)

	t.Run("forwardproxy-025", func(t *testing.T) {
		var ins []*tls.Conn
		for i := range 5 { // on one connection, at a time
			c := tls.Client(in(openStream(t, h, "www.example.com")), g.config("www.example.com"))
			if err := echo(c, fmt.Sprintf("tunnel %d", i)); err != nil {
				t.Fatal(err)
			}
			ins = append(ins, c)
		}
		if n := open.len(); n != 5 {
			t.Errorf("%d tunnels are open, want 5", n)
		}
		for _, c := range ins {
			if err := echo(c, strings.Repeat("again", 100)); err != nil {
				t.Error(err)
			}
			c.Close()
		}
		waitFor(t, "the tunnels to be gone", func() bool { return open.len() == 0 && open.held.Load() == 1 })
		if e := g.entry(decision.MsgAllowed); e["layer"] != "proxy" || e["client"] != "127.0.0.1" || e["name"] != "www.example.com" {
			t.Errorf("log: %v", e)
		}
		if e := g.entry(msgClosed); e["bytes_in"].(float64) == 0 || e["bytes_out"].(float64) == 0 {
			t.Errorf("log: %v", e)
		}

		s := h.open(false, ":method: CONNECT", ":authority: "+g.target("evil.test"))
		if r := s.response(); !r.is(403, "not_allowed") {
			t.Errorf("got %+v", r)
		}
		s = h.open(false, ":method: CONNECT", ":protocol: websocket", ":scheme: http", ":path: /", ":authority: "+g.target("www.example.com"))
		if r := s.response(); r.err == nil && !r.is(400, "bad_request") {
			t.Errorf("extended CONNECT: got %+v", r)
		}
		if r := h.open(false, ":method: CONNECT", ":authority: dead.example.com:"+fmt.Sprint(g.web.port)).response(); !r.is(502, "dial_error") {
			t.Errorf("got %+v", r)
		}
		for _, authority := range []string{"www.example.com", "www.example.com:", "www.example.com:0443", "www.example.com:443/x", ""} {
			r := h.open(false, ":method: CONNECT", ":authority: "+authority).response()
			if r.err == nil && r.status != 400 {
				t.Errorf("%q: got %+v", authority, r)
			}
		}
	})
	h.Close()
	h = g.dialHTTP2(0)
	hello := clientHello(t, "www.example.com")
	for _, tc := range []struct {
		name   string
		send   []byte
		reason string
		answer []byte
	}{
		{"forwardproxy-003", bytes.Replace(hello, []byte("www.example.com"), []byte("www.example.net"), 1), "name_mismatch", []byte{21, 3, 3, 0, 2, 2, 112}},
		{"not TLS", []byte("CONNECT evil.test:443 HTTP/1.1\r\n\r\n"), "not_tls", nil},
		{"silence", nil, "hello_timeout", nil},
		{"half a hello", hello[:100], "hello_timeout", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g.skipLog()
			s := openStream(t, h, "www.example.com")
			if tc.send != nil {
				s.write(tc.send, false)
			}
			if r := s.response(); !bytes.Equal([]byte(r.body), tc.answer) {
				t.Errorf("got %+v, want %v", r, tc.answer)
			}
			if e := g.entry(decision.MsgDenied); e["reason"] != tc.reason {
				t.Errorf("log: %v, want %s", e, tc.reason)
			}
			// The connection is good for others.
			if err := echo(tls.Client(in(openStream(t, h, "www.example.com")), g.config("www.example.com")), "x"); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("ends at once", func(t *testing.T) {
		s := openStream(t, h, "www.example.com")
		s.write(nil, true)
		if r := s.response(); r.err != nil || r.body != "" {
			t.Errorf("got %+v", r)
		}
	})

	g.set(opaqueDocument)
	g.plain()
	start := func(t *testing.T) (*http2Stream, *net.TCPConn) {
		t.Helper()
		s := openStream(t, h, "www.example.com")
		up := g.origin(t).(*net.TCPConn)
		s.write([]byte("ping"), false)
		if _, err := io.ReadFull(up, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		return s, up
	}
	t.Run("client half", func(t *testing.T) {
		s, up := start(t)
		s.write([]byte("last"), true)
		if got, err := io.ReadAll(up); err != nil || string(got) != "last" {
			t.Errorf("the origin got %q, %v", got, err)
		}
		io.WriteString(up, "still answers")
		up.Close()
		if r := s.response(); r.err != nil || r.body != "still answers" {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("origin ends", func(t *testing.T) {
		s, up := start(t)
		io.WriteString(up, "bye")
		up.CloseWrite()
		if r := s.response(); r.err != nil || r.body != "bye" {
			t.Errorf("got %+v", r)
		}
		if err := ended(up); err != nil && !reset(err) {
			t.Errorf("the origin sees %v", err)
		}
	})
	t.Run("client resets", func(t *testing.T) {
		s, up := start(t)
		s.reset()
		if err := ended(up); !reset(err) {
			t.Errorf("the origin sees %v, want a reset", err)
		}
	})
	t.Run("client's connection ends", func(t *testing.T) {
		h := g.dialHTTP2(0)
		s := openStream(t, h, "www.example.com")
		up := g.origin(t)
		s.write([]byte("x"), false)
		h.Close()
		if err := ended(up); !reset(err) {
			t.Errorf("the origin sees %v, want a reset", err)
		}
	})
	t.Run("origin resets", func(t *testing.T) {
		s, up := start(t)
		resetAll(up)
		if r := s.response(); r.err == nil {
			t.Errorf("got %+v, want a reset", r)
		}
	})
	t.Run("upstream first", func(t *testing.T) {
		s := openStream(t, h, "www.example.com")
		io.WriteString(g.origin(t), "SSH-2.0-x\r\n")
		s.wait("the banner", func() bool { return s.data.String() == "SSH-2.0-x\r\n" })
		s.reset()
	})
	t.Run("revoked", func(t *testing.T) {
		s, up := start(t)
		other, _ := start(t)
		_ = other
		g.set("policy default {\n\tprivate 127.0.0.2\n\tallow api.example.com:%d\n}\n")
		if r := s.response(); r.err == nil {
			t.Errorf("got %+v, want a reset", r)
		}
		if err := ended(up); !reset(err) {
			t.Errorf("the origin sees %v, want a reset", err)
		}
		g.set(opaqueDocument)
	})
	// What a client does not read is not lost, and does not hold up the other streams.
	t.Run("much, both ways", func(t *testing.T) {
		g.set(tlsDocument)
		g.web.speak(tlsOrigin)
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetUnencryptedHTTP2(true)
		done := make(chan error)
		for range 4 {
			go func() {
				r, w := io.Pipe()
				resp, err := tr.RoundTrip(&http.Request{Method: "CONNECT", URL: &url.URL{Scheme: "http", Host: g.addrs[0]}, Host: g.target("www.example.com"), Body: r, Header: http.Header{}})
				if err != nil {
					done <- err
					return
				}
				c := tls.Client(pipeEnd{resp.Body, w}, g.config("www.example.com"))
				defer c.Close()
				const size = 8 << 20
				go func() {
					b := make([]byte, 64<<10)
					for range size / len(b) {
						c.Write(b)
					}
				}()
				if n, err := io.CopyN(io.Discard, c, size); err != nil {
					err = fmt.Errorf("%d octets came back: %w", n, err)
					done <- err
					return
				}
				done <- nil
			}()
		}
		for range 4 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		waitFor(t, "the tunnels to be gone", func() bool {
			tr.CloseIdleConnections()
			return open.held.Load() == 1
		})
	})
	h.Close()
	waitFor(t, "the places to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
	panics(t, g.httpGateway)
}

// pipeEnd is the body of a response and that of its request as one connection.
type pipeEnd struct {
	io.ReadCloser
	w *io.PipeWriter
}

func (p pipeEnd) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p pipeEnd) Close() error                { return errors.Join(p.w.Close(), p.ReadCloser.Close()) }

func (pipeEnd) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (pipeEnd) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (pipeEnd) SetDeadline(time.Time) error      { return nil }
func (pipeEnd) SetReadDeadline(time.Time) error  { return nil }
func (pipeEnd) SetWriteDeadline(time.Time) error { return nil }

// A tunnel in which nothing moves ends in HTTP/2 too; one that pauses within the limit does not.
func TestConnectHTTP2Idle(t *testing.T) {
	g := startProxy(t, setup{document: opaqueDocument, options: "idle_timeout 500ms"})
	g.plain()
	h := g.dialHTTP2(0)
	s := h.open(false, ":method: CONNECT", ":authority: "+g.target("www.example.com"))
	if status := s.head(); status != 200 {
		t.Fatal(status)
	}
	up := g.origin(t)
	for i := range 6 { // now from one side, now from the other
		time.Sleep(200 * time.Millisecond)
		if i%2 == 0 {
			io.WriteString(up, "x")
		} else {
			s.write([]byte("y"), false)
		}
	}
	s.wait("bytes", func() bool { return s.data.String() == "xxx" || s.ended || s.reset_ })
	b := make([]byte, 3)
	if _, err := io.ReadFull(up, b); err != nil || string(b) != "yyy" {
		t.Fatalf("a tunnel that is not idle: the origin got %q, %v", b, err)
	}
	start := time.Now()
	s.response()
	if d := time.Since(start); d < 250*time.Millisecond {
		t.Errorf("ended after %v, want 500 ms", d)
	}
	if e := g.entry(msgClosed); !strings.Contains(fmt.Sprint(e["error"]), "idle") {
		t.Errorf("log: %v", e)
	}
}

// A forward proxy that is reached over TLS, with HTTP/1.1 and HTTP/2.
func TestProxyTLS(t *testing.T) {
	cert, roots := certificate(t, "proxy.test")
	dir := t.TempDir()
	key, err := x509.MarshalECPrivateKey(cert.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	for file, b := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert.Certificate[0]}, keyFile: {Type: "EC PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	head := "tls " + certFile + " " + keyFile + "\n"
	g := startProxy(t, setup{sites: []string{head + forwardProxy, head + transparentSite}, options: "max_tunnels 5"})
	dial := func(site int, proto string) *tls.Conn {
		c := tls.Client(g.dial(site).Conn, &tls.Config{ServerName: "proxy.test", RootCAs: roots, NextProtos: []string{proto}})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	t.Run("HTTP/1.1", func(t *testing.T) {
		c := newClient(t, dial(0, "http/1.1"))
		if r := c.connect(g.target("www.example.com")); r.status != 200 {
			t.Fatalf("got %+v", r)
		}
		if err := echo(c.tlsIn(g.config("www.example.com")), strings.Repeat("x", 100_000)); err != nil {
			t.Error(err)
		}
		c.Close()
		defer g.web.speak(g.web.speaks())
		g.web.speak(nil)
		c = newClient(t, dial(0, "http/1.1"))
		if r := c.get("GET http://"+g.target("www.example.com")+"/ HTTP/1.1", "Host: x"); r.status != 200 {
			t.Errorf("got %+v", r)
		}
		c.Close()
	})
	t.Run("HTTP/2", func(t *testing.T) {
		h := newHTTP2Client(t, dial(0, "h2"))
		s := h.open(false, ":method: CONNECT", ":authority: "+g.target("www.example.com"))
		if status := s.head(); status != 200 {
			t.Fatalf("got %d", status)
		}
		if err := echo(tls.Client(streamEnd{h, s}, g.config("www.example.com")), strings.Repeat("x", 50_000)); err != nil {
			t.Error(err)
		}
		// :scheme is lost to handlers, so what is not CONNECT could be meant for https.
		if r := h.get(g.target("www.example.com"), "/").response(); !r.is(400, "bad_request") {
			t.Errorf("got %+v", r)
		}
		h.Close()
	})
	t.Run("transparent", func(t *testing.T) {
		c := newClient(t, dial(1, "http/1.1"))
		if r := c.get("GET / HTTP/1.1", g.host("www.example.com")); !r.is(400, "bad_request") {
			t.Errorf("got %+v", r)
		}
		c.Close()
	})
	t.Run("limit", func(t *testing.T) {
		g.skipLog()
		waitFor(t, "the places to be given back", func() bool { return open.held.Load() == 0 })
		for range 5 {
			g.dial(0) // says nothing, not even in TLS
		}
		waitFor(t, "the places to be taken", func() bool { return open.held.Load() == 5 })
		c := tls.Client(g.dial(0).Conn, &tls.Config{ServerName: "proxy.test", RootCAs: roots})
		if err := c.Handshake(); err == nil {
			t.Error("above the limit a connection is served")
		}
		if e := g.entry(decision.MsgDenied); e["reason"] != "limit" {
			t.Errorf("log: %v", e)
		}
	})
}
