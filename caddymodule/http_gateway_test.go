package caddymodule

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// httpGateway is Caddy with our handler in one or more sites, run in this process.
type httpGateway struct {
	t      testing.TB
	app    *App
	web    *web     // an origin that speaks HTTP
	addrs  []string // of the sites, in the order of the Caddyfile
	json   []byte   // the configuration
	policy string   // path of the document
	log    string   // path of Caddy's log
	read   int64    // octets of the log that entry has passed
}

// setup is what a Caddyfile of a test has besides the defaults.
type setup struct {
	document string            // %d is the port of the origin; "" is document()
	options  string            // of the global option sandboxallow
	globals  string            // global options
	sites    []string          // bodies of sites, for TLS if they begin with tls; none: one with our handler alone
	names    map[string]string // what startDNS knows, besides testNames
}

// Bodies of sites.
const (
	transparentSite = "sandboxallow {\nupstream_port %d\n}" // forwards to the port of the origin
	forwardProxy    = "sandboxallow forward_proxy"
)

// startHTTP runs Caddy. The sites listen on 127.0.1.1, 127.0.1.2 and so on.
func startHTTP(t testing.TB, s setup) *httpGateway {
	t.Helper()
	waitFor(t, "the places of other tests to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
	dir := t.TempDir()
	g := &httpGateway{t: t, policy: filepath.Join(dir, "policy"), log: filepath.Join(dir, "log"), web: startWeb(t)}
	if s.document == "" {
		s.document = document(g.web.port)
	}
	g.write(strings.ReplaceAll(s.document, "%d", strconv.Itoa(int(g.web.port))))
	if s.sites == nil {
		s.sites = []string{transparentSite}
	}
	names := maps.Clone(testNames)
	maps.Copy(names, s.names)
	text := fmt.Sprintf(`{
		admin off
		persist_config off
		auto_https off
		grace_period 1s
		log {
			output file %s
			format json
			level DEBUG
		}
		%s
		sandboxallow {
			policy_file %s
			resolvers %s
			poll 20ms
			%s
		}
	}
	`, g.log, s.globals, g.policy, startDNS(t, names), s.options)
	for i, site := range s.sites {
		scheme := "http"
		if strings.HasPrefix(site, "tls ") {
			scheme = "https"
		}
		text += fmt.Sprintf("%s://:%d {\nbind 127.0.1.%d\n%s\n}\n", scheme, i+1, i+1, strings.ReplaceAll(site, "%d", strconv.Itoa(int(g.web.port))))
	}
	data, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.sites { // not before: a site at port 0 has no place in a Caddyfile
		data = bytes.ReplaceAll(data, fmt.Appendf(nil, "127.0.1.%d:%d\"", i+1, i+1), fmt.Appendf(nil, "127.0.1.%d:0\"", i+1))
	}
	g.json = data
	g.load(data, len(s.sites))
	t.Cleanup(func() { caddy.Stop() })
	return g
}

// load has Caddy run a configuration, in the place of the one before.
func (g *httpGateway) load(config []byte, sites int) {
	g.t.Helper()
	if err := caddy.Load(config, true); err != nil {
		g.t.Fatal(err)
	}
	app, err := appOf(caddy.ActiveContext())
	if err != nil {
		g.t.Fatal(err)
	}
	g.app, g.addrs = app, nil
	servers, err := caddy.ActiveContext().App("http")
	if err != nil {
		g.t.Fatal(err)
	}
	for _, srv := range servers.(*caddyhttp.App).Servers {
		for _, l := range srv.Listeners() {
			g.addrs = append(g.addrs, l.Addr().String())
		}
	}
	slices.Sort(g.addrs) // no two have the same address, so the port does not matter
	if len(g.addrs) != sites {
		g.t.Fatalf("listeners at %v, want %d", g.addrs, sites)
	}
}

// write replaces the policy document.
func (g *httpGateway) write(document string) {
	g.t.Helper()
	tmp := g.policy + ".new"
	if err := os.WriteFile(tmp, []byte(document), 0o644); err != nil {
		g.t.Fatal(err)
	}
	if err := os.Rename(tmp, g.policy); err != nil {
		g.t.Fatal(err)
	}
}

// set replaces the document, in which %d is the port of the origin, and waits until it is in force.
func (g *httpGateway) set(document string) {
	g.t.Helper()
	before := g.app.store.Set()
	g.write(strings.ReplaceAll(document, "%d", strconv.Itoa(int(g.web.port))))
	waitFor(g.t, "the new document to be in force", func() bool { return g.app.store.Set() != before })
}

// entries returns the lines of our logger that entry has not passed.
func (g *httpGateway) entries() []map[string]any {
	g.t.Helper()
	data, err := os.ReadFile(g.log)
	if err != nil && !os.IsNotExist(err) {
		g.t.Fatal(err)
	}
	var es []map[string]any
	for line := range bytes.Lines(data[min(g.read, int64(len(data))):]) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // not written to its end yet
		}
		g.read += int64(len(line))
		e := make(map[string]any)
		if err := json.Unmarshal(line, &e); err != nil {
			g.t.Fatalf("%v: %s", err, line)
		}
		if e["logger"] == "sandboxallow" {
			e["offset"] = g.read
			es = append(es, e)
		}
	}
	return es
}

// entry waits for the next line of our logger with that message, and returns its fields.
func (g *httpGateway) entry(message string) map[string]any {
	g.t.Helper()
	var found map[string]any
	waitFor(g.t, fmt.Sprintf("a log line %q", message), func() bool {
		for _, e := range g.entries() {
			if e["msg"] == message {
				found, g.read = e, e["offset"].(int64)
				return true
			}
		}
		return false
	})
	return found
}

// skipLog has entry begin with what is logged from now on.
func (g *httpGateway) skipLog() { g.entries() }

// client is the client's end of a connection, and the responses that come on it.
type client struct {
	net.Conn
	t  testing.TB
	in *bufio.Reader
}

func newClient(t testing.TB, c net.Conn) *client {
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return &client{Conn: c, t: t, in: bufio.NewReader(c)}
}

// dial connects to a site, from 127.0.0.1 or another address of the loopback interface.
func (g *httpGateway) dial(site int, from ...string) *client {
	g.t.Helper()
	d := &net.Dialer{Timeout: 10 * time.Second}
	if len(from) > 0 {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from[0])}
	}
	c, err := d.Dial("tcp", g.addrs[site])
	if err != nil {
		g.t.Fatal(err)
	}
	return newClient(g.t, c)
}

// send writes lines, each with a line end, and the empty line that ends a head.
func (c *client) send(lines ...string) {
	c.t.Helper()
	if _, err := io.WriteString(c, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		c.t.Fatal(err)
	}
}

// response is one that was read to its end.
type response struct {
	status  int
	header  http.Header
	body    string
	trailer http.Header
	close   bool  // the connection ends with it
	err     error // why there is no response, or not all of it
}

func (r response) reason() string { return r.header.Get(reasonField) }

// is reports whether it is an answer of ours: with a status, a reason, and a body that says so too.
func (r response) is(status int, reason string) bool {
	return r.err == nil && r.status == status && r.reason() == reason && strings.HasPrefix(r.body, "sandboxallow: "+reason+": ")
}

// receive reads the response to a request with that method.
func (c *client) receive(method string) response {
	r, err := http.ReadResponse(c.in, &http.Request{Method: method})
	if err != nil {
		return response{err: err}
	}
	body, err := io.ReadAll(r.Body)
	return response{r.StatusCode, r.Header, string(body), r.Trailer, r.Close, err}
}

// get sends a request and reads the response to it.
func (c *client) get(lines ...string) response {
	c.t.Helper()
	c.send(lines...)
	method, _, _ := strings.Cut(lines[0], " ")
	return c.receive(method)
}

// closed reports whether the other side has closed the connection, or reset it, with nothing more to say.
func (c *client) closed() error {
	rest, err := io.ReadAll(c.in)
	if len(rest) > 0 {
		return fmt.Errorf("%q is left, want the end", rest)
	}
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		return err
	}
	return nil
}

// ask makes one request on a connection of its own.
func (g *httpGateway) ask(site int, lines ...string) response {
	g.t.Helper()
	c := g.dial(site)
	defer c.Close()
	return c.get(lines...)
}

// host returns a Host field of that name and the port of the origin.
func (g *httpGateway) host(name string) string { return fmt.Sprintf("Host: %s:%d", name, g.web.port) }

// web is an origin that speaks HTTP/1.1, and tells what it was sent, octet by octet.
type web struct {
	*origin
	conns atomic.Int32 // connections so far
	live  atomic.Int32 // connections that are open
	got   chan request

	mu    sync.Mutex
	paths map[string]func(c *served, r request)
	other func(net.Conn)
}

// request is what an origin was sent.
type request struct {
	conn    int      // number of the connection, from 1
	line    string   // the request line
	fields  []string // "Name: value", as they came
	body    string
	trailer []string
}

// field returns the value of a field that has to come once, "" if there is none.
func (r request) field(name string) string {
	var values []string
	for _, f := range r.fields {
		if n, v, _ := strings.Cut(f, ": "); strings.EqualFold(n, name) {
			values = append(values, v)
		}
	}
	return strings.Join(values, " AND ")
}

// served is a connection to a web origin.
type served struct {
	net.Conn
	in *bufio.Reader
}

func (s *served) say(text string) { io.WriteString(s, text) }

// reset ends the connection with a reset.
func (s *served) reset() { resetAll(s.Conn) }

func startWeb(t testing.TB) *web {
	w := &web{origin: listenOrigin(t), got: make(chan request, 10_000), paths: make(map[string]func(*served, request))}
	go w.serve(w.handle)
	return w
}

// on has requests for a path answered by f instead of with the number of the connection. A connection that f
// closes takes no more requests.
func (w *web) on(path string, f func(c *served, r request)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paths[path] = f
}

// speak has connections from now on served by f, in whatever protocol; HTTP again if it is nil.
func (w *web) speak(f func(net.Conn)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.other = f
}

func (w *web) speaks() func(net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.other
}

func (w *web) at(line string) func(*served, request) {
	target := strings.Fields(line + " -")[1]
	path, _, _ := strings.Cut(target, "?")
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.paths[path]
}

func (w *web) handle(c net.Conn) {
	w.live.Add(1)
	defer w.live.Add(-1)
	n := int(w.conns.Add(1))
	if other := w.speaks(); other != nil {
		other(c)
		return
	}
	for s := (&served{c, bufio.NewReader(c)}); ; {
		r, err := s.receive()
		if err != nil {
			return
		}
		r.conn = n
		f := w.at(r.line)
		if f == nil {
			f = func(s *served, r request) {
				body := fmt.Sprintf("connection %d", r.conn)
				s.say(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(body)))
				if !strings.HasPrefix(r.line, "HEAD ") {
					s.say(body)
				}
			}
		}
		w.got <- r
		f(s, r)
	}
}

// head reads lines up to the empty one.
func (s *served) head() (lines []string, err error) {
	for {
		line, err := s.in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		line = strings.TrimSuffix(line, "\r\n")
		if line == "" {
			return lines, nil
		}
		lines = append(lines, line)
	}
}

// receive reads a request, its body too unless a field Expect has the client wait.
func (s *served) receive() (r request, err error) {
	lines, err := s.head()
	if err != nil || len(lines) == 0 {
		return r, io.ErrUnexpectedEOF
	}
	r.line, r.fields = lines[0], lines[1:]
	if r.field("Expect") != "" {
		return r, nil
	}
	return r, s.body(&r)
}

func (s *served) body(r *request) error {
	var body []byte
	var err error
	if r.field("Transfer-Encoding") == "chunked" {
		if body, err = io.ReadAll(httputil.NewChunkedReader(s.in)); err == nil {
			r.trailer, err = s.head()
		}
	} else if n, _ := strconv.Atoi(r.field("Content-Length")); n > 0 {
		body = make([]byte, n)
		_, err = io.ReadFull(s.in, body)
	}
	r.body = string(body)
	return err
}

// next returns the next request that the origin was sent.
func (w *web) next(t testing.TB) request {
	t.Helper()
	select {
	case r := <-w.got:
		return r
	case <-time.After(10 * time.Second):
		t.Fatal("the origin got no request")
	}
	return request{}
}

// none checks that the origin was sent nothing that next has not returned.
func (w *web) none(t testing.TB) {
	t.Helper()
	select {
	case r := <-w.got:
		t.Errorf("the origin got %q %q", r.line, r.fields)
	default:
	}
}

// samples returns how often a histogram was observed.
func samples(t testing.TB, h prometheus.Histogram) uint64 {
	t.Helper()
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetHistogram().GetSampleCount()
}

// sorted returns fields in the order of the alphabet: the order of different ones means nothing.
func sorted(fields []string) []string {
	fields = slices.Clone(fields)
	slices.SortStableFunc(fields, func(a, b string) int {
		a, _, _ = strings.Cut(a, ":")
		b, _, _ = strings.Cut(b, ":")
		return strings.Compare(strings.ToLower(a), strings.ToLower(b))
	})
	return fields
}

// tlsIn makes a TLS connection with a server name in a tunnel.
func (c *client) tlsIn(config *tls.Config) *tls.Conn {
	return tls.Client(readAhead{c.Conn, c.in}, config)
}

// readAhead is a connection some bytes of which are in a reader already.
type readAhead struct {
	net.Conn
	in io.Reader
}

func (r readAhead) Read(p []byte) (int, error) { return r.in.Read(p) }
