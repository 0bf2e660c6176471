package caddymodule

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// The upstream is sent what the client has sent, but for the fields of the connection; nothing is added.
func TestForwardedFields(t *testing.T) {
	g := startHTTP(t, setup{sites: []string{transparentSite, forwardProxy}})
	www := g.host("www.example.com")
	for _, tc := range []struct {
		name string
		send []string // after Host
		want []string // after Host; nil: as sent
	}{
		{"nothing", nil, nil},
		{"usual", []string{"User-Agent: curl/8", "Accept: */*", "Accept-Encoding: gzip, br", "Cookie: a=b; c=d", "Authorization: Bearer x"}, nil},
		{"of other proxies", []string{"X-Forwarded-For: 1.2.3.4", "X-Forwarded-For: 5.6.7.8", "X-Forwarded-Host: evil.test", "X-Forwarded-Proto: https",
			"Forwarded: for=1.2.3.4", "Via: 1.0 fred", "X-Real-IP: 1.2.3.4"}, nil},
		{"several of a name", []string{"Accept: a", "Accept: b", "Accept: a"}, nil},
		{"ranges and conditions", []string{"Range: bytes=0-1", "If-None-Match: \"x\"", "If-Modified-Since: Mon, 02 Jan 2006 15:04:05 GMT"}, nil},
		{"octets", []string{"X: \xff\xfe caf\xe9 \x09 \"'<>"}, nil},
		{"empty", []string{"Accept: ", "User-Agent: ", "X: "}, []string{"Accept: ", "X: "}}, // net/http cannot send an empty User-Agent
		{"hop by hop", []string{"Connection: keep-alive, X-Hop", "Connection: x-other", "X-Hop: 1", "X-Other: 2", "X-End: 3", "Keep-Alive: timeout=5",
			"Proxy-Connection: keep-alive", "Proxy-Authorization: Basic c2VjcmV0OnNlY3JldA==", "Proxy-Authenticate: x", "TE: gzip", "Trailer: X"}, []string{"X-End: 3"}},
		{"of other proxies, hop by hop", []string{"Connection: X-Forwarded-For, Forwarded", "X-Forwarded-For: 1.2.3.4", "Forwarded: for=x", "X-Forwarded-Proto: https"}, []string{"X-Forwarded-Proto: https"}},
		{"te", []string{"TE: gzip, trailers", "TE: deflate"}, []string{"Te: trailers"}},
		{"close", []string{"Connection: close"}, []string{}},
		{"host named by connection", []string{"Connection: Host, Content-Length"}, []string{}},
		{"upgrade", []string{"Connection: Upgrade", "Upgrade: TLS/1.0, HTTP/2.0"}, []string{}},
		{"upgrade to two", []string{"Connection: Upgrade", "Upgrade: websocket, h2c"}, []string{}},
		{"upgrade, one of two", []string{"Connection: Upgrade", "Upgrade: h2c", "Upgrade: websocket"}, []string{}},
		{"upgrade without connection", []string{"Upgrade: websocket"}, []string{}},
		{"upgrade with octets", []string{"Connection: Upgrade", "Upgrade: \xff"}, []string{}},
		{"http2-settings", []string{"HTTP2-Settings: AAMAAABkAAQAAP__"}, []string{}},
		{"priority", []string{"Priority: u=1", "Sec-Fetch-Mode: cors", "DNT: 1", "Origin: http://x", "Referer: http://y/"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := tc.want
			if want == nil {
				want = tc.send
			}
			for site, target := range []string{"/", fmt.Sprintf("http://www.example.com:%d/", g.web.port)} {
				if r := g.ask(site, append([]string{"GET " + target + " HTTP/1.1", www}, tc.send...)...); r.status != 200 {
					t.Errorf("got %+v", r)
					continue
				}
				got := g.web.next(t)
				if got.line != "GET / HTTP/1.1" || !sameFields(got.fields, append([]string{www}, want...)) {
					t.Errorf("site %d: the origin got\n%q, want\n%q", site, sorted(got.fields), sorted(append([]string{www}, want...)))
				}
			}
		})
	}
}

// sameFields reports whether fields are the same, their names without regard to case.
func sameFields(got, want []string) bool {
	return slices.EqualFunc(sorted(got), sorted(want), func(a, b string) bool {
		an, av, _ := strings.Cut(a, ":")
		bn, bv, _ := strings.Cut(b, ":")
		return strings.EqualFold(an, bn) && strings.Trim(av, " \t") == strings.Trim(bv, " \t")
	})
}

// The target is sent on as it came.
func TestForwardedTarget(t *testing.T) {
	g := startHTTP(t, setup{sites: []string{transparentSite, forwardProxy}})
	www := g.host("www.example.com")
	for _, target := range []string{
		"/", "//", "//x", "///evil.test/", "/a//b", "/a/../b", "/./", "/%2f", "/%2F%2f", "/a%2fb%2Fc", "/%41", "/~-._!$&'()*+,;=:@", "/%", "/%zz",
		"/a|b", "/a%2fb|c", "/a\"b", "/[x]", "/{x}", "/^`", "/caf\xe9", "/%c3%a9", "/a\\b", "/http://evil.test/", "/#x", "/a%00b", "/a%0d%0ab",
		"/?", "/x?", "/x?a=b&c", "/x?a;b", "/x?a;b=c&d", "/x?%", "/x?%zz&a=%", "/x?a=b?c=d", "/x?a=\"<>|", "/x?caf\xe9", "/x?a+b%20c", "/x?&&=", "/x?#y", "/x?/../",
		"/.well-known/acme-challenge/x", "/*", "/x:y", "/:80", "/;", "/;x=y/z",
	} {
		t.Run(target, func(t *testing.T) {
			for site, sent := range []string{target, fmt.Sprintf("http://www.example.com:%d%s", g.web.port, target)} {
				r := g.ask(site, "GET "+sent+" HTTP/1.1", www)
				if r.status == 400 && r.reason() == "" {
					g.web.none(t)
					if want := []string{"/%", "/%zz"}; !slices.Contains(want, target) { // net/url wants two digits behind it
						t.Errorf("site %d: got %+v", site, r)
					}
					continue
				}
				if r.status != 200 {
					t.Errorf("site %d: got %+v", site, r)
					continue
				}
				if got := g.web.next(t); got.line != "GET "+target+" HTTP/1.1" {
					t.Errorf("site %d: the origin got %q", site, got.line)
				}
			}
		})
	}
	for sent, want := range map[string]string{"": "/", "?": "/?", "?x": "/?x"} {
		r := g.ask(1, fmt.Sprintf("GET http://www.example.com:%d%s HTTP/1.1", g.web.port, sent), www)
		if r.status != 200 {
			t.Errorf("empty path, %q: got %+v", sent, r)
			continue
		}
		if got := g.web.next(t); got.line != "GET "+want+" HTTP/1.1" {
			t.Errorf("empty path, %q: the origin got %q, want %q", sent, got.line, want)
		}
	}
}

// The client is sent what the upstream has sent; nothing is added but a Date.
func TestForwardedResponse(t *testing.T) {
	g := startHTTP(t, setup{})
	www := g.host("www.example.com")
	for _, tc := range []struct {
		name   string
		method string
		send   string
		status int
		fields []string // but for Date
		body   string
	}{
		{"nothing", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, []string{"Content-Length: 0"}, ""},
		{"no content type", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", 200, []string{"Content-Length: 6"}, "<html>"},
		{"server", "GET", "HTTP/1.1 200 OK\r\nServer: theirs\r\nContent-Length: 1\r\n\r\nx", 200, []string{"Server: theirs", "Content-Length: 1"}, "x"},
		{"several of a name", "GET", "HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nVia: x\r\nContent-Length: 0\r\n\r\n", 200, []string{"Set-Cookie: a", "Set-Cookie: b", "Via: x", "Content-Length: 0"}, ""},
		{"hop by hop", "GET", "HTTP/1.1 200 OK\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n", 200, []string{"Content-Length: 0"}, ""},
		{"gzip", "GET", "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00", 200, []string{"Content-Encoding: gzip", "Content-Length: 4"}, "\x1f\x8b\x08\x00"},
		{"status", "GET", "HTTP/1.1 418 Short and stout\r\nContent-Length: 0\r\n\r\n", 418, []string{"Content-Length: 0"}, ""},
		{"status of no class", "GET", "HTTP/1.1 799 X\r\nContent-Length: 0\r\n\r\n", 799, []string{"Content-Length: 0"}, ""},
		{"chunked", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n2\r\nbc\r\n0\r\n\r\n", 200, []string{}, "abc"},
		{"until the end", "GET", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc", 200, []string{}, "abc"},
		{"1.0", "GET", "HTTP/1.0 200 OK\r\n\r\nabc", 200, []string{}, "abc"},
		{"head", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nContent-Type: x/y\r\n\r\n", 200, []string{"Content-Length: 1000", "Content-Type: x/y"}, ""},
		{"head without a length", "HEAD", "HTTP/1.1 200 OK\r\nX: y\r\n\r\n", 200, []string{"X: y"}, ""},
		{"not modified", "GET", "HTTP/1.1 304 Not Modified\r\nEtag: \"x\"\r\n\r\n", 304, []string{"Etag: \"x\""}, ""},
		{"not modified, with a length", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n", 304, []string{}, ""},
		{"no content", "DELETE", "HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", 204, []string{"X: y"}, ""},
		{"partial", "GET", "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-0/2\r\nContent-Length: 1\r\n\r\nx", 206, []string{"Content-Range: bytes 0-0/2", "Content-Length: 1"}, "x"},
		{"folded", "GET", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n", 200, []string{"X: a b", "Content-Length: 0"}, ""},
		{"ours in name", "GET", "HTTP/1.1 200 OK\r\nX-Sandboxallow-Reason: x\r\nContent-Length: 0\r\n\r\n", 200, []string{"X-Sandboxallow-Reason: x", "Content-Length: 0"}, ""},
		{"early hints", "GET", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", 200, []string{"Content-Length: 6"}, "<html>"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g.web.on("/r", func(c *served, r request) {
				c.say(tc.send)
				if strings.Contains(tc.send, "HTTP/1.0") || strings.Contains(tc.send, "Connection: close") {
					c.Close()
				}
			})
			for range 10 { // some of it depends on what comes together
				c := g.dial(0)
				c.send(tc.method+" /r HTTP/1.1", www)
				status, fields, body := c.raw(t, tc.method)
				fields = slices.DeleteFunc(fields, func(f string) bool { return strings.HasPrefix(f, "Date: ") })
				if status != tc.status || !slices.Equal(sorted(fields), sorted(tc.fields)) || body != tc.body {
					t.Errorf("got %d %q %q, want %d %q %q", status, sorted(fields), body, tc.status, sorted(tc.fields), tc.body)
				}
			}
		})
	}
}

// raw reads a response as its octets are, after those of class 1xx. Fields that only say where the body ends are
// left out: those of a body that has no length.
func (c *client) raw(t *testing.T, method string) (status int, fields []string, body string) {
	t.Helper()
	s := &served{c.Conn, c.in}
	for status < 200 {
		lines, err := s.head()
		if err != nil || len(lines) == 0 {
			t.Fatalf("no response: %v", err)
		}
		if _, err := fmt.Sscanf(lines[0], "HTTP/1.1 %d ", &status); err != nil {
			t.Fatalf("%q: %v", lines[0], err)
		}
		fields = lines[1:]
	}
	r := request{fields: fields}
	if method != "HEAD" && status != 204 && status != 304 {
		if err := s.body(&r); err != nil {
			t.Fatal(err)
		}
		fields = slices.DeleteFunc(fields, func(f string) bool { return f == "Transfer-Encoding: chunked" })
	}
	return status, fields, r.body
}

// An upstream cannot make the gateway panic, or say what the client would read as two responses.
func TestForwardedNonsense(t *testing.T) {
	g := startHTTP(t, setup{})
	for _, tc := range []struct{ name, send string }{
		{"status 099", "HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n"},
		{"status 000", "HTTP/1.1 000 X\r\nContent-Length: 0\r\n\r\n"},
		{"status -10", "HTTP/1.1 -10 X\r\nContent-Length: 0\r\n\r\n"},
		{"status 1000", "HTTP/1.1 1000 X\r\nContent-Length: 0\r\n\r\n"},
		{"many of class 1xx", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 50) + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		{"CR in a field", "HTTP/1.1 200 OK\r\nX: a\rHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		{"NUL in a field", "HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n"},
		{"length and chunked", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"},
		{"space in a name", "HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 0\r\n\r\n"},
		{"chunk of 2^64", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\nx"},
		{"1xx that ends", "HTTP/1.1 102 Processing\r\n\r\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g.web.on("/n", func(c *served, r request) {
				c.say(tc.send)
				c.Close()
			})
			c := g.dial(0)
			c.send("GET /n HTTP/1.1", g.host("www.example.com"), "Connection: close")
			all, _ := io.ReadAll(c)
			in := bufio.NewReader(strings.NewReader(string(all)))
			for {
				r, err := http.ReadResponse(in, &http.Request{Method: "GET"})
				if err != nil {
					if in.Buffered() > 0 || len(all) == 0 {
						t.Logf("ends with %v: %q", err, all)
					}
					break
				}
				if _, err := io.ReadAll(r.Body); err != nil || r.StatusCode >= 200 {
					if rest, _ := io.ReadAll(in); len(rest) > 0 {
						t.Errorf("behind the response: %q", rest)
					}
					break
				}
			}
		})
	}
	panics(t, g)
}

// panics checks that the handler has not panicked.
func panics(t *testing.T, g *httpGateway) {
	t.Helper()
	g.read = 0
	for _, e := range g.entries() {
		if _, ok := e["panic"]; ok {
			t.Errorf("a panic: %v", e["panic"])
		}
	}
}

// Bodies, in both directions.
func TestForwardedBodies(t *testing.T) {
	g := startHTTP(t, setup{})
	www := g.host("www.example.com")
	big := strings.Repeat("0123456789abcdef", 1<<20) // 16 MiB

	t.Run("length", func(t *testing.T) {
		c := g.dial(0)
		c.send("POST / HTTP/1.1", www, "Content-Length: 5")
		io.WriteString(c, "hello")
		if r := c.receive("POST"); r.status != 200 {
			t.Errorf("got %+v", r)
		}
		if got := g.web.next(t); got.body != "hello" || got.field("Content-Length") != "5" || got.field("Transfer-Encoding") != "" {
			t.Errorf("the origin got %+v", got)
		}
	})
	t.Run("empty", func(t *testing.T) {
		if r := g.ask(0, "POST / HTTP/1.1", www, "Content-Length: 0"); r.status != 200 {
			t.Errorf("got %+v", r)
		}
		if got := g.web.next(t); got.field("Content-Length") != "0" || got.field("Transfer-Encoding") != "" {
			t.Errorf("the origin got %+v", got)
		}
	})
	// However the body is framed, and whatever two readers could make of it, the origin gets one request.
	t.Run("two framings", func(t *testing.T) {
		for _, tc := range []struct {
			fields []string
			send   string
			body   string
		}{
			{[]string{"Content-Length: 6", "Transfer-Encoding: chunked"}, "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n", ""},
			{[]string{"Transfer-Encoding: chunked", "Content-Length: 3"}, "5\r\nhello\r\n0\r\n\r\n", "hello"},
			{[]string{"Transfer-Encoding: CHUNKED"}, "5\r\nhello\r\n0\r\n\r\n", "hello"},
			{[]string{"Transfer-Encoding: chunked"}, "00005;x=\"y\"\r\nhello\r\n000\r\n\r\n", "hello"},
			{[]string{"Content-Length: 5", "Content-Length: 5"}, "hello", "hello"},
			{[]string{"Transfer-Encoding: chunked"}, "5\nhello\r\n0\r\n\r\n", "-"},
			{[]string{"Transfer-Encoding: xchunked"}, "5\r\nhello\r\n0\r\n\r\n", "-"},
			{[]string{"Transfer-Encoding: chunked, identity"}, "5\r\nhello\r\n0\r\n\r\n", "-"},
			{[]string{"Transfer-Encoding: gzip, chunked"}, "5\r\nhello\r\n0\r\n\r\n", "-"},
			{[]string{"Transfer-Encoding:\x0bchunked"}, "5\r\nhello\r\n0\r\n\r\n", "-"},
			{[]string{"Transfer-Encoding : chunked"}, "5\r\nhello\r\n0\r\n\r\n", "-"},
			{[]string{"Content-Length: +5"}, "hello", "-"},
			{[]string{"Content-Length: 0x5"}, "hello", "-"},
			{[]string{"Content-Length: 5 6"}, "hello", "-"},
			{[]string{"Content-Length: 5,5"}, "hello", "-"},
			{[]string{"Transfer-Encoding: chunked"}, "-5\r\nhello\r\n0\r\n\r\n", "-"},
			{[]string{"Transfer-Encoding: chunked"}, "ffffffffffffffff1\r\nhello\r\n0\r\n\r\n", "-"},
		} {
			before := g.web.conns.Load()
			c := g.dial(0)
			c.send(append([]string{"POST /framed HTTP/1.1", www}, tc.fields...)...)
			io.WriteString(c, tc.send)
			r := c.receive("POST")
			if tc.body == "-" { // refused, or broken off on the way
				if r.status == 200 {
					t.Errorf("%q %q: got %+v", tc.fields, tc.send, r)
				}
				for drained := false; !drained; {
					select {
					case got := <-g.web.got:
						t.Errorf("%q %q: the origin got all of %+v", tc.fields, tc.send, got)
					default:
						drained = true
					}
				}
				continue
			}
			if r.status != 200 {
				t.Errorf("%q %q: got %+v", tc.fields, tc.send, r)
				continue
			}
			got := g.web.next(t)
			if got.line != "POST /framed HTTP/1.1" || got.body != tc.body || got.field("Content-Length") != "" && got.field("Transfer-Encoding") != "" {
				t.Errorf("%q %q: the origin got %+v", tc.fields, tc.send, got)
			}
			c.Close()
			time.Sleep(10 * time.Millisecond)
			g.web.none(t)
			if after := g.web.conns.Load(); after > before+1 {
				t.Errorf("%q %q: %d new connections", tc.fields, tc.send, after-before)
			}
		}
	})
	t.Run("chunked, with trailers", func(t *testing.T) {
		c := g.dial(0)
		c.send("POST / HTTP/1.1", www, "Transfer-Encoding: chunked", "Trailer: X-Sum, X-Late")
		io.WriteString(c, "3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nX-Sum: 5\r\nX-Late: y\r\n\r\n")
		if r := c.receive("POST"); r.status != 200 {
			t.Errorf("got %+v", r)
		}
		got := g.web.next(t)
		if got.body != "abcde" || got.field("Content-Length") != "" || got.field("Transfer-Encoding") != "chunked" {
			t.Errorf("the origin got %+v", got)
		}
		if want := []string{"X-Late: y", "X-Sum: 5"}; !slices.Equal(sorted(got.trailer), want) {
			t.Errorf("the origin got the trailer %q, want %q", got.trailer, want)
		}
	})
	t.Run("upload", func(t *testing.T) {
		c := g.dial(0)
		c.send("PUT / HTTP/1.1", www, fmt.Sprintf("Content-Length: %d", len(big)))
		io.WriteString(c, big)
		if r := c.receive("PUT"); r.status != 200 {
			t.Errorf("got %+v", r)
		}
		if got := g.web.next(t); got.body != big {
			t.Errorf("the origin got %d octets, or others", len(got.body))
		}
	})
	t.Run("download", func(t *testing.T) {
		g.web.on("/big", func(c *served, r request) {
			c.say(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(big)))
			c.say(big)
		})
		if r := g.ask(0, "GET /big HTTP/1.1", www); r.err != nil || r.body != big {
			t.Errorf("got %d octets, or others, %v", len(r.body), r.err)
		}
		g.web.next(t)
	})
	t.Run("response trailers", func(t *testing.T) {
		g.web.on("/trailers", func(c *served, r request) {
			c.say("HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 3\r\nX-Unsaid: y\r\n\r\n")
		})
		r := g.ask(0, "GET /trailers HTTP/1.1", www, "TE: trailers")
		if r.body != "abc" || r.trailer.Get("X-Sum") != "3" {
			t.Errorf("got %+v", r)
		}
		g.web.next(t)
	})
	// nothing fails if more comes within a while.
	nothing := func(t *testing.T, c *client) {
		t.Helper()
		c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if b, err := c.in.Peek(1); err == nil {
			t.Errorf("%q comes unasked", b)
		}
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
	}
	t.Run("expect", func(t *testing.T) {
		g.web.on("/expect", func(c *served, r request) {
			c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if _, err := c.in.Peek(1); err == nil {
				c.say("HTTP/1.1 500 The body came unasked\r\nContent-Length: 0\r\n\r\n")
				return
			}
			c.SetReadDeadline(time.Time{})
			c.say("HTTP/1.1 100 Continue\r\n\r\n")
			c.body(&r)
			c.say(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(r.body), r.body))
		})
		c := g.dial(0)
		for range 2 {
			c.send("POST /expect HTTP/1.1", www, "Content-Length: 5", "Expect: 100-continue")
			if line, err := c.in.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
				t.Fatalf("got %q, %v", line, err)
			}
			c.in.ReadString('\n')
			io.WriteString(c, "hello")
			r := c.receive("POST")
			for r.status == 100 { // the origin's and that of net/http, which sees the body being read, may both come
				r = c.receive("POST")
			}
			if r.status != 200 || r.body != "hello" || r.close {
				t.Errorf("got %+v", r)
			}
			if got := g.web.next(t); got.field("Expect") != "100-continue" {
				t.Errorf("the origin got %q", got.fields)
			}
		}
	})
	// An origin that does not know of it says nothing. The client does not wait for ever.
	t.Run("expect, unknown", func(t *testing.T) {
		g.web.on("/unknown", func(c *served, r request) {
			c.body(&r)
			c.say(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(r.body), r.body))
		})
		c := g.dial(0)
		c.send("POST /unknown HTTP/1.1", www, "Content-Length: 5", "Expect: 100-continue")
		if r := c.receive("POST"); r.status != 100 {
			t.Errorf("got %+v", r)
		}
		io.WriteString(c, "hello")
		if r := c.receive("POST"); r.status != 200 || r.body != "hello" {
			t.Errorf("got %+v", r)
		}
		g.web.next(t)
	})
	t.Run("expect, refused by the origin", func(t *testing.T) {
		g.web.on("/refuse", func(c *served, r request) {
			c.say("HTTP/1.1 413 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			c.Close()
		})
		c := g.dial(0)
		if r := c.get("POST /refuse HTTP/1.1", www, "Content-Length: 5", "Expect: 100-continue"); r.status != 413 || !r.close {
			t.Errorf("got %+v", r)
		}
		nothing(t, c)
		g.web.next(t)
	})
	t.Run("expect, denied", func(t *testing.T) {
		c := g.dial(0)
		r := c.get("POST / HTTP/1.1", g.host("evil.test"), "Content-Length: 5", "Expect: 100-continue")
		if !r.is(403, "not_allowed") || !r.close {
			t.Errorf("got %+v", r)
		}
		nothing(t, c)
	})
	// A client that sends more than it is answered for: the answer gets through.
	t.Run("upload, denied", func(t *testing.T) {
		c := g.dial(0)
		c.send("PUT / HTTP/1.1", g.host("evil.test"), fmt.Sprintf("Content-Length: %d", len(big)))
		go io.WriteString(c, big)
		if r := c.receive("PUT"); !r.is(403, "not_allowed") {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("small upload, denied", func(t *testing.T) {
		c := g.dial(0)
		c.send("PUT / HTTP/1.1", g.host("evil.test"), "Content-Length: 5")
		io.WriteString(c, "hello")
		if r := c.receive("PUT"); !r.is(403, "not_allowed") {
			t.Errorf("got %+v", r)
		}
		if r := c.get("GET / HTTP/1.1", www); r.status != 200 {
			t.Errorf("the next request: %+v", r)
		}
		g.web.next(t)
	})
	t.Run("early hints", func(t *testing.T) {
		g.web.on("/hints", func(c *served, r request) {
			c.say("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 0\r\n\r\n")
		})
		c := g.dial(0)
		c.send("GET /hints HTTP/1.1", www)
		if r := c.receive("GET"); r.status != 103 || r.header.Get("Link") != "</x>" {
			t.Errorf("got %+v", r)
		}
		if r := c.receive("GET"); r.status != 200 || r.header.Get("Link") != "" || r.header.Get("X") != "y" {
			t.Errorf("got %+v", r)
		}
		g.web.next(t)
	})
	// A response that begins while the request still comes takes nothing away from it.
	t.Run("both ways at once", func(t *testing.T) {
		upload := strings.Repeat("x", 300<<10)
		sum := make(chan int, 1)
		g.web.speak(func(c net.Conn) {
			s := &served{c, bufio.NewReader(c)}
			s.head()
			s.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
			r := request{fields: []string{"Transfer-Encoding: chunked"}}
			if err := s.body(&r); err != nil {
				r.body = ""
			}
			sum <- len(r.body)
			s.say("3\r\nbye\r\n0\r\n\r\n")
		})
		defer g.web.speak(nil)
		c := g.dial(0)
		c.send("POST /duplex HTTP/1.1", g.host("api.example.com"), "Transfer-Encoding: chunked")
		fmt.Fprintf(c, "%x\r\n%s\r\n", 10, upload[:10])
		r, err := http.ReadResponse(c.in, &http.Request{Method: "POST"})
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 5)
		if _, err := io.ReadFull(r.Body, first); err != nil || string(first) != "hello" {
			t.Fatalf("got %q, %v while the request still comes", first, err)
		}
		fmt.Fprintf(c, "%x\r\n%s\r\n0\r\n\r\n", len(upload)-10, upload[10:])
		if rest, err := io.ReadAll(r.Body); err != nil || string(rest) != "bye" {
			t.Errorf("then got %q, %v", rest, err)
		}
		if n := <-sum; n != len(upload) {
			t.Errorf("the origin got %d octets, want %d", n, len(upload))
		}
	})
}
