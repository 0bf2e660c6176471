package caddymodule

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/upstream"
)

// A policy in which no rule names the port: tunnels to it begin with a ClientHello.
const tlsDocument = "policy default {\n\tports %d\n\tprivate 127.0.0.2 127.0.0.3\n\tallow .example.com\n}\n"

// A policy that names the port: tunnels to it may carry anything.
const opaqueDocument = "policy default {\n\tprivate 127.0.0.2 127.0.0.3\n\tallow .example.com:%d\n}\n"

// tunnelling is a forward proxy and what it takes to open tunnels through it.
type tunnelling struct {
	*httpGateway
	roots *x509.CertPool
	came  chan net.Conn // connections to the origin, if that is not the one that echoes
}

// startProxy runs a forward proxy whose origin echoes over TLS.
func startProxy(t testing.TB, s setup) *tunnelling {
	t.Helper()
	if s.sites == nil {
		s.sites = []string{forwardProxy}
	}
	if s.document == "" {
		s.document = tlsDocument
	}
	g := &tunnelling{httpGateway: startHTTP(t, s), came: make(chan net.Conn, 100)}
	cert, roots := certificate(t, "example.com", "*.example.com")
	g.roots = roots
	g.web.speak(func(c net.Conn) {
		c = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		io.Copy(c, c)
		c.Close()
	})
	return g
}

// plain hands the connections to the origin over as they are.
func (g *tunnelling) plain() {
	g.web.speak(func(c net.Conn) {
		g.came <- c
		select {} // came has it now
	})
}

// origin returns the next connection to the origin.
func (g *tunnelling) origin(t testing.TB) net.Conn {
	t.Helper()
	select {
	case c := <-g.came:
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(20 * time.Second))
		return c
	case <-time.After(10 * time.Second):
		t.Fatal("the origin was not connected to")
	}
	return nil
}

func (g *tunnelling) target(name string) string { return fmt.Sprintf("%s:%d", name, g.web.port) }

// open opens a tunnel.
func (g *tunnelling) open(t testing.TB, name string, fields ...string) *client {
	t.Helper()
	c := g.dial(0)
	if r := c.connect(g.target(name), fields...); r.status != 200 {
		t.Fatalf("CONNECT %s: %+v", name, r)
	}
	return c
}

func (g *tunnelling) config(name string) *tls.Config {
	return &tls.Config{ServerName: name, RootCAs: g.roots}
}

func TestConnect(t *testing.T) {
	g := startProxy(t, setup{})
	www := g.target("www.example.com")

	t.Run("forwardproxy-001", func(t *testing.T) {
		c := g.dial(0)
		c.send("CONNECT "+www+" HTTP/1.1", "Host: "+www, "User-Agent: curl/8", "Proxy-Connection: Keep-Alive")
		head, err := (&served{c.Conn, c.in}).head()
		if err != nil || !slices.Equal(head, []string{"HTTP/1.1 200 Connection Established"}) {
			t.Fatalf("got %q, %v, want the status and nothing else", head, err)
		}
		in := c.tlsIn(g.config("www.example.com"))
		if err := echo(in, strings.Repeat("through the tunnel ", 100_000)); err != nil {
			t.Error(err)
		}
		e := g.entry(decision.MsgAllowed)
		for field, want := range map[string]any{
			"layer": "proxy", "client": "127.0.0.1", "policy": "default", "name": "www.example.com", "port": float64(g.web.port), "verdict": "allow",
			"reason": "", "rule": g.policy + ":4", "upstream": fmt.Sprintf("%s:%d", upstreamAddr, g.web.port),
		} {
			if e[field] != want {
				t.Errorf("log: %s is %v, want %v", field, e[field], want)
			}
		}
		in.CloseWrite()
		io.Copy(io.Discard, in) // what is unread when it closes would have the connection reset
		in.CloseWrite()
		c.Conn.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c.in) // with bytes unread its end would be a reset
		c.Close()
		if e := g.entry(msgClosed); e["bytes_in"].(float64) < 1_900_000 || e["bytes_out"].(float64) < 1_900_000 || e["error"] != nil {
			t.Errorf("log: %v", e)
		}
		waitFor(t, "the place to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
	})
	t.Run("forwardproxy-002", func(t *testing.T) {
		for _, host := range []string{"Host: evil.test:443", "Host: proxy:8080", "Host: 127.0.0.1", "X: no host at all"} {
			c := g.open(t, "www.example.com", host)
			if err := echo(c.tlsIn(g.config("www.example.com")), "x"); err != nil {
				t.Errorf("%s: %v", host, err)
			}
		}
		if r := g.dial(0).connect(g.target("evil.test"), "Host: "+www); !r.is(403, "not_allowed") {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("forwardproxy-003", func(t *testing.T) {
		for _, sni := range []string{"evil.test", "api.example.com", "example.com", "a.www.example.com"} {
			before := g.web.conns.Load()
			g.skipLog()
			c := g.open(t, "www.example.com")
			err := c.tlsIn(&tls.Config{ServerName: sni, InsecureSkipVerify: true}).Handshake()
			if err == nil || err.Error() != alertError(alertUnrecognizedName) {
				t.Errorf("ClientHello for %s: client sees %v, want %s", sni, err, alertError(alertUnrecognizedName))
			}
			if e := g.entry(decision.MsgDenied); e["reason"] != "name_mismatch" || e["name"] != "www.example.com" || e["layer"] != "proxy" || !strings.Contains(e["error"].(string), sni) {
				t.Errorf("log: %v", e)
			}
			for _, e := range g.entries() {
				t.Errorf("more in the log: %v", e)
			}
			waitFor(t, "the one connection that was open before the name was known", func() bool { return g.web.conns.Load() == before+1 })
		}
	})
	t.Run("forwardproxy-021", func(t *testing.T) {
		echoes := g.web.speaks()
		g.web.speak(nil)
		c := g.dial(0)
		if r := c.get("GET http://"+www+"/ HTTP/1.1", "Host: x"); r.status != 200 {
			t.Errorf("GET: %+v", r)
		}
		g.web.speak(echoes)
		if r := c.connect(g.target("evil.test")); !r.is(403, "not_allowed") {
			t.Errorf("CONNECT to another: %+v", r)
		}
		if r := c.connect(www); r.status != 200 {
			t.Fatalf("CONNECT: %+v", r)
		}
		if err := echo(c.tlsIn(g.config("www.example.com")), "x"); err != nil {
			t.Error(err)
		}
	})
	t.Run("forwardproxy-033", func(t *testing.T) {
		c := g.open(t, "WWW.Example.COM.")
		if err := echo(c.tlsIn(g.config("www.example.com")), "x"); err != nil {
			t.Error(err)
		}
		c = g.open(t, "www.example.com")
		if err := echo(c.tlsIn(&tls.Config{ServerName: "WWW.EXAMPLE.com", RootCAs: g.roots}), "x"); err != nil {
			t.Error(err)
		}
	})
	t.Run("forwardproxy-035", func(t *testing.T) { // the burst of a real client is in test/e2e
		held, tunnels := open.held.Load(), open.len()
		for range 200 {
			c := g.open(t, "www.example.com")
			if err := echo(c.tlsIn(g.config("www.example.com")), "x"); err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
		waitFor(t, "the places to be given back", func() bool { return open.held.Load() <= held && open.len() <= tunnels })
	})
	t.Run("HTTP/1.0", func(t *testing.T) {
		c := g.dial(0)
		c.send("CONNECT " + www + " HTTP/1.0")
		if head, err := (&served{c.Conn, c.in}).head(); err != nil || len(head) != 1 || !strings.Contains(head[0], " 200 ") {
			t.Fatalf("got %q, %v", head, err)
		}
		if err := echo(c.tlsIn(g.config("www.example.com")), "x"); err != nil {
			t.Error(err)
		}
	})
}

// What CONNECT is refused for. The client gets a status, not a tunnel that closes.
func TestConnectDenied(t *testing.T) {
	g := startProxy(t, setup{document: "policy default {\n\tports %d\n\tprivate 127.0.0.2 127.0.0.3\n\tallow .example.com\n\tdeny gist.example.com\n\tallow other.test:1\n}\n"})
	port := fmt.Sprint(g.web.port)
	for _, tc := range []struct {
		name, target string
		status       int
		reason       string
		fields       []string
	}{
		{"forwardproxy-004", "93.184.215.14:443", 403, "bad_name", nil},
		{"forwardproxy-004", "127.0.0.2:" + port, 403, "bad_name", nil},
		{"forwardproxy-004", "[2606:4700::1111]:443", 403, "bad_name", nil},
		{"forwardproxy-004", "[::1]:443", 403, "bad_name", nil},
		{"forwardproxy-004", "169.254.169.254:80", 403, "bad_name", nil},
		{"forwardproxy-004", "2852039166:80", 403, "bad_name", nil},
		{"forwardproxy-004", "0x7f.1:" + port, 403, "bad_name", nil},
		{"forwardproxy-005", "[fe80::1%25eth0]:443", 400, "bad_request", nil},
		{"forwardproxy-005", "[::ffff:127.0.0.1]:443", 403, "bad_name", nil},
		{"forwardproxy-005", "::1:443", 400, "", nil},
		{"forwardproxy-005", "[www.example.com]:" + port, 400, "", nil},
		{"forwardproxy-006", "www.example.com", 400, "bad_request", nil},
		{"forwardproxy-006", "www.example.com:", 400, "bad_request", nil},
		{"forwardproxy-006", "www.example.com:0", 400, "bad_request", nil},
		{"forwardproxy-006", "www.example.com:70000", 400, "bad_request", nil},
		{"forwardproxy-006", "www.example.com:+" + port, 400, "", nil},
		{"forwardproxy-006", "www.example.com:0" + port, 400, "bad_request", nil},
		{"forwardproxy-006", "www.example.com:https", 400, "", nil},
		{"forwardproxy-008", "www.example.com\x00.evil.test:" + port, 400, "", nil},
		{"forwardproxy-008", "www%2eexample.com:" + port, 400, "", nil},
		{"forwardproxy-008", "www.example.com%00:" + port, 400, "", nil},
		{"forwardproxy-008", "www.example.com\t:" + port, 400, "", nil},
		{"forwardproxy-008", "www.example.com@evil.test:" + port, 400, "bad_request", nil},
		{"forwardproxy-008", "evil.test@www.example.com:" + port, 400, "bad_request", nil},
		{"forwardproxy-008", "www.example.com:" + port + " ", 400, "", nil},
		{"forwardproxy-017", "dead.example.com:" + port, 502, "dial_error", nil},
		{"forwardproxy-017", "gone.example.com:" + port, 502, "no_address", nil},
		{"forwardproxy-017", "fail.example.com:" + port, 502, "resolver_error", nil},
		{"forwardproxy-022", "www.example.com:" + port, 400, "bad_request", []string{"Content-Length: 5", "", "hello"}},
		{"forwardproxy-022", "www.example.com:" + port, 400, "bad_request", []string{"Transfer-Encoding: chunked", "", "5", "hello", "0"}},
		{"forwardproxy-022", "www.example.com:" + port, 400, "", []string{"Content-Length: -1"}},
		{"forwardproxy-033", "www.example.com..:" + port, 403, "bad_name", nil},
		{"not allowed", "evil.test:" + port, 403, "not_allowed", nil},
		{"denied", "gist.example.com:" + port, 403, "denied", nil},
		{"port", "www.example.com:22", 403, "port_not_allowed", nil},
		{"port", "www.example.com:443", 403, "port_not_allowed", nil},
		{"private", "private.example.com:" + port, 403, "private_address", nil},
		{"private", "meta.example.com:" + port, 403, "private_address", nil},
		{"URL", "http://www.example.com:" + port + "/", 400, "", nil},
		{"path", "/www.example.com:" + port, 400, "", nil},
		{"unix", "unix//run/x:" + port, 400, "", nil},
		{"network", "udp/www.example.com:" + port, 400, "", nil},
		{"two", "www.example.com:" + port + ",evil.test:443", 400, "", nil},
		{"long", strings.Repeat("a.", 127) + "a:" + port, 403, "bad_name", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g.skipLog()
			r := g.dial(0).connect(tc.target, tc.fields...)
			if tc.reason == "" && r.status == tc.status && r.reason() == "" {
				return // Go's server itself
			}
			if tc.reason == "" && r.status == 400 {
				tc.reason = "bad_request"
			}
			if !r.is(tc.status, tc.reason) {
				t.Errorf("%q: got %+v, want %d %s", tc.target, r, tc.status, tc.reason)
			}
			if e := g.entry(decision.MsgDenied); e["reason"] != tc.reason || e["layer"] != "proxy" {
				t.Errorf("log: %v", e)
			}
		})
	}
	if n := g.web.conns.Load(); n != 0 {
		t.Errorf("%d connections to the origin, want none", n)
	}
}

// What comes first in a tunnel, if it is no ClientHello for the name.
func TestConnectFirstBytes(t *testing.T) {
	g := startProxy(t, setup{options: "hello_timeout 300ms"})
	hello := clientHello(t, "www.example.com")
	for _, tc := range []struct {
		name   string
		send   []byte
		reason string
		answer []byte
	}{
		{"forwardproxy-023", []byte("CONNECT evil.test:443 HTTP/1.1\r\n\r\n"), "not_tls", nil},
		{"http", []byte("GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"), "not_tls", nil},
		{"ssh", []byte("SSH-2.0-x\r\n"), "not_tls", nil},
		{"tls alert", []byte{21, 3, 1, 0, 2, 2, 40}, "not_tls", nil},
		{"no name", clientHello(t, ""), "no_name", []byte{21, 3, 3, 0, 2, 2, 112}},
		{"bad name", bytes.Replace(hello, []byte("www.example.com"), []byte("169.254.169.254"), 1), "bad_name", []byte{21, 3, 3, 0, 2, 2, 112}},
		{"other name", bytes.Replace(hello, []byte("www.example.com"), []byte("www.example.net"), 1), "name_mismatch", []byte{21, 3, 3, 0, 2, 2, 112}},
		{"malformed", slices.Concat([]byte{22, 3, 1, 0, 50, 1, 0, 16, 0}, hello[9:55], []byte{23, 3, 3, 0, 5, 1, 2, 3, 4, 5}), "hello_malformed", []byte{21, 3, 3, 0, 2, 2, 50}},
		{"silence", nil, "hello_timeout", nil},
		{"half a hello", hello[:100], "hello_timeout", nil},
	} {
		for _, early := range []bool{false, true} { // with the request, or after the response
			t.Run(fmt.Sprintf("%s, early %v", tc.name, early), func(t *testing.T) {
				g.skipLog()
				c := g.dial(0)
				head := "CONNECT " + g.target("www.example.com") + " HTTP/1.1\r\n\r\n"
				if early {
					io.WriteString(c, head+string(tc.send))
				} else {
					io.WriteString(c, head)
				}
				if lines, err := (&served{c.Conn, c.in}).head(); err != nil || len(lines) != 1 {
					t.Fatalf("got %q, %v", lines, err)
				}
				if !early {
					c.Write(tc.send)
				}
				answer, err := io.ReadAll(c.in)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("still open")
				}
				if !bytes.Equal(answer, tc.answer) {
					t.Errorf("answer %v, want %v", answer, tc.answer)
				}
				if e := g.entry(decision.MsgDenied); e["reason"] != tc.reason || e["name"] != "www.example.com" || e["policy"] != "default" {
					t.Errorf("log: %v, want %s", e, tc.reason)
				}
			})
		}
	}
	t.Run("closes at once", func(t *testing.T) {
		g.skipLog()
		c := g.open(t, "www.example.com")
		c.Close()
		if e := g.entry(msgClosed); e["reason"] != "" || e["verdict"] != "allow" {
			t.Errorf("log: %v", e)
		}
	})
	waitFor(t, "the places to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
}

// Whatever comes with the request or with the response, nothing is lost or comes twice.
func TestConnectEarlyBytes(t *testing.T) {
	t.Run("forwardproxy-018", func(t *testing.T) {
		g := startProxy(t, setup{})
		g.plain()
		hello := clientHello(t, "www.example.com")
		rest := []byte("bytes behind the ClientHello")
		head := []byte("CONNECT " + g.target("www.example.com") + " HTTP/1.1\r\nHost: x\r\n\r\n")
		all := slices.Concat(head, hello, rest)
		for _, at := range []int{len(head), len(head) + 1, len(head) + 5, len(head) + 100, len(head) + len(hello) - 1, len(head) + len(hello), len(head) + len(hello) + 1, len(all)} {
			t.Run(fmt.Sprintf("%d with the request", at-len(head)), func(t *testing.T) {
				c := g.dial(0)
				c.Write(all[:at])
				if lines, err := (&served{c.Conn, c.in}).head(); err != nil || len(lines) != 1 {
					t.Fatalf("got %q, %v", lines, err)
				}
				for _, b := range all[at:] { // one at a time
					c.Write([]byte{b})
				}
				up := g.origin(t)
				got := make([]byte, len(hello)+len(rest))
				if _, err := io.ReadFull(up, got); err != nil || !bytes.Equal(got, all[len(head):]) {
					t.Errorf("the origin got %q, %v", got, err)
				}
				c.Conn.(*net.TCPConn).CloseWrite()
				if more, err := io.ReadAll(up); len(more) > 0 || err != nil {
					t.Errorf("the origin got %q more, %v", more, err)
				}
			})
		}
		t.Run("upstream first", func(t *testing.T) {
			g.set(opaqueDocument)
			handOver := g.web.speaks()
			g.web.speak(func(c net.Conn) {
				io.WriteString(c, "SSH-2.0-origin\r\n")
				handOver(c)
			})
			for range 10 {
				c := g.dial(0)
				io.WriteString(c, string(head)+"SSH-2.0-client\r\n")
				if lines, err := (&served{c.Conn, c.in}).head(); err != nil || len(lines) != 1 {
					t.Fatalf("got %q, %v", lines, err)
				}
				if line, err := c.in.ReadString('\n'); err != nil || line != "SSH-2.0-origin\r\n" {
					t.Errorf("the client got %q, %v", line, err)
				}
				up := g.origin(t)
				got := make([]byte, 16)
				if _, err := io.ReadFull(up, got); err != nil || string(got) != "SSH-2.0-client\r\n" {
					t.Errorf("the origin got %q, %v", got, err)
				}
				c.Close()
				if more, err := io.ReadAll(up); len(more) > 0 {
					t.Errorf("the origin got %q more, %v", more, err)
				}
			}
		})
	})
}

// Which policies make a tunnel opaque.
func TestConnectOpaque(t *testing.T) {
	const private = "\tprivate 127.0.0.2\n"
	for _, tc := range []struct {
		name, document string
		opaque         bool
		policy         string // of the listener
	}{
		{"named", "policy default {\n" + private + "\tallow .example.com:%d\n}\n", true, ""},
		{"named among others", "policy default {\n" + private + "\tallow www.example.com:1,%d,443\n}\n", true, ""},
		{"named, a policy port too", "policy default {\n\tports %d\n" + private + "\tallow .example.com:%d\n}\n", true, ""},
		{"named by one of two rules", "policy default {\n" + private + "\tallow .example.com:*\n\tallow www.example.com:%d\n}\n", true, ""},
		{"named by the wider rule", "policy default {\n" + private + "\tallow .example.com:%d\n\tallow www.example.com:*\n}\n", true, ""},
		{"named for another name", "policy default {\n\tports %d\n" + private + "\tallow .example.com\n\tallow api.example.com:%d\n}\n", false, ""},
		{"any port", "policy default {\n" + private + "\tallow .example.com:*\n}\n", false, ""},
		{"policy port", "policy default {\n\tports %d\n" + private + "\tallow .example.com\n}\n", false, ""},
		{"open", "policy default {\n\tmode open\n\tports %d\n" + private + "}\n", false, ""},
		{"open, named", "policy default {\n\tmode open\n" + private + "\tallow .example.com:%d\n}\n", true, ""},
		{"learn", "policy default {\n\tmode learn\n\tports %d\n" + private + "}\n", false, ""},
		{"learn, named for another name", "policy default {\n\tmode learn\n\tports %d\n" + private + "\tallow api.example.com:%d\n}\n", false, ""},
		{"both name it", "policy default {\n" + private + "\tallow .example.com:%d\n}\npolicy l {\n\tclient 10.0.0.1\n" + private + "\tallow .example.com:%d\n}\n", true, "l"},
		{"the listener's does not", "policy default {\n" + private + "\tallow .example.com:%d\n}\npolicy l {\n\tclient 10.0.0.1\n" + private + "\tallow .example.com:*\n}\n", false, "l"},
		{"the client's does not", "policy default {\n" + private + "\tallow .example.com:*\n}\npolicy l {\n\tclient 10.0.0.1\n" + private + "\tallow .example.com:%d\n}\n", false, "l"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			site := forwardProxy
			if tc.policy != "" {
				site += " {\npolicy " + tc.policy + "\n}"
			}
			g := startProxy(t, setup{document: tc.document, sites: []string{site}})
			g.plain()
			c := g.open(t, "www.example.com")
			io.WriteString(c, "EHLO x\r\n")
			up := g.origin(t)
			if tc.opaque {
				got := make([]byte, 8)
				if _, err := io.ReadFull(up, got); err != nil || string(got) != "EHLO x\r\n" {
					t.Errorf("the origin got %q, %v", got, err)
				}
				io.WriteString(up, "250 x\r\n")
				if line, err := c.in.ReadString('\n'); err != nil || line != "250 x\r\n" {
					t.Errorf("the client got %q, %v", line, err)
				}
				return
			}
			if got, err := io.ReadAll(up); len(got) > 0 {
				t.Errorf("the origin got %q, %v", got, err)
			}
			if err := c.closed(); err != nil {
				t.Error(err)
			}
			if e := g.entry(decision.MsgDenied); e["reason"] != "not_tls" {
				t.Errorf("log: %v", e)
			}
		})
	}
	t.Run("never 443 and 80", func(t *testing.T) {
		for _, port := range []uint16{80, 443} {
			if opaque(policy.Decision{Verdict: policy.Allow, PortNamed: true}, port) {
				t.Errorf("port %d is opaque", port)
			}
		}
	})
}

// Ends of streams and resets pass through, in both directions.
func TestConnectEnds(t *testing.T) {
	g := startProxy(t, setup{document: opaqueDocument})
	g.plain()
	start := func(t *testing.T) (*client, *net.TCPConn) {
		t.Helper()
		c := g.open(t, "www.example.com")
		up := g.origin(t).(*net.TCPConn)
		io.WriteString(c, "ping")
		if _, err := io.ReadFull(up, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		return c, up
	}
	t.Run("client half", func(t *testing.T) {
		c, up := start(t)
		c.Conn.(*net.TCPConn).CloseWrite()
		if _, err := up.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the origin sees %v, want the end of the stream", err)
		}
		io.WriteString(up, "still answers")
		up.Close()
		if got, err := io.ReadAll(c.in); err != nil || string(got) != "still answers" {
			t.Errorf("the client got %q, %v", got, err)
		}
		if e := g.entry(msgClosed); e["bytes_in"] != 4. || e["bytes_out"] != 13. || e["error"] != nil {
			t.Errorf("log: %v", e)
		}
	})
	t.Run("origin half", func(t *testing.T) {
		c, up := start(t)
		io.WriteString(up, "bye")
		up.CloseWrite()
		if got, err := io.ReadAll(c.in); err != nil || string(got) != "bye" {
			t.Errorf("the client got %q, %v", got, err)
		}
		io.WriteString(c, "more")
		c.Close()
		if got, err := io.ReadAll(up); err != nil || string(got) != "more" {
			t.Errorf("the origin got %q, %v", got, err)
		}
	})
	t.Run("client resets", func(t *testing.T) {
		c, up := start(t)
		resetAll(c.Conn)
		if err := ended(up); !reset(err) {
			t.Errorf("the origin sees %v, want a reset", err)
		}
	})
	t.Run("origin resets", func(t *testing.T) {
		c, up := start(t)
		resetAll(up)
		if err := ended(c.Conn); !reset(err) {
			t.Errorf("the client sees %v, want a reset", err)
		}
	})
	t.Run("forwardproxy-032", func(t *testing.T) {
		waitFor(t, "the tunnels to be gone", func() bool { return open.len() == 0 && open.held.Load() == 0 })
		base := runtime.NumGoroutine()
		var ups []net.Conn
		var clients []*client
		for range 20 {
			c, up := start(t)
			c.Conn.(*net.TCPConn).CloseWrite()
			ups, clients = append(ups, up), append(clients, c)
		}
		for _, up := range ups { // keeps open and silent, and has seen the end
			if _, err := up.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the origin sees %v", err)
			}
		}
		for _, c := range clients {
			c.Close()
		}
		for _, up := range ups {
			up.Close()
		}
		waitFor(t, "the tunnels to be gone", func() bool { return open.len() == 0 && open.held.Load() == 0 })
		// Of the origin's side 20 are left on purpose: plain parks them.
		waitFor(t, "the goroutines to be gone", func() bool { return runtime.NumGoroutine() <= base+20+5 })
	})
	t.Run("revoked", func(t *testing.T) {
		c, up := start(t)
		g.set("policy default {\n\tprivate 127.0.0.2\n\tallow api.example.com:%d\n}\n")
		if err := ended(c.Conn); !reset(err) {
			t.Errorf("the client sees %v, want a reset", err)
		}
		if err := ended(up); !reset(err) {
			t.Errorf("the origin sees %v, want a reset", err)
		}
		if e := g.entry(msgRevoked); e["name"] != "www.example.com" || e["reason"] != "not_allowed" || e["layer"] != "proxy" {
			t.Errorf("log: %v", e)
		}
	})
}

func TestConnectIdle(t *testing.T) {
	g := startProxy(t, setup{document: opaqueDocument, options: "idle_timeout 400ms"})
	g.plain()
	c := g.open(t, "www.example.com")
	up := g.origin(t)
	for range 6 {
		time.Sleep(150 * time.Millisecond)
		io.WriteString(up, "x")
		if _, err := c.in.ReadByte(); err != nil {
			t.Fatalf("a tunnel that is not idle: %v", err)
		}
	}
	if err := c.closed(); err != nil {
		t.Error(err)
	}
	if e := g.entry(msgClosed); !strings.Contains(fmt.Sprint(e["error"]), "idle") {
		t.Errorf("log: %v", e)
	}
}

// An upstream that does not answer a dial is 504, and the client hears of no success before.
func TestConnectTimeout(t *testing.T) {
	g := startProxy(t, setup{})
	dial := g.app.dialer
	t.Cleanup(func() { g.app.dialer = dial })
	g.app.dialer = &upstream.Dialer{Resolver: dial.Resolver, Floor: dial.Floor, Timeout: time.Nanosecond}
	g.app.upstreams.dial = g.app.dialer.Dial
	if r := g.dial(0).connect(g.target("www.example.com")); !r.is(504, "dial_error") {
		t.Errorf("CONNECT: got %+v", r)
	}
	if r := g.ask(0, "GET http://"+g.target("www.example.com")+"/ HTTP/1.1", "Host: x"); !r.is(504, "dial_error") {
		t.Errorf("GET: got %+v", r)
	}
	if e := g.entry(decision.MsgDenied); e["reason"] != "dial_error" {
		t.Errorf("log: %v", e)
	}
}

// A configuration that ends takes its tunnels with it, or leaves them to the next one to judge.
func TestConnectReload(t *testing.T) {
	g := startProxy(t, setup{document: opaqueDocument})
	g.plain()
	c := g.open(t, "www.example.com")
	up := g.origin(t)
	g.load(g.json, 1)
	io.WriteString(c, "after")
	got := make([]byte, 5)
	if _, err := io.ReadFull(up, got); err != nil || string(got) != "after" {
		t.Errorf("after a reload the origin got %q, %v", got, err)
	}
	if n := len(running.apps); n != 1 {
		t.Errorf("%d apps run, want the new one", n)
	}
	c2 := g.open(t, "www.example.com")
	up2 := g.origin(t)
	g.set("policy default {\n\tallow other.test\n}\n")
	for i, conn := range []net.Conn{c.Conn, up, c2.Conn, up2} {
		if err := ended(conn); !reset(err) {
			t.Errorf("connection %d sees %v, want a reset", i, err)
		}
	}
	waitFor(t, "the places to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
}

// Bytes that are no HTTP.
func TestProxyOtherProtocols(t *testing.T) {
	g := startProxy(t, setup{})
	for _, tc := range []struct{ name, send string }{
		{"forwardproxy-029", "\x05\x01\x00"},
		{"forwardproxy-029", "\x04\x01\x01\xbb\x5d\xb8\xd7\x0e\x00"},
		{"forwardproxy-028", "\x05\x02\x00\x02"},
		{"tls", string(clientHello(t, "www.example.com"))},
		{"ssh", "SSH-2.0-OpenSSH_9.7\r\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := g.dial(0)
			start := time.Now()
			io.WriteString(c, tc.send)
			got, err := io.ReadAll(c) // a client of SOCKS waits, with its end open
			if d := time.Since(start); d > 5*time.Second || len(got) > 0 && !strings.HasPrefix(string(got), "HTTP/1.1 400 ") {
				t.Errorf("got %q, %v after %v, want to be closed at once", got, err, d)
			}
		})
	}
	// A line is complete at once in these: net/http has one to answer, as soon as it is let.
	for range 200 {
		c := g.dial(0)
		io.WriteString(c, "\x16\x03\x01\r\n\r\n")
		if got, err := io.ReadAll(c); len(got) > 0 || !reset(err) {
			t.Fatalf("TLS with a line in it: got %q, %v, want a reset", got, err)
		}
	}
	waitFor(t, "the places to be given back", func() bool { return open.held.Load() == 0 })
	if n := g.web.conns.Load(); n != 0 {
		t.Errorf("%d connections to the origin", n)
	}
}
