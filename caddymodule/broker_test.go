package caddymodule

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/sandboxallow/sandboxallow/internal/listener"
)

// testSecret is what sites set and nobody may see.
const testSecret = "sk-proj-4f2b8c1d9e7a6053"

// brokerGateway is Caddy with a way in for TLS and sites that broker, run in this process.
type brokerGateway struct {
	*httpGateway
	up        *origin
	tls       string // address of the way in
	authority *x509.CertPool
	secret    string // path of the file
}

// brokerSetup is what a test has besides the defaults.
type brokerSetup struct {
	sites   string // %d is the port of the origin; "" is brokerSite
	globals string
	options string   // of the app
	also    []string // bodies of further sites, as of startHTTP
	lines   string   // of the policy
	level   string   // of the log; "" is DEBUG
	handle  http.HandlerFunc
	http1   bool // is all that the origin speaks
}

// brokerSite brokers api.example.com.
const brokerSite = `https://api.example.com:%d {
	sandboxallow broker
	reverse_proxy https://api.example.com:%d {
		header_up Authorization "Bearer {file.%secret}"
		transport sandboxallow {
			tls_trust_pool file %roots
		}
	}
}
`

// startSecureWeb starts an origin that speaks HTTP over TLS, version 2 too.
func startSecureWeb(t testing.TB, roots string, handle http.HandlerFunc, http1 bool) *origin {
	t.Helper()
	cert, _ := certificate(t, "*.example.com", "example.com")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}), 0o600); err != nil {
		t.Fatal(err)
	}
	o := listenOrigin(t)
	srv := &http.Server{
		Handler:   handle,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	if http1 {
		srv.TLSNextProto = make(map[string]func(*http.Server, *tls.Conn, http.Handler))
	}
	go srv.ServeTLS(o.Listener, "", "")
	t.Cleanup(func() { srv.Close() })
	return o
}

// startBroker runs Caddy.
func startBroker(t testing.TB, s brokerSetup) *brokerGateway {
	t.Helper()
	waitFor(t, "the places of other tests to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
	dir := dirOf(t)
	g := &brokerGateway{
		httpGateway: &httpGateway{t: t, policy: filepath.Join(dir, "policy"), log: filepath.Join(dir, "log")},
		secret:      filepath.Join(dir, "secret"),
	}
	if s.handle == nil {
		s.handle = func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s %s", r.Proto, r.Header.Get("Authorization"))
		}
	}
	roots := filepath.Join(dir, "roots.pem")
	g.up = startSecureWeb(t, roots, s.handle, s.http1)
	if err := os.WriteFile(g.secret, []byte(testSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(int(g.up.port))
	fill := strings.NewReplacer("%d", port, "%secret", g.secret, "%roots", roots).Replace
	if s.lines == "" {
		s.lines = "allow .example.com:%d"
	}
	g.write(fill(brokerDocument(s.lines)))
	if s.sites == "" {
		s.sites = brokerSite
	}
	listen, route := "", "layer4 {\n127.0.2.1:1 {\nroute {\nsandboxallow {\nupstream_port %d\n}\n}\n}\n}"
	if wayIn == byEntrance {
		listen, route = "listen "+freeAddr(t)+" {\nupstream_port %d\n}", ""
	}
	text := fmt.Sprintf(`{
	admin off
	persist_config off
	grace_period 1s
	http_port 9
	storage file_system %s
	log {
		output file %s
		format json
		level %s
	}
	%s
	sandboxallow {
		%s
		policy_file %s
		resolvers %s
		poll 20ms
		%s
	}
	%s
}
`, filepath.Join(dir, "storage"), g.log, cmp.Or(s.level, "DEBUG"), s.globals, s.options, g.policy, startDNS(t, maps.Clone(testNames)), listen, route)
	text += s.sites
	for i, site := range s.also {
		text += fmt.Sprintf("http://:%d {\nbind 127.0.1.%d\n%s\n}\n", i+1, i+1, site)
	}
	data, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(fill(text)), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.ReplaceAll(data, []byte(`"127.0.2.1:1"`), []byte(`"127.0.2.1:0"`))
	for i := range s.also {
		data = bytes.ReplaceAll(data, fmt.Appendf(nil, "127.0.1.%d:%d\"", i+1, i+1), fmt.Appendf(nil, "127.0.1.%d:0\"", i+1))
	}
	g.json = data
	t.Cleanup(func() { caddy.Stop() })
	g.start()
	root, err := os.ReadFile(filepath.Join(dir, "storage", "pki", "authorities", "local", "root.crt"))
	if err != nil {
		t.Fatal(err)
	}
	g.authority = x509.NewCertPool()
	g.authority.AppendCertsFromPEM(root)
	return g
}

func brokerDocument(lines string) string {
	return "policy default {\nprivate " + upstreamAddr + "/32\n" + lines + "\n}\n"
}

// start has Caddy run the configuration, in the place of the one before.
func (g *brokerGateway) start() {
	g.t.Helper()
	if err := caddy.Load(g.json, true); err != nil {
		g.t.Fatal(err)
	}
	app, err := appOf(caddy.ActiveContext())
	if err != nil {
		g.t.Fatal(err)
	}
	g.app, g.addrs = app, nil
	listener.Each(func(_ int, at netip.AddrPort) {
		switch s := at.String(); {
		case strings.HasPrefix(s, "127.0.2.1:"), strings.HasPrefix(s, "127.0.3.1:"):
			g.tls = s
		case strings.HasPrefix(s, "127.0.1."):
			g.addrs = append(g.addrs, s)
		}
	})
	slices.Sort(g.addrs)
}

// browser returns a client that reaches every name through the way in for TLS.
func (g *brokerGateway) browser(protocols ...string) *http.Client {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, g.tls)
		},
		TLSClientConfig:    &tls.Config{RootCAs: g.authority, NextProtos: protocols},
		ForceAttemptHTTP2:  true,
		DisableCompression: true,
	}
	if len(protocols) == 1 && protocols[0] == "http/1.1" {
		tr.ForceAttemptHTTP2 = false
		tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	g.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

func (g *brokerGateway) url(name, path string) string {
	return fmt.Sprintf("https://%s:%d%s", name, g.up.port, path)
}

func body(t testing.TB, r *http.Response, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestBroker(t *testing.T) {
	seen := make(chan string, 10)
	g := startBroker(t, brokerSetup{handle: func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Proto + " " + r.Host + " " + r.Header.Get("Authorization")
		io.WriteString(w, "hello")
	}})
	for _, proto := range []string{"http/1.1", "h2"} {
		t.Run(proto, func(t *testing.T) {
			resp, err := g.browser(proto).Get(g.url("api.example.com", "/v1"))
			if got := body(t, resp, err); got != "hello" || resp.StatusCode != 200 {
				t.Errorf("response %d %q", resp.StatusCode, got)
			}
			want := fmt.Sprintf("HTTP/2.0 api.example.com:%d Bearer %s", g.up.port, testSecret)
			if got := <-seen; got != want {
				t.Errorf("the upstream got %q, want %q", got, want)
			}
		})
	}
}
