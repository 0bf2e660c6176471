package caddymodule

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"golang.org/x/net/html"
)

const (
	dashboardSite = "sandboxallow dashboard"
	fromHereHost  = "Host: localhost"
)

// startDashboard runs a gateway: site 0 decides, site 1 has the dashboard, as have those of sites.
func startDashboard(t *testing.T, sites ...string) *httpGateway {
	t.Helper()
	return startHTTP(t, setup{sites: append([]string{transparentSite, dashboardSite}, sites...)})
}

func TestDashboardCaddyfile(t *testing.T) {
	site := func(address, body string) string {
		return "{\n\tsandboxallow {\n\t\tallow example.com\n\t}\n}\n" + address + " {\n" + body + "\n}\n"
	}
	for _, tc := range []struct{ name, in, want string }{
		{"loopback", site("http://:8901", "bind 127.0.0.1\nsandboxallow dashboard"), ""},
		{"all of loopback", site("http://:8901", "bind 127.0.0.1 ::1 127.0.0.53 localhost\nsandboxallow dashboard"), ""},
		{"a socket", site("http://:8901", "bind unix//run/dashboard.sock\nsandboxallow dashboard"), ""},
		{"below a path", site("http://:8901", "bind 127.0.0.1\nhandle_path /sandbox/* {\nsandboxallow dashboard\n}"), ""},
		{"everywhere, and said so", site("https://dash.example.org", "tls internal\nsandboxallow dashboard {\nallow_remote dash.example.org 192.0.2.1 ::1\n}"), ""},

		{"everywhere", site("http://:8901", "sandboxallow dashboard"), "listens on :8901, which a sandbox may reach"},
		{"everywhere, the address is but a Host", site("http://127.0.0.1:8901", "sandboxallow dashboard"), "listens on :8901, which a sandbox may reach"},
		{"everywhere with IPv4", site("http://:8901", "bind 0.0.0.0\nsandboxallow dashboard"), "bind 127.0.0.1"},
		{"everywhere with IPv6", site("http://:8901", "bind ::\nsandboxallow dashboard"), "which a sandbox may reach"},
		{"one of two", site("http://:8901", "bind 127.0.0.1 172.30.0.20\nsandboxallow dashboard"), "listens on 172.30.0.20:8901"},
		{"a name", site("http://:8901", "bind localhost.example\nsandboxallow dashboard"), "which a sandbox may reach"},
		{"an inherited socket", site("http://:8901", "bind fd/3\nsandboxallow dashboard"), "which a sandbox may reach"},
		{"below a path, everywhere", site("http://:8901", "handle_path /sandbox/* {\nsandboxallow dashboard\n}"), "which a sandbox may reach"},
		{"an error page", site("http://:8901", "handle_errors {\nsandboxallow dashboard\n}"), "which a sandbox may reach"},

		{"no app", "http://:8901 {\nbind 127.0.0.1\nsandboxallow dashboard\n}\n", "no sandboxallow app"},
		{"an argument", site("http://:8901", "sandboxallow dashboard now"), "wrong argument count"},
		{"another handler", site("http://:8901", "sandboxallow dashbord"), `unknown argument "dashbord", accepted are forward_proxy, broker and dashboard`},
		{"an option", site("http://:8901", "sandboxallow dashboard {\npolicy default\n}"), `unknown option "policy", accepted is allow_remote`},
		{"no host", site("http://:8901", "sandboxallow dashboard {\nallow_remote\n}"), "allow_remote without a host"},
		{"twice", site("http://:8901", "sandboxallow dashboard {\nallow_remote a\nallow_remote b\n}"), "allow_remote is given twice"},
		{"a port", site("http://:8901", "sandboxallow dashboard {\nallow_remote dash.example.org:443\n}"), "without a port"},
		{"capitals", site("http://:8901", "sandboxallow dashboard {\nallow_remote Dash.example.org\n}"), "in lower case"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			data, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(tc.in), map[string]any{"filename": "Caddyfile"})
			if err == nil {
				err = caddy.Validate(config(t, data))
			}
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if recent.journal.Load() != nil {
				t.Error("validating a configuration leaves a journal behind")
			}
		})
	}
	t.Run("a server that does not say where it listens", func(t *testing.T) {
		if err := onlyLocal(nil); err == nil {
			t.Error("no error")
		}
	})
}

// Every answer has the fields that keep a browser from doing with it what it is not for.
func TestDashboardAnswers(t *testing.T) {
	g := startDashboard(t, dashboardSite+" {\nallow_remote dash.example.org 192.0.2.7\n}", "handle_path /sub/* {\n"+dashboardSite+"\n}")
	for _, tc := range []struct {
		name   string
		site   int
		lines  []string
		status int
		typ    string
	}{
		{"page", 1, []string{"GET / HTTP/1.1", fromHereHost}, 200, "text/html; charset=utf-8"},
		{"page, HEAD", 1, []string{"HEAD / HTTP/1.1", fromHereHost}, 200, "text/html; charset=utf-8"},
		{"style", 1, []string{"GET /dashboard.css HTTP/1.1", fromHereHost}, 200, "text/css; charset=utf-8"},
		{"script", 1, []string{"GET /dashboard.js HTTP/1.1", fromHereHost}, 200, "text/javascript; charset=utf-8"},
		{"icon", 1, []string{"GET /icon.svg HTTP/1.1", fromHereHost}, 200, "image/svg+xml"},
		{"below a path", 3, []string{"GET /sub/ HTTP/1.1", fromHereHost}, 200, "text/html; charset=utf-8"},
		{"a file below a path", 3, []string{"GET /sub/icon.svg HTTP/1.1", fromHereHost}, 200, "image/svg+xml"},

		{"another page", 1, []string{"GET /metrics HTTP/1.1", fromHereHost}, 404, ""},
		{"the template", 1, []string{"GET /page.html HTTP/1.1", fromHereHost}, 404, ""},
		{"a way out", 1, []string{"GET /../dashboard.go HTTP/1.1", fromHereHost}, 404, ""},
		{"POST", 1, []string{"POST / HTTP/1.1", fromHereHost, "Content-Length: 0"}, 405, ""},
		{"OPTIONS", 1, []string{"OPTIONS / HTTP/1.1", fromHereHost}, 405, ""},

		{"localhost with a port", 1, []string{"GET / HTTP/1.1", "Host: LOCALHOST.:8900"}, 200, ""},
		{"loopback", 1, []string{"GET / HTTP/1.1", "Host: 127.9.9.9:8900"}, 200, ""},
		{"loopback of IPv6", 1, []string{"GET / HTTP/1.1", "Host: [::1]:8900"}, 200, ""},
		{"another host, which leads here by now", 1, []string{"GET / HTTP/1.1", "Host: rebound.example"}, 403, ""},
		{"its events", 1, []string{"GET /events HTTP/1.1", "Host: rebound.example"}, 403, ""},
		{"a host like loopback", 1, []string{"GET / HTTP/1.1", "Host: 127.0.0.1.rebound.example"}, 403, ""},
		{"a host like localhost", 1, []string{"GET / HTTP/1.1", "Host: localhost.rebound.example"}, 403, ""},
		{"no host", 1, []string{"GET / HTTP/1.0"}, 403, ""},
		{"unspecified", 1, []string{"GET / HTTP/1.1", "Host: 0.0.0.0"}, 403, ""},
		{"a host that is not configured", 1, []string{"GET / HTTP/1.1", "Host: dash.example.org"}, 403, ""},
		{"a host that is", 2, []string{"GET / HTTP/1.1", "Host: Dash.Example.org.:443"}, 200, ""},
		{"an address that is", 2, []string{"GET / HTTP/1.1", "Host: 192.0.2.7"}, 200, ""},
		{"one that is not", 2, []string{"GET / HTTP/1.1", "Host: 192.0.2.8"}, 403, ""},

		{"a link on another site", 1, []string{"GET / HTTP/1.1", fromHereHost, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 200, ""},
		{"a frame on another site", 1, []string{"GET / HTTP/1.1", fromHereHost, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"}, 403, ""},
		{"fetch by another port", 1, []string{"GET / HTTP/1.1", fromHereHost, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"}, 403, ""},
		{"events for another site", 1, []string{"GET /events HTTP/1.1", fromHereHost, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"}, 403, ""},
		{"the page itself", 1, []string{"GET /dashboard.css HTTP/1.1", fromHereHost, "Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: style"}, 200, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := g.ask(tc.site, tc.lines...)
			if r.err != nil || r.status != tc.status || tc.typ != "" && r.header.Get("Content-Type") != tc.typ {
				t.Errorf("got %+v, want %d", r, tc.status)
			}
			if r.status != 200 && !strings.HasPrefix(r.body, "sandboxallow dashboard: ") {
				t.Errorf("says %q", r.body)
			}
			for field, want := range map[string]string{
				"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
				"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
				"Cross-Origin-Embedder-Policy": "require-corp", "Access-Control-Allow-Origin": "",
			} {
				if got := r.header.Get(field); got != want {
					t.Errorf("%s: %q, want %q", field, got, want)
				}
			}
			csp := r.header.Get("Content-Security-Policy")
			for _, want := range []string{"default-src 'none';", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none';", "base-uri 'none';", "form-action 'none';"} {
				if !strings.Contains(csp, want) {
					t.Errorf("the CSP %q lacks %s", csp, want)
				}
			}
			if strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") {
				t.Errorf("the CSP is %q", csp)
			}
		})
	}
}

// Only connections of this host with itself are served, whatever let another one through to the listener.
func TestDashboardFromHere(t *testing.T) {
	for _, tc := range []struct {
		local, remote string
		want          bool
	}{
		{"127.0.0.1:80", "127.0.0.1:40000", true},
		{"[::1]:80", "[::1]:40000", true},
		{"127.0.0.1:80", "172.30.0.5:40000", false}, // DNAT to loopback
		{"172.30.0.20:80", "127.0.0.1:40000", false},
		{"172.30.0.20:80", "172.30.0.5:40000", false},
		{"/run/dashboard.sock", "@", true},
	} {
		var local net.Addr = &net.UnixAddr{Name: tc.local, Net: "unix"}
		if ap, err := netip.ParseAddrPort(tc.local); err == nil {
			local = net.TCPAddrFromAddrPort(ap)
		}
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, local), http.MethodGet, "http://localhost/", nil)
		r.RemoteAddr = tc.remote
		if err := new(Dashboard).admit(r); (err == nil) != tc.want {
			t.Errorf("from %s to %s: %v", tc.remote, tc.local, err)
		}
		if err := (&Dashboard{AllowRemote: []string{"localhost"}}).admit(r); err != nil {
			t.Errorf("from %s to %s, with allow_remote: %v", tc.remote, tc.local, err)
		}
	}
}

// The page has no script and no style of its own, which the CSP would block, and loads nothing from elsewhere.
func TestDashboardPage(t *testing.T) {
	g := startDashboard(t)
	g.ask(0, "GET / HTTP/1.1", g.host("evil.test"))
	r := g.ask(1, "GET / HTTP/1.1", fromHereHost)
	doc, err := html.Parse(strings.NewReader(r.body))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(r.body, "allow evil.test") {
		t.Errorf("the page lacks the line that would allow evil.test:\n%s", r.body)
	}
	ids := make(map[string]bool)
	for n := range doc.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		attrs := make(map[string]string)
		for _, a := range n.Attr {
			attrs[a.Key] = a.Val
			switch {
			case a.Key == "style" || strings.HasPrefix(a.Key, "on"):
				t.Errorf("<%s> has the attribute %s", n.Data, a.Key)
			case (a.Key == "src" || a.Key == "href") && !strings.HasPrefix(a.Val, "#") && !isPageFile(a.Val):
				t.Errorf("<%s> leads to %s", n.Data, a.Val)
			case a.Key == "id" && ids[a.Val]:
				t.Errorf("two elements have the id %s", a.Val)
			case a.Key == "id":
				ids[a.Val] = true
			}
		}
		switch n.Data {
		case "style":
			t.Error("the page has a <style>")
		case "script":
			if attrs["src"] == "" || n.FirstChild != nil {
				t.Error("the page has a script of its own")
			}
		}
	}
	script, _ := fs.ReadFile(pageFiles, "dashboard.js")
	for _, sink := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("} {
		if strings.Contains(string(script), sink) {
			t.Errorf("the script uses %s", sink)
		}
	}
}

func isPageFile(name string) bool {
	_, err := fs.Stat(pageFiles, name)
	return err == nil && name != "page.html"
}

// message is a server-sent event.
type message struct{ event, id, data string }

// listen asks for events.
func (g *httpGateway) listen(query string, fields ...string) (*client, *http.Response) {
	g.t.Helper()
	c := g.dial(1)
	c.send(append([]string{"GET /events" + query + " HTTP/1.1", fromHereHost}, fields...)...)
	resp, err := http.ReadResponse(c.in, &http.Request{Method: http.MethodGet})
	if err != nil {
		g.t.Fatal(err)
	}
	c.in = bufio.NewReader(resp.Body)
	return c, resp
}

// event reads the next one.
func (c *client) event() message {
	c.t.Helper()
	var m message
	for {
		line, err := c.in.ReadString('\n')
		if err != nil {
			c.t.Fatalf("no event, but %q, %v", line, err)
		}
		line = strings.TrimSuffix(line, "\n")
		switch field, value, _ := strings.Cut(line, ": "); field {
		case "event":
			m.event = value
		case "id":
			m.id = value
		case "data":
			m.data = value
		case "":
			if m != (message{}) {
				return m
			}
		}
	}
}

// update reads the next event as what a page is told.
func (c *client) update() (view, string) {
	c.t.Helper()
	m := c.event()
	var v view
	if err := json.Unmarshal([]byte(m.data), &v); err != nil {
		c.t.Fatalf("%v: %q", err, m)
	}
	return v, m.id
}

func TestDashboardEvents(t *testing.T) {
	g := startDashboard(t)
	g.ask(0, "GET / HTTP/1.1", g.host("evil.test"))
	c, resp := g.listen("")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("got %d %v", resp.StatusCode, resp.Header)
	}
	v, first := c.update()
	if len(v.Clients) != 1 || v.Clients[0].Denials[0].Name != "evil.test" || v.Clients[0].Denials[0].Hint != fmt.Sprintf("allow evil.test:%d", g.web.port) ||
		len(v.Decisions) != 1 || v.Totals.Denied != "1" || v.InForce.Hash != g.app.store.Set().Hash() {
		t.Errorf("got %+v", v)
	}

	g.ask(0, "GET / HTTP/1.1", g.host("www.example.com"))
	v, second := c.update()
	if len(v.Decisions) != 1 || v.Decisions[0].Name != "www.example.com" || v.Decisions[0].Outcome != "allowed" || v.Decisions[0].Rule == "" || v.Decisions[0].Upstream == "" {
		t.Errorf("got %+v, want the new decision alone", v.Decisions)
	}

	t.Run("a page that was loaded before", func(t *testing.T) {
		c, _ := g.listen("?since=" + first)
		if v, _ := c.update(); len(v.Decisions) != 1 || v.Decisions[0].Name != "www.example.com" {
			t.Errorf("got %+v", v)
		}
	})
	t.Run("a browser that comes again", func(t *testing.T) {
		c, _ := g.listen("?since="+first, "Last-Event-ID: "+second)
		if v, _ := c.update(); len(v.Decisions) != 0 || v.InForce == nil {
			t.Errorf("got %+v", v)
		}
	})
	t.Run("a page of another process", func(t *testing.T) {
		for _, cursor := range []string{"other.7", "other", "%zz", "..", strings.Repeat("9", 5000)} {
			c, _ := g.listen("?since=" + cursor)
			if m := c.event(); strings.HasPrefix(cursor, "other.") != (m.event == "restart") {
				t.Errorf("%.20s: got %q", cursor, m)
			}
		}
	})
	t.Run("a change of the policy", func(t *testing.T) {
		g.set("policy default {\n\tallow evil.test:%d\n}\n")
		for {
			if v, _ := c.update(); len(v.Clients) > 0 {
				if d := v.Clients[0].Denials[0]; d.Remedy != remedyDone || len(v.Decisions) != 0 {
					t.Errorf("got %+v", v)
				}
				break
			}
		}
	})
}

// Viewers are bounded, and one that leaves makes room.
func TestDashboardViewers(t *testing.T) {
	g := startDashboard(t)
	var viewers []*client
	for range maxViewers {
		c, resp := g.listen("")
		if resp.StatusCode != 200 {
			t.Fatalf("got %s", resp.Status)
		}
		c.update()
		viewers = append(viewers, c)
	}
	if _, resp := g.listen(""); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one too many got %s", resp.Status)
	}
	if r := g.ask(1, "GET / HTTP/1.1", fromHereHost); r.status != 200 {
		t.Errorf("the page got %d", r.status)
	}
	viewers[0].Close()
	waitFor(t, "room for another viewer", func() bool {
		_, resp := g.listen("")
		return resp.StatusCode == 200
	})
}

// A viewer that does not read what it is sent is dropped, and holds up nobody.
func TestDashboardSlowViewer(t *testing.T) {
	g := startDashboard(t)
	recent.decided(denied("10.0.0.1", "a"))
	d := &Dashboard{app: g.app, journal: recent.journal.Load()}
	w := new(stuckWriter)
	s := &eventStream{w: w, rc: http.NewResponseController(w)}
	if err := s.update(d); !errors.Is(err, os.ErrDeadlineExceeded) || s.sent.Add(viewerPatience) != w.deadline {
		t.Errorf("got %v, and a deadline of %v", err, w.deadline)
	}
}

// stuckWriter is a connection whose other end reads nothing.
type stuckWriter struct {
	http.ResponseWriter
	deadline time.Time
}

func (w *stuckWriter) SetWriteDeadline(t time.Time) error {
	w.deadline = t
	return nil
}

func (w *stuckWriter) Write(b []byte) (int, error) {
	if w.deadline.IsZero() {
		return len(b), nil
	}
	return 0, os.ErrDeadlineExceeded
}

// A reload must not wait for viewers, who never leave, and loses no history; the end of the last dashboard does.
func TestDashboardReload(t *testing.T) {
	g := startDashboard(t)
	g.ask(0, "GET / HTTP/1.1", g.host("evil.test"))
	c, _ := g.listen("")
	_, id := c.update()
	begun := time.Now()
	g.load(append(g.json, ' '), len(g.addrs))
	for {
		if _, err := c.in.ReadString('\n'); err != nil {
			break
		}
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("viewers were kept for %v", took)
	}
	c, _ = g.listen("?since=" + id)
	if m := c.event(); m.event != "" {
		t.Errorf("after a reload: %+v", m)
	}
	if r := g.ask(1, "GET / HTTP/1.1", fromHereHost); !strings.Contains(r.body, "evil.test") {
		t.Error("the history is lost")
	}
	g.load(bytes.Replace(g.json, []byte(`"handler":"sandboxallow_dashboard"`), []byte(`"handler":"static_response"`), 1), len(g.addrs))
	waitFor(t, "the end of the journal", func() bool { return recent.journal.Load() == nil })
}

func TestDashboardREADME(t *testing.T) {
	validExamples(t, "dashboard.md", 3, "policy default {\n\tallow example.com\n}\n")
}
