package caddymodule

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// echo answers with all that the upstream was sent.
func echoRequest(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(echoed{r.Method, r.Host, r.RequestURI, r.Header, r.Trailer, string(b)})
}

type echoed struct {
	Method, Host, Target string
	Header, Trailer      http.Header
	Body                 string
}

func echoOf(t *testing.T, r *http.Response, err error) echoed {
	t.Helper()
	var e echoed
	text := body(t, r, err)
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatalf("%d %q: %v", r.StatusCode, text, err)
	}
	return e
}

// masked is what the client sees of the secret.
var masked = strings.Repeat("*", len(testSecret))

// raw makes a TLS connection through the gateway.
func (g *brokerGateway) raw(serverName string, protocols ...string) *client {
	g.t.Helper()
	c, err := tls.Dial("tcp", g.tls, &tls.Config{ServerName: serverName, RootCAs: g.authority, NextProtos: protocols})
	if err != nil {
		g.t.Fatal(err)
	}
	return newClient(g.t, c)
}

// Whatever the client says of who it is, the upstream is told by the gateway alone.
func TestBrokerRemovesCredentials(t *testing.T) {
	g := startBroker(t, brokerSetup{handle: echoRequest})
	for _, proto := range []string{"http/1.1", "h2"} {
		t.Run(proto, func(t *testing.T) {
			req, err := http.NewRequest("POST", g.url("api.example.com", "/v1/x?a=1&api_key=mine&key=mine&api%00key=mine&_method=DELETE&b=2"), strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "x_api_key", "X-Goog-Api-Key", "Private-Token", "X-Amz-Security-Token", "Key", "Token", "X-Api~Key"} {
				req.Header[name] = []string{"mine"}
			}
			req.Header.Set("X-Other", "{file."+g.secret+"} {env.HOME} {http.request.host}")
			req.Header.Set("Accept-Encoding", "gzip, br")
			req.Header.Set("X-Http-Method-Override", "DELETE")
			req.Header.Set("X-Original-Url", "/admin")
			req.Header["X_rewrite_url"] = []string{"/admin"}
			req.Header.Set("X-Forwarded-For", "192.0.2.1")
			req.Header.Set("Forwarded", "for=192.0.2.1")
			req.Header.Set("Via", "1.1 me")
			req.Trailer = http.Header{"X-Api-Key": {"mine"}, "X-Sum": {"1"}}
			req.ContentLength = -1
			resp, err := g.browser(proto).Do(req)
			e := echoOf(t, resp, err)
			if e.Target != "/v1/x?a=1&b=2" || e.Body != "body" || e.Host != fmt.Sprintf("api.example.com:%d", g.up.port) {
				t.Errorf("the upstream got %+v", e)
			}
			if got := e.Header["Authorization"]; len(got) != 1 || got[0] != "Bearer "+masked {
				t.Errorf("Authorization %q", got)
			}
			for name := range e.Header {
				switch name {
				case "Authorization", "X-Other", "Accept-Encoding", "User-Agent", "Content-Length", "Trailer":
				default:
					t.Errorf("the upstream got %s: %q", name, e.Header[name])
				}
			}
			if got := e.Header.Get("X-Other"); got != req.Header.Get("X-Other") {
				t.Errorf("X-Other %q", got)
			}
			if got := e.Header.Get("Accept-Encoding"); got != "identity" {
				t.Errorf("Accept-Encoding %q", got)
			}
			if len(e.Trailer) != 1 || e.Trailer.Get("X-Sum") != "1" {
				t.Errorf("trailer %v", e.Trailer)
			}
		})
	}
}

// A client cannot have the gateway's credential taken for one of the connection.
func TestBrokerConnectionField(t *testing.T) {
	g := startBroker(t, brokerSetup{handle: echoRequest})
	c := g.raw("api.example.com")
	r := c.get("GET / HTTP/1.1", "Host: api.example.com", "Connection: close, authorization, x-api-key", "Authorization: mine")
	var e echoed
	if err := json.Unmarshal([]byte(r.body), &e); err != nil || e.Header.Get("Authorization") != "Bearer "+masked {
		t.Errorf("got %+v, %v", r, err)
	}
}

// The name of the connection, of the Host field, of the target and of :authority is one name.
func TestBrokerOneName(t *testing.T) {
	g := startBroker(t, brokerSetup{
		handle: func(http.ResponseWriter, *http.Request) { t.Error("the upstream got a request") },
		sites:  brokerSite + strings.ReplaceAll(brokerSite, "api.example.com", "www.example.com"),
	})
	for _, tc := range []struct {
		name   string
		lines  []string
		status int
		reason string
	}{
		{"http-029", []string{"GET / HTTP/1.1", "Host: example.com"}, 421, "name_mismatch"},
		{"another site", []string{"GET / HTTP/1.1", "Host: www.example.com"}, 421, "name_mismatch"},
		{"http-030 absolute", []string{"GET https://www.example.com/ HTTP/1.1", "Host: api.example.com"}, 421, "name_mismatch"},
		{"absolute, nobody", []string{"GET https://evil.test/ HTTP/1.1", "Host: api.example.com"}, 421, "name_mismatch"},
		{"an address", []string{"GET / HTTP/1.1", "Host: 10.0.0.1"}, 421, "name_mismatch"},
		{"a dot more", []string{"GET / HTTP/1.1", "Host: api.example.com."}, 421, "name_mismatch"},
		{"no host", []string{"GET / HTTP/1.0"}, 421, "name_mismatch"},
		{"clear text", []string{"GET http://api.example.com/ HTTP/1.1", "Host: api.example.com"}, 400, "bad_request"},
		{"user", []string{"GET https://me:you@api.example.com/ HTTP/1.1", "Host: api.example.com"}, 400, "bad_request"},
		{"TRACE", []string{"TRACE / HTTP/1.1", "Host: api.example.com"}, 400, "bad_request"},
		{"CONNECT", []string{"CONNECT api.example.com:443 HTTP/1.1", "Host: api.example.com:443"}, 400, "bad_request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g.skipLog()
			if r := g.raw("api.example.com").get(tc.lines...); !r.is(tc.status, tc.reason) {
				t.Errorf("got %+v, want %d %s", r, tc.status, tc.reason)
			}
			e := g.entry("denied")
			if e["reason"] != tc.reason || e["layer"] != "http" || e["client"] != "127.0.0.1" || e["port"] != float64(g.up.port) {
				t.Errorf("logged %v", e)
			}
		})
	}
	for _, tc := range []struct {
		name   string
		fields []string
		status int
		reason string // "" where net/http resets the stream
	}{
		{"h2 another site", []string{":method: GET", ":authority: www.example.com"}, 421, "name_mismatch"},
		{"http-036", []string{":method: GET", ":authority: api.example.com/evil"}, 0, ""},
		{"http-030 host beside authority", []string{":method: GET", ":authority: api.example.com", "host: evil.test"}, 0, ""},
		{"h2 two authorities", []string{":method: GET", ":authority: api.example.com", ":authority: evil.test"}, 0, ""},
		{"h2 TRACE", []string{":method: TRACE", ":authority: api.example.com"}, 400, "bad_request"},
		{"h2 another request line in the query", []string{":method: POST", ":authority: api.example.com", ":path: /v1/x?a= HTTP/1.0"}, 400, "bad_request"},
		{"h2 another request line in the path", []string{":method: POST", ":authority: api.example.com", ":path: /v1/x HTTP/1.0"}, 400, "bad_request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newHTTP2Client(t, g.raw("api.example.com", "h2").Conn)
			fields := append(tc.fields, ":scheme: https")
			if !slices.ContainsFunc(fields, func(f string) bool { return strings.HasPrefix(f, ":path: ") }) {
				fields = append(fields, ":path: /")
			}
			r := c.open(true, fields...).response()
			if r.status != tc.status || r.reason() != tc.reason || (r.err != nil) != (tc.reason == "") {
				t.Errorf("got %+v, want %d %s", r, tc.status, tc.reason)
			}
		})
	}
}

// A name that a site brokers gets through the site, on its port, over TLS: or not at all.
func TestBrokerNoOtherWay(t *testing.T) {
	g := startBroker(t, brokerSetup{
		handle: echoRequest,
		lines:  "allow .example.com:%d,8443,22 .example.com",
		also:   []string{"sandboxallow {\nupstream_port %d\n}", "sandboxallow {\nupstream_port 80\n}", forwardProxy},
	})
	port := g.up.port
	for i, addr := range g.addrs {
		if !strings.HasPrefix(addr, fmt.Sprintf("127.0.1.%d:", i+1)) {
			t.Fatalf("listeners at %v", g.addrs)
		}
	}
	refused := func(r response) bool {
		return r.is(403, "plaintext_refused") && strings.Contains(r.body, "use https")
	}
	t.Run("http-027", func(t *testing.T) {
		if r := g.ask(0, "GET / HTTP/1.1", fmt.Sprintf("Host: api.example.com:%d", port)); !refused(r) {
			t.Errorf("on the port of the site: %+v", r)
		}
		if r := g.ask(1, "GET / HTTP/1.1", "Host: api.example.com"); !refused(r) {
			t.Errorf("on port 80: %+v", r)
		}
		if r := g.ask(2, fmt.Sprintf("GET http://api.example.com:%d/ HTTP/1.1", port), "Host: x"); !refused(r) {
			t.Errorf("by the proxy: %+v", r)
		}
		if r := g.ask(2, "GET http://API.example.com./ HTTP/1.1", "Host: x"); !refused(r) {
			t.Errorf("by the proxy on port 80: %+v", r)
		}
		if e := g.entry("denied"); e["reason"] != "plaintext_refused" || e["name"] != "api.example.com" {
			t.Errorf("logged %v", e)
		}
	})
	t.Run("another port", func(t *testing.T) {
		if r := g.ask(2, "CONNECT api.example.com:443 HTTP/1.1", "Host: x"); !r.is(403, "not_brokered") {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("opaque on another port", func(t *testing.T) {
		// Somebody else's service of the name: there is none in this test, but it is dialled.
		if r := g.ask(2, "CONNECT api.example.com:22 HTTP/1.1", "Host: x"); !r.is(502, "dial_error") {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("opaque on the port of the site", func(t *testing.T) {
		g.skipLog()
		c := g.dial(2)
		if r := c.connect(fmt.Sprintf("api.example.com:%d", port)); r.status != 200 {
			t.Fatalf("got %+v", r)
		}
		io.WriteString(c, "SSH-2.0-x\r\n")
		if err := c.closed(); err != nil {
			t.Error(err)
		}
		if e := g.entry("denied"); e["reason"] != "not_tls" {
			t.Errorf("logged %v", e)
		}
	})
	t.Run("another name within", func(t *testing.T) {
		g.skipLog()
		c := g.dial(2)
		if r := c.connect(fmt.Sprintf("api.example.com:%d", port)); r.status != 200 {
			t.Fatalf("got %+v", r)
		}
		if err := tls.Client(c, &tls.Config{ServerName: "www.example.com", RootCAs: g.authority}).Handshake(); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("error %v", err)
		}
		if e := g.entry("denied"); e["reason"] != "name_mismatch" {
			t.Errorf("logged %v", e)
		}
	})
	t.Run("CONNECT leads to the site", func(t *testing.T) {
		for _, proto := range []string{"http/1.1", "h2"} {
			tr := g.browser(proto).Transport.(*http.Transport)
			tr.DialContext = nil
			tr.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: g.addrs[2]})
			resp, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Get(g.url("api.example.com", "/"))
			if e := echoOf(t, resp, err); e.Header.Get("Authorization") != "Bearer "+masked {
				t.Errorf("the upstream got %+v", e)
			}
		}
	})
	t.Run("a name without a site", func(t *testing.T) {
		c, err := tls.Dial("tcp", g.tls, &tls.Config{ServerName: "www.example.com", InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if issuer := c.ConnectionState().PeerCertificates[0].Issuer.CommonName; issuer != "upstream" {
			t.Errorf("certificate of %q", issuer)
		}
	})
	t.Run("without a name", func(t *testing.T) {
		if _, err := tls.Dial("tcp", g.tls, &tls.Config{InsecureSkipVerify: true}); err == nil {
			t.Error("connected")
		}
	})
}

// A stream of HTTP/2 leads to the site as a connection does, and is a tunnel to be cut.
func TestBrokerByStream(t *testing.T) {
	g := startBroker(t, brokerSetup{
		handle:  echoRequest,
		globals: "servers {\nprotocols h1 h2 h2c\n}",
		also:    []string{forwardProxy},
	})
	c := g.dialHTTP2(0)
	to := fmt.Sprintf("api.example.com:%d", g.up.port)
	s := c.open(false, ":method: CONNECT", ":authority: "+to)
	if status := s.head(); status != 200 {
		t.Fatalf("status %d", status)
	}
	in := tls.Client(streamEnd{c, s}, &tls.Config{ServerName: "api.example.com", RootCAs: g.authority})
	if err := in.Handshake(); err != nil {
		t.Fatal(err)
	}
	client := &client{Conn: in, t: t, in: bufio.NewReader(in)}
	for range 2 {
		r := client.get("GET / HTTP/1.1", "Host: "+to)
		if r.status != 200 || !strings.Contains(r.body, "Bearer "+masked) {
			t.Errorf("got %+v, %v", r, r.err)
		}
	}
	if e := g.entry("allowed"); e["layer"] != "proxy" || e["name"] != "api.example.com" {
		t.Errorf("logged %v", e)
	}
	g.change(brokerDocument("allow www.example.com"))
	if r := s.response(); r.err == nil {
		t.Errorf("got %+v", r)
	}
	c.Close()
	waitFor(t, "all places to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
}

// A request that comes to a site by a socket meets no credential.
func TestBrokerByASocket(t *testing.T) {
	g := startHTTP(t, setup{})
	handler := fmt.Sprintf(`{"handler":"sandboxallow","upstream_port":%d}`, g.web.port)
	config := strings.Replace(string(g.json), handler, `{"handler":"sandboxallow_broker"}`, 1)
	err := caddy.Load([]byte(config), true)
	if err == nil || !strings.Contains(err.Error(), "accepted is `bind sandboxallow/broker` alone") {
		t.Fatalf("error %v", err)
	}
}

func TestBrokerDenies(t *testing.T) {
	const document = "policy some {\nclient 127.0.0.1\nprivate " + upstreamAddr + "/32\nallow .example.com:%d\n}\npolicy others {\nclient 127.0.0.9\nallow www.example.com:%d\n}\n"
	g := startBroker(t, brokerSetup{handle: echoRequest})
	port := fmt.Sprint(g.up.port)
	g.change(strings.ReplaceAll(document, "%d", port))
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.9")}}
	_, err := tls.DialWithDialer(d, "tcp", g.tls, &tls.Config{ServerName: "api.example.com", RootCAs: g.authority})
	if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("error %v", err)
	}
	if e := g.entry("denied"); e["reason"] != "not_allowed" || e["policy"] != "others" || e["layer"] != "tls" {
		t.Errorf("logged %v", e)
	}

	// A kept connection outlives no change of the policy.
	browser := g.browser("http/1.1")
	resp, err := browser.Get(g.url("api.example.com", "/"))
	body(t, resp, err)
	c := g.raw("api.example.com")
	g.change(strings.ReplaceAll(strings.Replace(document, "allow .example.com:%d", "deny api.example.com", 1), "%d", port))
	if err := c.closed(); err != nil {
		t.Error(err)
	}
	// The request may still find its connection, which is cut a moment later.
	if resp, err := browser.Get(g.url("api.example.com", "/")); err == nil && resp.Header.Get(reasonField) != "denied" {
		t.Errorf("status %d", resp.StatusCode)
	}
	if e := g.entry(msgRevoked); e["reason"] != "denied" || e["name"] != "api.example.com" {
		t.Errorf("logged %v", e)
	}
	waitFor(t, "all places to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
}

// change replaces the document and waits until it is in force.
func (g *brokerGateway) change(document string) {
	g.t.Helper()
	before := g.app.store.Set()
	g.write(document)
	waitFor(g.t, "the new document to be in force", func() bool { return g.app.store.Set() != before })
}

// A change of the policy cuts what is on its way.
func TestBrokerCutsStreams(t *testing.T) {
	for _, proto := range []string{"http/1.1", "h2"} {
		t.Run(proto, func(t *testing.T) {
			g := startBroker(t, brokerSetup{handle: func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, "data: 1\n\n")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}})
			resp, err := g.browser(proto).Get(g.url("api.example.com", "/"))
			if err != nil {
				t.Fatal(err)
			}
			first := make([]byte, 9)
			if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "data: 1\n\n" {
				t.Fatalf("%q, %v", first, err)
			}
			g.change(brokerDocument("allow www.example.com"))
			if rest, err := io.ReadAll(resp.Body); err == nil || len(rest) > 0 {
				t.Errorf("%q, %v are left", rest, err)
			}
		})
	}
}

// Without its file a credential is not sent as an empty one.
func TestBrokerMissingSecret(t *testing.T) {
	g := startBroker(t, brokerSetup{handle: func(http.ResponseWriter, *http.Request) { t.Error("the upstream got a request") }})
	for _, content := range []string{"", "\n", "missing"} {
		if content == "missing" {
			os.Remove(g.secret)
		} else if err := os.WriteFile(g.secret, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		g.skipLog()
		resp, err := g.browser().Get(g.url("api.example.com", "/"))
		if text := body(t, resp, err); resp.StatusCode != 502 || resp.Header.Get(reasonField) != "not_brokered" || !strings.Contains(text, "the gateway lacks the credential for this name") {
			t.Errorf("%q: %d %q", content, resp.StatusCode, text)
		}
		e := g.entry("denied")
		if text, _ := e["error"].(string); e["reason"] != "not_brokered" || !strings.Contains(text, "Authorization is without its secret") {
			t.Errorf("logged %v", e)
		}
	}
}

// The transport dials the name that was judged, and what the operator lists.
func TestBrokerOtherUpstream(t *testing.T) {
	site := func(upstream, options string) string {
		return "https://api.example.com:%d {\nsandboxallow broker\nreverse_proxy https://" + upstream + " {\ntransport sandboxallow {\ntls_trust_pool file %roots\n" + options + "\n}\n}\n}\n"
	}
	for _, tc := range []struct {
		name, site string
		status     int
		reason     string
	}{
		{"another name", site("www.example.com:%d", ""), 502, "not_brokered"},
		{"another port", site("api.example.com:8443", ""), 502, "not_brokered"},
		{"listed without its port", site("www.example.com:%d", "hosts www.example.com"), 502, "not_brokered"},
		{"listed", site("www.example.com:%d", "hosts www.example.com:%d"), 200, ""},
		{"private", site("private.example.com:%d", "hosts private.example.com:%d"), 403, "private_address"},
		{"metadata", site("meta.example.com:%d", "hosts meta.example.com:%d"), 403, "private_address"},
		{"dead", site("api.example.com:9", "hosts api.example.com:9"), 502, "dial_error"},
		{"no such name", site("nobody.example.com:%d", "hosts nobody.example.com:%d"), 502, "no_address"},
		{"by placeholder", strings.Replace(site("X", ""), "https://X", "{host}:%d", 1), 200, ""},
		{"by the client", strings.Replace(site("X", ""), "https://X", "{http.request.header.X-To}", 1), 502, "not_brokered"},
		{"unknown authority", strings.Replace(site("api.example.com:%d", ""), "tls_trust_pool file %roots", "", 1), 502, "dial_error"},
		{"certificate of another name", site("other.test:%d", "hosts other.test:%d"), 502, "dial_error"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testNames["other.test"] = upstreamAddr
			defer delete(testNames, "other.test")
			g := startBroker(t, brokerSetup{sites: tc.site, handle: func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) }})
			req, _ := http.NewRequest("GET", g.url("api.example.com", "/"), nil)
			req.Header.Set("X-To", fmt.Sprintf("udp/www.example.com:%d", g.up.port))
			resp, err := g.browser().Do(req)
			text := body(t, resp, err)
			if resp.StatusCode != tc.status || resp.Header.Get(reasonField) != tc.reason {
				t.Errorf("got %d %s %q, want %d %s", resp.StatusCode, resp.Header.Get(reasonField), text, tc.status, tc.reason)
			}
			if tc.reason == "" {
				return
			}
			if e := g.entry("denied"); e["reason"] != tc.reason || e["layer"] != "http" || e["name"] != "api.example.com" {
				t.Errorf("logged %v", e)
			}
		})
	}
}

// A site that lets requests by its broker reaches nobody.
func TestTransportWithoutBroker(t *testing.T) {
	g := startBroker(t, brokerSetup{
		sites:  "https://api.example.com:%d {\n@a path /a\nsandboxallow @a broker\nreverse_proxy https://api.example.com:%d {\ntransport sandboxallow {\ntls_trust_pool file %roots\n}\n}\n}\n",
		handle: func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) },
	})
	resp, err := g.browser().Get(g.url("api.example.com", "/a"))
	if got := body(t, resp, err); got != "/a" {
		t.Errorf("got %q", got)
	}
	resp, err = g.browser().Get(g.url("api.example.com", "/b"))
	if got := body(t, resp, err); got != "" || resp.StatusCode != 502 {
		t.Errorf("got %d %q", resp.StatusCode, got)
	}
}

// A name that a site excepts is tunnelled to its own server.
func TestBrokerExcept(t *testing.T) {
	g := startBroker(t, brokerSetup{sites: strings.NewReplacer("https://api.example.com:%d {\n\tsandboxallow broker", "https://*.example.com:%d {\n\tsandboxallow broker {\n\texcept www.example.com\n\t}", "reverse_proxy https://api.example.com:%d", "reverse_proxy {host}:%d").Replace(brokerSite)})
	t.Run("http-035", func(t *testing.T) {
		for name, want := range map[string]bool{"api.example.com": false, "fail.example.com": false, "www.example.com": true} {
			c, err := tls.Dial("tcp", g.tls, &tls.Config{ServerName: name, InsecureSkipVerify: true})
			if err != nil {
				t.Fatal(err)
			}
			if issuer := c.ConnectionState().PeerCertificates[0].Issuer.CommonName; (issuer == "upstream") != want {
				t.Errorf("%s: certificate of %q", name, issuer)
			}
			c.Close()
		}
	})
	resp, err := g.browser().Get(g.url("api.example.com", "/"))
	if got := body(t, resp, err); got != "HTTP/2.0 Bearer "+masked {
		t.Errorf("got %q", got)
	}
}
