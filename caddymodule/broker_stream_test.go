package caddymodule

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddypki"
)

// What an upstream sends comes at once, and what a client sends gets there at once.
func TestBrokerStreams(t *testing.T) {
	g := startBroker(t, brokerSetup{handle: func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Trailer", "Grpc-Status, X-Echo")
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		b := make([]byte, 1)
		for {
			n, err := r.Body.Read(b)
			if n > 0 {
				w.Write(b[:n])
				w.(http.Flusher).Flush()
			}
			if err != nil {
				break
			}
		}
		w.Header().Set("Grpc-Status", "0")
		w.Header().Set("X-Echo", "key "+r.Header.Get("Authorization"))
	}})
	for _, proto := range []string{"http/1.1", "h2"} {
		t.Run(proto, func(t *testing.T) {
			in, out := io.Pipe()
			req, _ := http.NewRequest("POST", g.url("api.example.com", "/"), in)
			req.Header.Set("Content-Type", "application/grpc")
			req.Header.Set("Te", "trailers")
			resp, err := g.browser(proto).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			for _, message := range []string{"a", "ends with s", "ends with sk", strings.Repeat("x", 100)} {
				if _, err := io.WriteString(out, message); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, len(message))
				if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != message {
					t.Fatalf("got %q, %v, want %q", got, err, message)
				}
			}
			out.Close()
			if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil {
				t.Fatalf("%q, %v are left", rest, err)
			}
			if resp.Trailer.Get("Grpc-Status") != "0" || resp.Trailer.Get("X-Echo") != "key Bearer "+masked {
				t.Errorf("trailer %v", resp.Trailer)
			}
		})
	}
}

func TestBrokerWebSocket(t *testing.T) {
	g := startBroker(t, brokerSetup{handle: func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Sec-Websocket-Extensions") != "" {
			http.Error(w, fmt.Sprint(r.Header), 400)
			return
		}
		c, rw, _ := http.NewResponseController(w).Hijack()
		defer c.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Key: %s\r\n\r\n", r.Header.Get("Authorization"))
		fmt.Fprintf(rw, "hello %s\n", r.Header.Get("Authorization"))
		rw.Flush()
		io.Copy(c, rw)
	}})
	c := g.raw("api.example.com", "http/1.1")
	c.send("GET / HTTP/1.1", "Host: api.example.com", "Connection: Upgrade, authorization", "Upgrade: websocket", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13",
		"Sec-WebSocket-Extensions: permessage-deflate", "Cookie: mine")
	r, err := http.ReadResponse(c.in, &http.Request{Method: "GET"})
	if err != nil || r.StatusCode != 101 || r.Header.Get("X-Key") != "Bearer "+masked {
		t.Fatalf("got %+v, %v", r, err)
	}
	if line, err := c.in.ReadString('\n'); line != "hello Bearer "+masked+"\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	io.WriteString(c, "ping")
	got := make([]byte, 4)
	if _, err := io.ReadFull(c.in, got); err != nil || string(got) != "ping" {
		t.Errorf("got %q, %v", got, err)
	}
	c.Close()
	e := g.entry("closed")
	if e["layer"] == "tls" { // the connection ends when the client does, the request when the upstream does
		e = g.entry("closed")
	}
	if e["layer"] != "http" || e["bytes_in"].(float64) < 4 || e["upstream"] == "" {
		t.Errorf("logged %v", e)
	}
}

// Browsers, which can set no field of a WebSocket, send credentials as protocols.
func TestBrokerWebSocketProtocols(t *testing.T) {
	g := startBroker(t, brokerSetup{handle: func(w http.ResponseWriter, r *http.Request) {
		c, rw, _ := http.NewResponseController(w).Hijack()
		defer c.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n%q\n", r.Header["Sec-Websocket-Protocol"])
		rw.Flush()
		io.Copy(c, rw)
	}})
	for _, tc := range []struct{ in, want string }{
		{"realtime, openai-insecure-api-key.sk-mine, openai-beta.realtime-v1", `["realtime, openai-beta.realtime-v1"]`},
		{"base64url.bearer.authorization.k8s.io.bWluZQ, v4.channel.k8s.io", `["v4.channel.k8s.io"]`},
		{"token, mine", "[]"},
		{"openai-insecure-api-key.sk-mine", "[]"},
	} {
		t.Run(tc.in, func(t *testing.T) {
			c := g.raw("api.example.com", "http/1.1")
			c.send("GET / HTTP/1.1", "Host: api.example.com", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13",
				"Sec-WebSocket-Protocol: "+tc.in)
			if r, err := http.ReadResponse(c.in, &http.Request{Method: "GET"}); err != nil || r.StatusCode != 101 {
				t.Fatalf("got %+v, %v", r, err)
			}
			if line, err := c.in.ReadString('\n'); line != tc.want+"\n" {
				t.Errorf("the upstream got %q, %v, want %s", line, err, tc.want)
			}
			c.Close()
		})
	}
}

// An upgrade to anything else would carry requests that nobody looks at.
func TestBrokerOtherUpgrade(t *testing.T) {
	g := startBroker(t, brokerSetup{handle: echoRequest})
	r := g.raw("api.example.com", "http/1.1").get("GET / HTTP/1.1", "Host: api.example.com", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
	if r.status != 200 || strings.Contains(r.body, "h2c") || strings.Contains(strings.ToLower(r.body), "settings") {
		t.Errorf("got %+v", r)
	}
}

// What the operator sets comes back nowhere, and stands in no log.
func TestBrokerTellsNoSecret(t *testing.T) {
	const other = "other-0a1b+/\"<\\2c3d4e"
	handle := func(w http.ResponseWriter, r *http.Request) {
		auth, team := r.Header.Get("Authorization"), r.Header.Get("X-Team")
		if auth != "Bearer "+testSecret || team != other {
			t.Errorf("the upstream got %q and %q", auth, team)
		}
		w.Header().Set("X-Auth", auth)
		w.Header().Set("X-Team", team)
		w.Header().Set("Location", "https://api.example.com/?key="+testSecret)
		w.Header().Set("Set-Cookie", "session=abc")
		w.Header().Set("Link", "<"+auth+">")
		w.WriteHeader(http.StatusEarlyHints)
		switch r.URL.Path {
		case "/redirect":
			w.WriteHeader(302)
		case "/broken":
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				fmt.Fprintf(c, "HTTP/1.1 %s %s\r\n\r\n", auth, team)
				c.Close()
			} else {
				panic(http.ErrAbortHandler)
			}
		case "/half":
			fmt.Fprintf(w, "%s %s %s", auth, team, auth[:20])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		fmt.Fprintf(w, "%s %s %q", auth, team, team)
	}
	team := filepath.Join(dirOf(t), "team") // a secret in a field whose name does not say so
	if err := os.WriteFile(team, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	g := startBroker(t, brokerSetup{handle: handle, sites: strings.Replace(brokerSite, "header_up", "header_up X-Team {file."+team+"}\nheader_up", 1)})
	browser := g.browser
	for _, path := range []string{"/", "/redirect", "/half", "/broken"} {
		for _, proto := range []string{"http/1.1", "h2"} {
			client := browser(proto)
			client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			req, _ := http.NewRequest("GET", g.url("api.example.com", path), nil)
			if path == "/broken" {
				req.Header.Set("Connection", "Upgrade") // over HTTP/1.1 to the upstream
				req.Header.Set("Upgrade", "websocket")
				if proto == "h2" {
					continue
				}
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			seen := fmt.Sprint(resp.Header, resp.Trailer, string(text))
			for _, secret := range []string{testSecret, "sk-proj-4f2b", "other-0a1b"} {
				if strings.Contains(seen, secret) {
					t.Errorf("%s by %s: the client got %s", path, proto, seen)
				}
			}
			if resp.Header.Get("Set-Cookie") != "" {
				t.Errorf("%s: cookie %q", path, resp.Header.Get("Set-Cookie"))
			}
			if path == "/redirect" && (resp.StatusCode != 302 || resp.Header.Get("Location") != "https://api.example.com/?key="+masked) {
				t.Errorf("redirect %d %v", resp.StatusCode, resp.Header)
			}
		}
	}
	g.tellsNothing("upstream roundtrip", testSecret, "sk-proj-4f2b", "other-0a1b")
}

// Hints that come before a response are cleaned too, whether there is a secret or not.
func TestBrokerEarlyHints(t *testing.T) {
	for _, tc := range []struct{ name, site, link string }{
		{"with a secret", brokerSite, "</a?" + masked + ">"},
		{"without", strings.Replace(brokerSite, "\t\theader_up Authorization \"Bearer {file.%secret}\"\n", "", 1), "</a?" + testSecret + ">"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := startBroker(t, brokerSetup{sites: tc.site, handle: func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Link", "</a?"+testSecret+">")
				w.Header().Set("Set-Cookie", "session=abc")
				w.Header().Set("Alt-Svc", `h3=":443"`)
				w.WriteHeader(http.StatusEarlyHints)
				w.Header().Del("Link")
				io.WriteString(w, "ok")
			}})
			c := g.raw("api.example.com", "http/1.1")
			c.send("GET / HTTP/1.1", "Host: api.example.com")
			tp := textproto.NewReader(c.in)
			for _, want := range []string{"103", "200"} {
				status, err := tp.ReadLine()
				if err != nil || !strings.Contains(status, want) {
					t.Fatalf("%q, %v", status, err)
				}
				h, err := tp.ReadMIMEHeader()
				if got := h.Get("Link"); err != nil || want == "103" && got != tc.link {
					t.Errorf("Link %q, %v", got, err)
				}
				if h.Get("Set-Cookie") != "" || h.Get("Alt-Svc") != "" {
					t.Errorf("%s: %v", want, h)
				}
			}
		})
	}
}

// Nobody knows whether the body comes of a request that the upstream has refused to take it of.
func TestBrokerExpectRefused(t *testing.T) {
	for _, http1 := range []bool{true, false} {
		t.Run(fmt.Sprintf("HTTP/1 %t", http1), func(t *testing.T) {
			g := startBroker(t, brokerSetup{http1: http1, handle: func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
			}})
			c := g.raw("api.example.com", "http/1.1")
			c.send("POST /refuse HTTP/1.1", "Host: api.example.com", "Content-Length: 40", "Expect: 100-continue")
			if r := c.receive("POST"); r.status != 413 || !r.close {
				t.Errorf("got %+v", r)
			}
			c.send("GET /next HTTP/1.1", "Host: api.example.com")
			if b, err := io.ReadAll(c.in); len(b) > 0 {
				t.Errorf("%q comes unasked, %v", b, err)
			}
		})
	}
}

// One record for the connection and one for each request.
func TestBrokerRecords(t *testing.T) {
	g := startBroker(t, brokerSetup{handle: echoRequest})
	browser := g.browser("h2")
	for range 2 {
		resp, err := browser.Post(g.url("api.example.com", "/"), "text/plain", strings.NewReader("four"))
		body(t, resp, err)
	}
	if e := g.entry("allowed"); e["layer"] != "tls" || e["name"] != "api.example.com" || e["upstream"] != "" {
		t.Errorf("logged %v", e)
	}
	for range 2 {
		if e := g.entry("allowed"); e["layer"] != "http" || e["name"] != "api.example.com" || e["upstream"] != fmt.Sprintf("%s:%d", upstreamAddr, g.up.port) {
			t.Errorf("logged %v", e)
		}
		if e := g.entry("closed"); e["layer"] != "http" || e["bytes_in"] != 4.0 || e["bytes_out"].(float64) < 50 || e["duration"].(float64) <= 0 {
			t.Errorf("logged %v", e)
		}
	}
	browser.CloseIdleConnections()
	if e := g.entry("closed"); e["layer"] != "tls" || e["bytes_in"].(float64) < 500 || e["bytes_out"].(float64) < 500 {
		t.Errorf("logged %v", e)
	}
	waitFor(t, "all places to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
}

// The certificate that clients get: for the name, of this authority, valid since yesterday, as is the root.
func TestBrokerCertificate(t *testing.T) {
	g := startBroker(t, brokerSetup{})
	c, err := tls.Dial("tcp", g.tls, &tls.Config{ServerName: "api.example.com", RootCAs: g.authority})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pki, err := caddy.ActiveContext().App("pki")
	if err != nil {
		t.Fatal(err)
	}
	if install := pki.(*caddypki.PKI).CAs["local"].InstallTrust; install == nil || *install {
		t.Error("the root is put into the trust store of the machine")
	}
	chains := c.ConnectionState().VerifiedChains
	leaf, root := chains[0][0], chains[0][len(chains[0])-1]
	t.Run("http-033", func(t *testing.T) {
		if len(leaf.AuthorityKeyId) == 0 || !bytes.Equal(leaf.AuthorityKeyId, root.SubjectKeyId) || len(root.SubjectKeyId) == 0 {
			t.Errorf("key identifiers %x and %x", leaf.AuthorityKeyId, root.SubjectKeyId)
		}
		if len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != "api.example.com" || leaf.IsCA || len(leaf.IPAddresses) > 0 {
			t.Errorf("names %v", leaf.DNSNames)
		}
		if len(leaf.ExtKeyUsage) != 1 || leaf.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth || leaf.KeyUsage != x509.KeyUsageDigitalSignature {
			t.Errorf("usage %v %v", leaf.KeyUsage, leaf.ExtKeyUsage)
		}
		if root.KeyUsage&x509.KeyUsageCertSign == 0 || !root.IsCA {
			t.Errorf("usage of the root %v", root.KeyUsage)
		}
		if validity := leaf.NotAfter.Sub(leaf.NotBefore); validity > 825*24*time.Hour || validity < 24*time.Hour {
			t.Errorf("valid for %v", validity)
		}
	})
	t.Run("ops-023", func(t *testing.T) {
		behind := &tls.Config{ServerName: "api.example.com", RootCAs: g.authority, Time: func() time.Time { return time.Now().Add(-time.Hour) }}
		c, err := tls.Dial("tcp", g.tls, behind)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	})
}

// A configuration that takes the place of another has its own sites, secrets and listeners.
func TestBrokerReload(t *testing.T) {
	g := startBroker(t, brokerSetup{handle: echoRequest})
	browser := g.browser("h2")
	resp, err := browser.Get(g.url("api.example.com", "/"))
	body(t, resp, err)
	for i := range 3 {
		secret := filepath.Join(dirOf(t), "another")
		key := fmt.Sprintf("another-secret-%d", i)
		if err := os.WriteFile(secret, []byte(key), 0o600); err != nil {
			t.Fatal(err)
		}
		g.json = bytes.ReplaceAll(g.json, []byte(g.secret), []byte(secret))
		g.secret = secret
		g.start()
		resp, err := g.browser().Get(g.url("api.example.com", "/"))
		e := echoOf(t, resp, err)
		if got := e.Header.Get("Authorization"); got != "Bearer "+strings.Repeat("*", len(key)) {
			t.Errorf("Authorization %q", got)
		}
	}
	// Without the site the name is tunnelled, and what was not any more is cut.
	tunnelled := bytes.Replace(g.json, []byte(`"api.example.com"`), []byte(`"gone.example.com"`), -1)
	c := g.raw("api.example.com", "http/1.1")
	g.json = tunnelled
	g.start()
	conn, err := tls.Dial("tcp", g.tls, &tls.Config{ServerName: "api.example.com", InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if issuer := conn.ConnectionState().PeerCertificates[0].Issuer.CommonName; issuer != "upstream" {
		t.Errorf("certificate of %q", issuer)
	}
	c.Close()
	// With it again, a tunnel that goes by it is cut.
	g.json = bytes.Replace(g.json, []byte(`"gone.example.com"`), []byte(`"api.example.com"`), -1)
	g.skipLog()
	g.start()
	if e := g.entry(msgRevoked); e["reason"] != "not_brokered" || e["name"] != "api.example.com" {
		t.Errorf("logged %v", e)
	}
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("error %v", err)
	}
}

// The limit counts connections, and each request of those that carry many.
func TestBrokerLimit(t *testing.T) {
	release := make(chan struct{})
	g := startBroker(t, brokerSetup{options: "max_tunnels 3", handle: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		<-release
	}})
	defer close(release)
	browser := g.browser("h2")
	var statuses []int
	for range 3 { // the connection, and two requests
		resp, err := browser.Get(g.url("api.example.com", "/"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		statuses = append(statuses, resp.StatusCode)
	}
	if fmt.Sprint(statuses) != "[200 200 503]" {
		t.Errorf("statuses %v", statuses)
	}
}

func TestIssuer(t *testing.T) {
	g := startBroker(t, brokerSetup{})
	i := &Issuer{app: g.app}
	for _, tc := range []struct {
		name string
		csr  x509.CertificateRequest
		want string
	}{
		{"another name", x509.CertificateRequest{DNSNames: []string{"www.example.com"}}, `no site brokers "www.example.com"`},
		{"another name too", x509.CertificateRequest{DNSNames: []string{"api.example.com", "example.org"}}, `no site brokers "example.org"`},
		{"a wildcard", x509.CertificateRequest{DNSNames: []string{"*.example.com"}}, `no site brokers "*.example.com"`},
		{"no name", x509.CertificateRequest{}, "accepted are certificates for names"},
		{"an address of mail", x509.CertificateRequest{DNSNames: []string{"api.example.com"}, EmailAddresses: []string{"a@b"}}, "accepted are certificates for names"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := i.Issue(t.Context(), &tc.csr); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
