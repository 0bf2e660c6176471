package caddymodule

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/sandboxallow/sandboxallow/internal/decision"
)

// The cases of absolute targets. CONNECT is in connect_test.go.
func TestForwardProxy(t *testing.T) {
	g := startHTTP(t, setup{sites: []string{forwardProxy}})
	port := g.web.port
	abs := func(host, path string) string { return fmt.Sprintf("GET http://%s:%d%s HTTP/1.1", host, port, path) }

	t.Run("forwardproxy-009", func(t *testing.T) {
		r := g.ask(0, abs("www.example.com", "/x?y"), g.host("www.example.com"), "Proxy-Connection: keep-alive", "Connection: keep-alive, x-hop", "X-Hop: 1", "X-End: 2")
		if r.status != 200 || r.header.Get("Server") != "" {
			t.Errorf("got %+v", r)
		}
		got := g.web.next(t)
		if want := []string{g.host("www.example.com"), "X-End: 2"}; got.line != "GET /x?y HTTP/1.1" || !sameFields(got.fields, want) {
			t.Errorf("the origin got %+v, want %q", got, want)
		}
		if e := g.entry(decision.MsgAllowed); e["layer"] != "proxy" || e["name"] != "www.example.com" || e["port"] != float64(port) {
			t.Errorf("log: %v", e)
		}
		if e := g.entry(msgClosed); e["layer"] != "proxy" || e["bytes_out"].(float64) == 0 {
			t.Errorf("log: %v", e)
		}
		// Host is not what is sent on.
		for _, host := range []string{"Host: evil.test", "Host: proxy:8080", "Host: 10.0.0.1"} {
			if r := g.ask(0, abs("www.example.com", "/"), host); r.status != 200 {
				t.Errorf("%s: got %+v", host, r)
			}
			if got := g.web.next(t); "Host: "+got.field("Host") != g.host("www.example.com") {
				t.Errorf("%s: the origin got %q", host, got.fields)
			}
		}
		c := g.dial(0)
		c.send(fmt.Sprintf("POST http://www.example.com:%d/ HTTP/1.1", port), "Host: x", "Content-Length: 5")
		io.WriteString(c, "hello")
		if r := c.receive("POST"); r.status != 200 {
			t.Errorf("got %+v", r)
		}
		if got := g.web.next(t); got.body != "hello" {
			t.Errorf("the origin got %+v", got)
		}
	})
	t.Run("forwardproxy-020", func(t *testing.T) {
		c := g.dial(0)
		for range 2 {
			if r := c.get(abs("www.example.com", "/"), "Host: x"); r.status != 200 {
				t.Errorf("got %+v", r)
			}
			g.web.next(t)
			if r := c.get(abs("evil.test", "/"), "Host: x"); !r.is(403, "not_allowed") {
				t.Errorf("got %+v", r)
			}
			if r := c.get(abs("api.example.com", "/"), "Host: x"); r.status != 200 {
				t.Errorf("got %+v", r)
			}
			if got := g.web.next(t); "Host: "+got.field("Host") != g.host("api.example.com") {
				t.Errorf("the origin got %q", got.fields)
			}
			g.web.none(t)
		}
	})
	t.Run("HTTP/1.0", func(t *testing.T) {
		if r := g.ask(0, strings.Replace(abs("www.example.com", "/"), "1.1", "1.0", 1)); r.status != 200 || !r.close {
			t.Errorf("got %+v", r)
		}
		g.web.next(t)
	})
	for _, tc := range []struct {
		name   string
		lines  []string
		status int
		reason string // or Go's own 400
	}{
		{"forwardproxy-011", []string{fmt.Sprintf("GET https://www.example.com:%d/ HTTP/1.1", port), "Host: x"}, 400, "bad_request"},
		{"forwardproxy-011", []string{"GET http://www.example.com:443/ HTTP/1.1", "Host: x"}, 400, "bad_request"},
		{"forwardproxy-012", []string{"GET ftp://www.example.com/ HTTP/1.1", "Host: x"}, 400, "bad_request"},
		{"forwardproxy-012", []string{"GET file:///etc/passwd HTTP/1.1", "Host: x"}, 400, "bad_request"},
		{"forwardproxy-012", []string{"GET unix:/run/x HTTP/1.1", "Host: x"}, 400, "bad_request"},
		{"forwardproxy-012", []string{"GET gopher://www.example.com/ HTTP/1.1", "Host: x"}, 400, "bad_request"},
		{"forwardproxy-012", []string{fmt.Sprintf("GET ws://www.example.com:%d/ HTTP/1.1", port), "Host: x"}, 400, "bad_request"},
		{"forwardproxy-013", []string{fmt.Sprintf("GET http://www.example.com:%d@evil.test/ HTTP/1.1", port), "Host: x"}, 400, "bad_request"},
		{"forwardproxy-013", []string{fmt.Sprintf("GET http://evil.test#@www.example.com:%d/ HTTP/1.1", port), "Host: x"}, 400, "bad_request"},
		{"forwardproxy-013", []string{fmt.Sprintf("GET http://evil.test\\@www.example.com:%d/ HTTP/1.1", port), "Host: x"}, 400, "bad_request"},
		{"forwardproxy-013", []string{fmt.Sprintf("GET http://u:p@www.example.com:%d/ HTTP/1.1", port), "Host: x"}, 400, "bad_request"},
		{"forwardproxy-014", []string{"GET http://2852039166/ HTTP/1.1", "Host: x"}, 403, "bad_name"},
		{"forwardproxy-014", []string{"GET http://0xa9fea9fe/ HTTP/1.1", "Host: x"}, 403, "bad_name"},
		{"forwardproxy-014", []string{"GET http://0251.0376.0251.0376/ HTTP/1.1", "Host: x"}, 403, "bad_name"},
		{"forwardproxy-014", []string{"GET http://①⑥⑨.②⑤④.①⑥⑨.②⑤④/ HTTP/1.1", "Host: x"}, 400, "bad_request"},
		{"forwardproxy-014", []string{"GET http://169.254.169.254./ HTTP/1.1", "Host: x"}, 403, "bad_name"},
		{"forwardproxy-014", []string{fmt.Sprintf("GET http://127.0.0.2:%d/ HTTP/1.1", port), "Host: x"}, 403, "bad_name"},
		{"forwardproxy-014", []string{"GET http://[::1]/ HTTP/1.1", "Host: x"}, 403, "bad_name"},
		{"forwardproxy-014", []string{"GET http://[::ffff:127.0.0.1]/ HTTP/1.1", "Host: x"}, 403, "bad_name"},
		{"forwardproxy-014", []string{"GET http://[fe80::1%25eth0]/ HTTP/1.1", "Host: x"}, 400, "bad_request"},
		{"forwardproxy-036", []string{fmt.Sprintf("GET www.example.com:%d HTTP/1.1", port), g.host("www.example.com")}, 400, "bad_request"},
		{"forwardproxy-036", []string{fmt.Sprintf("GET www.example.com:%d HTTP/1.1", port)}, 400, "bad_request"},
		{"forwardproxy-036", []string{fmt.Sprintf("POST www.example.com:%d HTTP/1.0", port)}, 400, "bad_request"},
		{"forwardproxy-036", []string{"GET www.example.com HTTP/1.1", g.host("www.example.com")}, 400, "bad_request"},
		{"origin-form", []string{"GET / HTTP/1.1", g.host("www.example.com")}, 400, "bad_request"},
		{"origin-form", []string{"GET //www.example.com/ HTTP/1.1", g.host("www.example.com")}, 400, "bad_request"},
		{"no host", []string{"GET http:///x HTTP/1.1", g.host("www.example.com")}, 400, "bad_request"},
		{"no host", []string{fmt.Sprintf("GET http://:%d/x HTTP/1.1", port), g.host("www.example.com")}, 400, "bad_request"},
		{"port", []string{"GET http://www.example.com:0/ HTTP/1.1", "Host: x"}, 400, "bad_request"},
		{"port", []string{"GET http://www.example.com:/ HTTP/1.1", "Host: x"}, 400, "bad_request"},
		{"port", []string{fmt.Sprintf("GET http://www.example.com:0%d/ HTTP/1.1", port), "Host: x"}, 400, "bad_request"},
		{"port", []string{"GET http://www.example.com:70000/ HTTP/1.1", "Host: x"}, 400, "bad_request"},
		{"port", []string{"GET http://www.example.com/ HTTP/1.1", "Host: x"}, 403, "port_not_allowed"},
		{"private", []string{abs("meta.example.com", "/"), "Host: x"}, 403, "private_address"},
		{"percent", []string{fmt.Sprintf("GET http://www%%2eexample.com:%d/ HTTP/1.1", port), "Host: x"}, 400, "bad_request"},
		{"two hosts", []string{abs("www.example.com", "/"), "Host: x", "Host: y"}, 400, "bad_request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer g.web.none(t)
			g.skipLog()
			r := g.ask(0, tc.lines...)
			if tc.status == 400 && r.status == 400 && r.reason() == "" {
				return
			}
			if !r.is(tc.status, tc.reason) {
				t.Errorf("%q: got %+v, want %d %s", tc.lines, r, tc.status, tc.reason)
			}
			if e := g.entry(decision.MsgDenied); e["reason"] != tc.reason || e["layer"] != "proxy" {
				t.Errorf("log: %v", e)
			}
			if tc.name == "forwardproxy-011" && !strings.Contains(r.body, "CONNECT") {
				t.Errorf("no hint: %q", r.body)
			}
		})
	}
}

// Accounts are asked for as by a proxy, and are the proxy's alone.
func TestBasicAuth(t *testing.T) {
	t.Run("forwardproxy-019", func(t *testing.T) {
		const secret = "correct horse"
		const hash = "$2a$04$d3n4SMugw.97poF0fIa0Ze9i/pdfnCR5BvsCSCM.4x.BKiwNlvuV2" // cheap, for a test
		withAuth := fmt.Sprintf("log\nsandboxallow forward_proxy {\nbasic_auth {\nagent %s\nother %s\n}\n}", hash, hash)
		g := startProxy(t, setup{sites: []string{withAuth, "log\n" + forwardProxy}, document: opaqueDocument})
		g.web.speak(nil)
		account := func(user, password string) string {
			return "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
		}
		get, connect := fmt.Sprintf("GET http://%s/ HTTP/1.1", g.target("www.example.com")), g.target("www.example.com")
		for _, fields := range [][]string{
			nil, {account("agent", "wrong")}, {account("agent", "")}, {"Proxy-Authorization: Bearer x"},
			{"Proxy-Authorization: Basic !"}, {strings.Replace(account("agent", secret), "Proxy-", "", 1)}, // that is the origin's
		} {
			g.skipLog()
			r := g.ask(0, append([]string{get, "Host: x"}, fields...)...)
			if !r.is(407, "auth_required") || !strings.HasPrefix(r.header.Get("Proxy-Authenticate"), "Basic ") || r.header.Get("WWW-Authenticate") != "" {
				t.Errorf("%q: got %+v", fields, r)
			}
			if e := g.entry(decision.MsgDenied); e["reason"] != "auth_required" || e["layer"] != "proxy" || e["name"] != g.target("www.example.com") {
				t.Errorf("log: %v", e)
			}
			r = g.dial(0).connect(connect, fields...)
			if !r.is(407, "auth_required") || r.header.Get("Proxy-Authenticate") == "" {
				t.Errorf("CONNECT, %q: got %+v", fields, r)
			}
			g.entry(decision.MsgDenied)
		}
		g.web.none(t)
		h := g.dialHTTP2(0)
		if r := h.get(connect, "/").response(); !r.is(407, "auth_required") {
			t.Errorf("HTTP/2: got %+v", r)
		}
		_, credentials, _ := strings.Cut(account("agent", secret), ": ")
		if r := h.get(connect, "/", "proxy-authorization: "+credentials).response(); r.status != 200 {
			t.Errorf("HTTP/2: got %+v", r)
		}
		g.web.next(t)

		for site := range 2 { // where an account is asked for, and where none is
			for _, user := range []string{"agent", "other"} {
				r := g.ask(site, get, "Host: x", account(user, secret), "Authorization: Basic theirs")
				if r.status != 200 {
					t.Errorf("site %d, %s: got %+v", site, user, r)
				}
				want := []string{g.host("www.example.com"), "Authorization: Basic theirs"}
				if got := g.web.next(t); !sameFields(got.fields, want) {
					t.Errorf("the origin got %q, want %q", got.fields, want)
				}
			}
		}
		g.set(opaqueDocument + "\n") // which lets go of the connections that speak HTTP
		g.plain()
		for site := range 2 {
			c := g.dial(site)
			if r := c.connect(connect, account("agent", secret)); r.status != 200 {
				t.Fatalf("CONNECT: got %+v", r)
			}
			io.WriteString(c, "ping")
			up := g.origin(t)
			got := make([]byte, 4)
			if _, err := io.ReadFull(up, got); err != nil || string(got) != "ping" {
				t.Errorf("the origin got %q, %v", got, err)
			}
			c.Close()
			if rest, err := io.ReadAll(up); len(rest) > 0 {
				t.Errorf("the origin got %q more, %v", rest, err)
			}
		}
		caddy.Stop() // all of the log is written
		log, err := os.ReadFile(g.log)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{secret, credentials, strings.TrimPrefix(credentials, "Basic "), hash} {
			if bytes.Contains(log, []byte(s)) {
				t.Errorf("%q is in the log", s)
			}
		}
		if !bytes.Contains(log, []byte(`"logger":"http.log.access`)) {
			t.Error("no access log, which is where they would be")
		}
	})
}

// A list of clients is Caddy's matcher.
func TestProxyClients(t *testing.T) {
	g := startHTTP(t, setup{sites: []string{"@sandboxes remote_ip 127.0.0.7\nsandboxallow @sandboxes forward_proxy\nrespond 403"}})
	line := fmt.Sprintf("GET http://www.example.com:%d/ HTTP/1.1", g.web.port)
	if r := g.dial(0, "127.0.0.7").get(line, "Host: x"); r.status != 200 {
		t.Errorf("got %+v", r)
	}
	if r := g.dial(0, "127.0.0.8").get(line, "Host: x", "X-Forwarded-For: 127.0.0.7"); r.status != 403 || r.reason() != "" {
		t.Errorf("got %+v", r)
	}
	if r := g.dial(0, "127.0.0.8").connect(fmt.Sprintf("www.example.com:%d", g.web.port)); r.status != 403 {
		t.Errorf("got %+v", r)
	}
}

// A policy that learns lets through, and says what strict would do.
func TestProxyLearn(t *testing.T) {
	g := startHTTP(t, setup{sites: []string{forwardProxy}, document: "policy default {\n\tmode learn\n\tports %d\n\tprivate 127.0.0.2\n}\n"})
	if r := g.ask(0, fmt.Sprintf("GET http://www.example.com:%d/ HTTP/1.1", g.web.port), "Host: x"); r.status != 200 {
		t.Errorf("got %+v", r)
	}
	e := g.entry(decision.MsgWouldDeny)
	if e["verdict"] != "would_deny" || e["reason"] != "not_allowed" || !strings.Contains(fmt.Sprint(e["hint"]), "allow www.example.com") {
		t.Errorf("log: %v", e)
	}
	if e := g.entry(msgClosed); e["verdict"] != "would_deny" {
		t.Errorf("log: %v", e)
	}
}
