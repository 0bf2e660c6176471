//go:build linux

package e2e

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// connectTo has the forward proxy open a tunnel.
func (l *lab) connectTo(tb testing.TB, target string) *conversation {
	tb.Helper()
	c := l.converse(tb, gatewayProxy)
	if a := c.ask(tb, head("CONNECT "+target, target)); a.status != http.StatusOK {
		tb.Fatalf("CONNECT %s: %+v", target, a)
	}
	return c
}

// What clients and attackers send to the forward proxy.
func TestForwardProxy(t *testing.T) {
	const refusing, silent, unresolved = "refusing.example.com", "silent.example.com", "broken.example.com"
	const echoHost, ssh = "echo.example.com", "ssh.example.com"
	const banner = "SSH-2.0-lab\r\n"
	l, g := httpLab(t, config{
		policy:  allowing(allowedHost, echoHost, refusing, silent, unresolved, ssh+":22"),
		options: "dial_timeout 1s",
	})
	l.internet.dns.set(refusing, addrs(refusingAddr))
	l.internet.dns.set(silent, addrs(silentAddr))
	l.internet.dns.set(unresolved, reply{rcode: dns.RcodeServerFailure})
	l.internet.dns.set(echoHost, addrs(otherAddr))
	l.internet.dns.set(ssh, addrs(otherAddr))
	if _, err := l.internet.serve(l.internet.ns, netip.AddrPortFrom(otherAddr, 443), echo); err != nil {
		t.Fatal(err)
	}
	_, err := l.internet.serve(l.internet.ns, netip.AddrPortFrom(otherAddr, 22), func(c net.Conn) {
		_, _ = io.WriteString(c, banner)
		echo(c)
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Run("forwardproxy-003", func(t *testing.T) {
		mark := g.caddy.log.mark()
		c := l.connectTo(t, allowedHost+":443")
		if _, err := c.Write(forgedHello(serverNames(evilHost))); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); err != nil || alert(b) != alertUnrecognizedName {
			t.Errorf("%x, %v, want the alert unrecognized_name", b, err)
		}
		if d := g.decidedBy(t, byConnect.layer, mark, msgDenied, allowedHost); d.Reason != "name_mismatch" || d.BytesOut != 0 {
			t.Errorf("decision %+v, want name_mismatch", d)
		}
	})
	t.Run("forwardproxy-017", func(t *testing.T) {
		for _, tc := range []struct {
			host   string
			status int
			reason string
		}{
			{refusing, http.StatusBadGateway, "dial_error"},
			{silent, http.StatusGatewayTimeout, "dial_error"},
			{unresolved, http.StatusBadGateway, "resolver_error"},
		} {
			mark := g.caddy.log.mark()
			c := l.converse(t, gatewayProxy)
			c.ask(t, head("CONNECT "+tc.host+":443", tc.host)).refuses(t, tc.status, tc.reason)
			g.deniedBy(t, byConnect.layer, mark, tc.host, tc.reason, "allow "+tc.host)
			// A denial is an answer like any other: the connection is good for the next request.
			c.ask(t, head("GET http://"+allowedHost+"/", allowedHost)).is(t, page(allowedHost))
		}
	})
	t.Run("forwardproxy-018/client", func(t *testing.T) {
		hello := realHello(&tls.Config{ServerName: echoHost})
		sent := append(bytes.Clone(hello), bytes.Repeat([]byte{23, 3, 3, 0, 1, 0xff}, 50)...)
		c := l.converse(t, gatewayProxy)
		if a := c.ask(t, head("CONNECT "+echoHost+":443", echoHost)+string(sent)); a.status != http.StatusOK {
			t.Fatalf("answer %+v", a)
		}
		sent = append(sent, "and on"...)
		c.say(t, "and on")
		got := make([]byte, len(sent))
		if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d octets came back, %v, or not the %d that were sent", n, err, len(sent))
		}
		_ = c.Conn.(*net.TCPConn).CloseWrite()
		if more, err := io.ReadAll(c); err != nil || len(more) != 0 {
			t.Errorf("%x came back besides, %v", more, err)
		}
	})
	t.Run("forwardproxy-018/upstream", func(t *testing.T) {
		// The rule names port 22: what is in the tunnel is not for us to know.
		c := l.connectTo(t, ssh+":22")
		c.say(t, "SSH-2.0-client\r\n")
		want := banner + "SSH-2.0-client\r\n"
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Errorf("%q came back, %v, want %q", got, err, want)
		}
	})
	t.Run("forwardproxy-023", func(t *testing.T) {
		for _, sent := range []string{
			head("CONNECT "+evilHost+":443", evilHost),
			head("GET http://"+evilHost+"/", evilHost),
			"SSH-2.0-client\r\n",
		} {
			mark := g.caddy.log.mark()
			c := l.connectTo(t, allowedHost+":443")
			c.say(t, sent)
			// The client's rest is still unread, so it may hear of the end by a reset.
			if b, _ := io.ReadAll(c); len(b) != 0 {
				t.Errorf("%q came back for %q", b, sent)
			}
			if d := g.decidedBy(t, byConnect.layer, mark, msgDenied, allowedHost); d.Reason != "not_tls" {
				t.Errorf("decision %+v, want not_tls", d)
			}
		}
	})
	t.Run("no TLS to port 80", func(t *testing.T) {
		need(t, "curl")
		mark := g.caddy.log.mark()
		if out, err := l.curlBy(byAbsolute, "http://"+allowedHost+"/", "--proxytunnel"); err == nil {
			t.Errorf("curl --proxytunnel: %q", out)
		}
		if d := g.decidedBy(t, byConnect.layer, mark, msgDenied, allowedHost); d.Reason != "not_tls" || d.Port != 80 {
			t.Errorf("decision %+v, want not_tls on port 80", d)
		}
	})
	t.Run("forwardproxy-028", func(t *testing.T) {
		need(t, "curl")
		// Without a nameserver: what works, works by the proxy.
		if err := l.sandbox.etc("resolv.conf", "# none\n"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.sandbox.etc("resolv.conf", "nameserver "+gatewayAddr.String()+"\n") })
		for _, tc := range []struct {
			variable, scheme string
			says             string // "": it works
		}{
			{"http_proxy=" + proxyURL, "http", ""},
			{"https_proxy=" + proxyURL, "https", ""},
			{"HTTPS_PROXY=" + proxyURL, "https", ""},
			// curl looks at this one in lower case alone: in CGI it would be the client's Proxy field.
			{"HTTP_PROXY=" + proxyURL, "http", "(6) Could not resolve host"},
			{"ALL_PROXY=socks5h://" + gatewayProxy.String(), "https", "curl: (97)"},
			{"ALL_PROXY=socks4a://" + gatewayProxy.String(), "https", "curl: (97)"},
		} {
			start := time.Now()
			out, err := l.run(append([]string{"env", tc.variable}, append(curl(l), tc.scheme+"://"+allowedHost+"/")...)...)
			switch {
			case tc.says == "" && (err != nil || out != page(allowedHost)):
				t.Errorf("%s: %q, %v", tc.variable, out, err)
			case tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)):
				t.Errorf("%s: %q, %v, want %q", tc.variable, out, err, tc.says)
			}
			if d := time.Since(start); d > 3*time.Second {
				t.Errorf("%s: after %s", tc.variable, d)
			}
		}
	})
	t.Run("forwardproxy-029", func(t *testing.T) {
		for _, sent := range [][]byte{
			{5, 1, 0},    // SOCKS 5, no authentication
			{5, 2, 0, 2}, // and by password
			append([]byte{4, 1, 1, 0xbb, 0, 0, 0, 1, 0}, evilHost+"\x00"...), // SOCKS 4a
		} {
			start := time.Now()
			answer := l.sendTo(t, gatewayProxy, sent)
			if d := time.Since(start); d > time.Second {
				t.Errorf("%x: closed after %s", sent, d)
			}
			if len(answer) > 0 && !bytes.HasPrefix(answer, []byte("HTTP/1.1 400 ")) {
				t.Errorf("%x: %q came back", sent, answer)
			}
		}
	})
	t.Run("forwardproxy-035", func(t *testing.T) {
		need(t, "python3")
		const times = 1000
		// What is opened once and kept is there after the first one.
		line := func(n int) []string {
			return byConnect.command("env", "SSL_CERT_FILE="+l.ca.file, "python3", testdata("burst.py"), byConnect.url(allowedHost), fmt.Sprint(n))
		}
		if _, err := l.run(line(1)...); err != nil {
			t.Fatal(err)
		}
		settled := func() bool { return g.metric(t, "caddy_sandboxallow_open_tunnels") == 0 }
		must(t, 5*time.Second, "the first tunnel ends", settled)
		_, before := g.caddy.descriptors(t) // sockets: some pipes are kept for the next tunnel
		out, err := l.run(line(times)...)
		if err != nil || strings.TrimSpace(out) != fmt.Sprint(times) {
			t.Fatalf("%q, %v", out, err)
		}
		must(t, 5*time.Second, "as many sockets as before", func() bool {
			_, sockets := g.caddy.descriptors(t)
			return settled() && sockets <= before
		})
	})
	t.Run("sockets", func(t *testing.T) {
		plain := l.converse(t, gatewayProxy)
		// What a browser does on http://: with an absolute target. It would do CONNECT to port 80, but TLS comes
		// first in every tunnel.
		talks(t, openSocket(t, &absolute{Conn: plain, base: "http://" + allowedHost}, "ws://"+allowedHost+"/socket"))
		secure := tls.Client(l.connectTo(t, allowedHost+":443"), l.ca.client(allowedHost))
		talks(t, openSocket(t, secure, "wss://"+allowedHost+"/socket"))
	})
	t.Run("redirect", func(t *testing.T) {
		need(t, "curl")
		for _, to := range []string{"http://" + evilHost + "/", "http://169.254.169.254/", "http://[::1]:2019/config/"} {
			out, err := l.curlBy(byAbsolute, "http://"+allowedHost+"/redirect?to="+to, "--location", "--fail", "--globoff")
			if err == nil || !strings.Contains(err.Error(), "returned error: 403") {
				t.Errorf("redirect to %s: %q, %v", to, out, err)
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

// absolute makes the target of the first request that is written absolute.
type absolute struct {
	net.Conn
	base string
	done bool
}

func (a *absolute) Write(b []byte) (int, error) {
	if a.done {
		return a.Conn.Write(b)
	}
	a.done = true
	_, err := a.Conn.Write(bytes.Replace(b, []byte(" /"), []byte(" "+a.base+"/"), 1))
	return len(b), err
}
