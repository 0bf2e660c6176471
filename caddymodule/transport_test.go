package caddymodule

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// A request that the transport refuses is logged too, and the site has set the secret by then.
func TestBrokerTellsNoSecretOfRefused(t *testing.T) {
	const upstream = "reverse_proxy https://api.example.com:%d {\nheader_up X-Api-Key {file.%secret}\n"
	const transport = "transport sandboxallow {\ntls_trust_pool file %roots\n}\n}\n}\n"
	for _, tc := range []struct{ name, site, host, reason string }{
		{
			"another name", "https://*.example.com:%d {\nsandboxallow broker\n" + upstream + transport,
			"www.example.com", "not_brokered",
		},
		{
			"not through the broker", "https://*.example.com:%d {\n@m path /m\nsandboxallow @m broker\n" + upstream + transport,
			"api.example.com", "",
		},
		{
			"one of two missing", "https://*.example.com:%d {\nsandboxallow broker\n" + upstream + "header_up X-Team {file.%secret.missing}\n" + transport,
			"api.example.com", "not_brokered",
		},
		{
			"no port", "https://*.example.com:%d {\nsandboxallow broker\n" + strings.Replace(upstream, "https://api.example.com:%d", "{http.request.header.X-To}", 1) + transport,
			"api.example.com", "not_brokered",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := startBroker(t, brokerSetup{sites: tc.site, handle: func(http.ResponseWriter, *http.Request) { t.Error("the upstream got a request") }})
			req, _ := http.NewRequest("GET", g.url(tc.host, "/"), nil)
			req.Header.Set("X-To", "a_b:443")
			resp, err := g.browser().Do(req)
			if text := body(t, resp, err); resp.StatusCode != 502 || resp.Header.Get(reasonField) != tc.reason {
				t.Errorf("got %d %s %q", resp.StatusCode, resp.Header.Get(reasonField), text)
			}
			g.tellsNothing("upstream roundtrip", testSecret, "sk-proj-4f2b")
		})
	}
}

// tellsNothing stops Caddy and looks for secrets in its log, which has to have a line of that message.
func (g *brokerGateway) tellsNothing(message string, secrets ...string) {
	g.t.Helper()
	caddy.Stop()
	text, err := os.ReadFile(g.log)
	if err != nil {
		g.t.Fatal(err)
	}
	if !bytes.Contains(text, []byte(message)) {
		g.t.Errorf("the log has no line %q: this test proves nothing", message)
	}
	for _, secret := range secrets {
		if i := bytes.Index(text, []byte(secret)); i >= 0 {
			g.t.Errorf("logged: %s", text[max(0, i-1500):min(len(text), i+100)])
		}
	}
}

// A secret is one whatever stands before it, and a field without its secret is not sent.
func TestBrokerSecretInValue(t *testing.T) {
	for _, value := range []string{
		`{file.%secret}`, `Bearer {file.%secret}`, `DeepL-Auth-Key {file.%secret}`, `Key {file.%secret}`, `Bot {file.%secret}`, `SSWS {file.%secret}`,
		`Token token={file.%secret}`, `{http.request.method} {file.%secret}`, `{file.%secret} {http.request.method}`, `{file.%secret} for {file.%secret}`,
	} {
		for _, field := range []string{"Authorization", "X-Team", "+X-Team"} {
			t.Run(field+" "+value, func(t *testing.T) {
				var requests atomic.Int32
				site := strings.Replace(brokerSite, `Authorization "Bearer {file.%secret}"`, fmt.Sprintf("%s %q", field, value), 1)
				g := startBroker(t, brokerSetup{sites: site, handle: func(w http.ResponseWriter, r *http.Request) {
					requests.Add(1)
					field := strings.TrimPrefix(field, "+")
					got := r.Header.Values(field)
					if len(got) == 0 || !strings.Contains(got[len(got)-1], testSecret) {
						t.Errorf("the upstream got %s: %q", field, got)
					}
					io.WriteString(w, testSecret+" DeepL-Auth-Key Token token=")
				}})
				want := masked + " DeepL-Auth-Key Token token="
				client := g.browser()
				ask := func() (*http.Response, string) {
					req, _ := http.NewRequest("GET", g.url("api.example.com", "/"), nil)
					// What the client sends does not pass for what the operator would have set.
					req.Header["X-Team"] = []string{"", "mine", strings.TrimSpace(strings.ReplaceAll(value, "{file.%secret}", ""))}
					resp, err := client.Do(req)
					return resp, body(t, resp, err)
				}
				if resp, text := ask(); resp.StatusCode != 200 || text != want || requests.Load() != 1 {
					t.Errorf("got %d %q after %d requests, want %q", resp.StatusCode, text, requests.Load(), want)
				}
				for _, content := range []string{"", "\n"} {
					if err := os.WriteFile(g.secret, []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
					if resp, text := ask(); resp.StatusCode != 502 || !strings.Contains(text, "the gateway lacks the credential") {
						t.Errorf("without its secret got %d %q", resp.StatusCode, text)
					}
				}
				if n := requests.Load(); n != 1 {
					t.Errorf("the upstream got %d requests", n)
				}
			})
		}
	}
}

// What a server sends behind the response to HEAD is not logged by net/http, which quotes it.
func TestBrokerTellsNoSecretBehindHead(t *testing.T) {
	closed := make(chan struct{})
	g := startBroker(t, brokerSetup{http1: true, handle: func(w http.ResponseWriter, r *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		text := r.Method + " with " + r.Header.Get("Authorization")
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		io.Copy(io.Discard, c) // until the gateway closes it
		closed <- struct{}{}
	}})
	var logged bytes.Buffer
	before := log.Writer()
	log.SetOutput(&logged)
	browser := g.browser()
	for range 3 {
		resp, err := browser.Head(g.url("api.example.com", "/"))
		if got := body(t, resp, err); got != "" || resp.StatusCode != 200 || resp.ContentLength != int64(len("HEAD with Bearer "+testSecret)) {
			t.Errorf("got %d %q", resp.StatusCode, got)
		}
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Error("the connection is kept")
		}
	}
	log.SetOutput(before)
	if logged.Len() > 0 {
		t.Errorf("logged: %s", logged.String())
	}
	g.tellsNothing("upstream roundtrip", testSecret)
}
