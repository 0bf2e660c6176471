//go:build linux

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// evidence is all that came out of a run, by where it came out.
type evidence struct {
	mu   sync.Mutex
	text map[string][]byte
}

func (e *evidence) add(where string, text []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.text == nil {
		e.text = make(map[string][]byte)
	}
	e.text[where] = append(append(e.text[where], text...), '\n')
}

// windowSize is how much of a secret on its own is a leak too.
const windowSize = 12

// forms are how a secret may stand in a text: as it is or a part of it, escaped, or encoded.
func forms(secret string) map[string]string {
	quoted, _ := json.Marshal(secret)
	var plain strings.Builder
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(secret)
	all := map[string]string{
		"as it is":             secret,
		"JSON":                 strings.Trim(string(quoted), `"`),
		"JSON without <":       strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(plain.String()), `"`), `"`),
		"quoted":               strings.Trim(strconv.Quote(secret), `"`),
		"quoted, ASCII":        strings.Trim(strconv.QuoteToASCII(secret), `"`),
		"in a query":           url.QueryEscape(secret),
		"in a path":            url.PathEscape(secret),
		"hexadecimal":          hex.EncodeToString([]byte(secret)),
		"hexadecimal, capital": strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"octets":               strings.Trim(fmt.Sprint([]byte(secret)), "[]"),
	}
	for i := range len(secret) - windowSize + 1 {
		all[fmt.Sprintf("octets %d to %d", i, i+windowSize)] = secret[i : i+windowSize]
	}
	for name, e := range map[string]*base64.Encoding{"base64": base64.StdEncoding, "base64 for URLs": base64.URLEncoding} {
		// Behind so many other octets: without those digits that depend on what stands before and behind.
		for before := range 3 {
			digits := e.EncodeToString([]byte(strings.Repeat("x", before) + secret))
			all[fmt.Sprintf("%s behind %d", name, before)] = strings.TrimRight(digits, "=")[4 : len(digits)-4]
		}
	}
	return all
}

// leaks returns where a secret is, in which form.
func (e *evidence) leaks(secret string) (found []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for where, text := range e.text {
		for form, s := range forms(secret) {
			if i := bytes.Index(text, []byte(s)); i >= 0 {
				found = append(found, fmt.Sprintf("%s, %s: ...%q...", where, form, text[max(0, i-80):min(len(text), i+len(s)+40)]))
				break // of one place one form will do
			}
		}
	}
	slices.Sort(found)
	return found
}

// Nothing that the operator sets for a brokered name comes out of the gateway, other than to the upstream: in no
// answer, log, metric, page or file, at level debug and with log_credentials.
func TestBrokerSecrets(t *testing.T) {
	const (
		// With what each way of writing writes otherwise.
		bearerKey = `sk-lab/0a1b+2c3d&4e"5f<6g>7h%8i=9j~k`
		fieldKey  = `fk-lab/9z8y+7x6w&5v"4u<3t>2s%1r=0q~p`
		teamKey   = `tk-lab/abcd+efgh&ijkl"mnop<qrst>uv~w`
		leakedKey = `lk-lab/zyxw+vuts&rqpo"nmlk<jihg>fe~d` // which the site itself gives away
		canary    = "canary-of-the-client-0123456789"
		broken    = "broken.example.com"
		leaking   = "leaking.example.com"
	)
	l := newLab(t)
	bearer := "Bearer {file." + l.secret(t, "openai", bearerKey) + "}"
	xKey, team, leaked := "{file."+l.secret(t, "anthropic", fieldKey)+"}", "{file."+l.secret(t, "team", teamKey)+"}", "{file."+l.secret(t, "leaked", leakedKey)+"}"
	names := []string{openAI, anthropic, wildcard, broken, leaking, "private.example.com"}
	sites := brokered(openAI, "", "https://"+openAI, "Authorization", bearer) +
		brokered(anthropic, "", "https://"+anthropic, "X-Api-Key", xKey) +
		brokered("*.example.org", "", "{host}:443", "X-Team", team) + // whose name does not say what it is
		brokered(broken, "", "https://"+broken, "Authorization", bearer) +
		brokered(leaking, "", "https://"+leaking, "Authorization", `Bearer `+leaked) +
		brokered("private.example.com", "", "https://private.example.com", "Authorization", bearer)
	for name := range badCertificates {
		names = append(names, name)
		sites += brokered(name, "", "https://"+name, "Authorization", bearer)
	}
	sites = strings.ReplaceAll(sites, "\tsandboxallow broker", "\tlog\n\tsandboxallow broker")
	// What an operator should not write, and what the search has to find.
	sites = strings.Replace(sites, "https://"+leaking+" {\n", "https://"+leaking+" {\n\tlog_append leaked "+leaked+"\n\theader X-Leaked "+leaked+"\n", 1)
	g, a := l.startBroker(t, config{
		policy: allowing(names...),
		global: "debug\n\tservers {\n\t\tlog_credentials\n\t\tmetrics\n\t}\n\tlog decisions {\n\t\tinclude sandboxallow\n\t\tlevel DEBUG\n" +
			"\t\toutput file " + filepath.Join(l.dir, "decisions.log") + "\n\t}",
		sites: sites + "http://localhost:8900 {\n\tbind 127.0.0.1\n\tsandboxallow dashboard\n}\n",
	})
	l.trust(t, g)
	for _, name := range []string{openAI, anthropic, wildcard, leaking} {
		if err := a.host(l.internet, name, field{}, otherAddr); err != nil {
			t.Fatal(err)
		}
	}
	l.internet.dns.set("private.example.com", addrs(netip.MustParseAddr("10.1.2.3")))
	l.internet.dns.set(broken, addrs(webAddr))
	if _, err := l.internet.serve(l.internet.ns, netip.AddrPortFrom(webAddr, 443), func(c net.Conn) { parrot(tls.Server(c, &tls.Config{GetCertificate: l.ca.certificate})) }); err != nil {
		t.Fatal(err)
	}

	var e evidence
	// tell sends a request of HTTP/1.1 as it stands and keeps all that comes back.
	tell := func(name, line string, fields ...string) {
		t.Helper()
		c := l.secure(t, name, "http/1.1")
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(c, head(line, name, append(fields, "Connection: close", "User-Agent: "+canary, "Accept-Encoding: gzip, br, zstd")...))
		b, _ := io.ReadAll(c)
		if len(b) == 0 {
			t.Errorf("%s %s: no answer", name, line)
		}
		e.add("answers", b)
	}
	for _, name := range []string{openAI, anthropic, wildcard} {
		for _, path := range []string{"/echo", "/echo/slowly", "/echo/early", "/status/200", "/status/204", "/status/401", "/status/418", "/status/500", "/status/503", "/lost"} {
			tell(name, "GET "+path+"?keep="+canary)
		}
		tell(name, "POST /echo", "Content-Length: 0", "Authorization: Bearer "+madeUp, "X-Api-Key: "+madeUp, "X-Team: "+madeUp)
		tell(name, "TRACE /echo")
		tell(name, "OPTIONS /echo")
		tell(name, "GET /echo", "Connection: authorization, x-api-key, x-team")
		tell(name, "GET /redirect?to=https://"+evilHost+"/")
		tell(name, "GET /echo?q={file."+filepath.Join(l.dir, "secrets", "openai")+"}", "X-Placeholder: {http.request.header.Authorization}{http.reverse_proxy.header.X-Api-Key}")
		tell(name, "GET https://"+evilHost+"/echo")
		socket := openSocket(t, l.secure(t, name), "wss://"+name+"/echo/socket")
		if _, err := io.WriteString(socket, "the end of it"); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		for b := make([]byte, 4096); !bytes.HasSuffix(said.Bytes(), []byte("the end of it")); {
			n, err := socket.Read(b)
			said.Write(b[:n])
			if err != nil {
				t.Fatalf("after %q: %v", said.Bytes(), err)
			}
		}
		e.add("sockets", said.Bytes())
		client := l.httpClient(t, true)
		for _, path := range []string{"/echo", "/echo/slowly", "/echo/early", "/status/500"} {
			req, err := http.NewRequest(http.MethodGet, "https://"+name+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("User-Agent", canary)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.ProtoMajor != 2 {
				t.Errorf("%s%s: HTTP/%d, %v", name, path, resp.ProtoMajor, err)
			}
			_ = resp.Body.Close()
			e.add("answers of HTTP/2", fmt.Appendf(nil, "%s\n%s\n%s\n%s", resp.Status, resp.Header, body, resp.Trailer))
		}
	}
	for _, path := range parrots {
		tell(broken, "GET "+path)
	}
	for name := range badCertificates {
		l.badServer(t, name)
		tell(name, "GET /echo")
	}
	tell("private.example.com", "GET /echo")
	tell(leaking, "GET /echo")
	e.add("answers in clear", l.sendTo(t, gatewayHTTP, []byte(head("GET /echo", openAI, "Connection: close"))))
	e.add("answers in clear", l.sendTo(t, gatewayProxy, []byte(head("GET http://"+openAI+"/echo", openAI, "Connection: close"))))
	e.add("page of the gateway", l.sendTo(t, gatewayHTTP, []byte(head("GET /", gatewayAddr.String(), "Connection: close"))))
	l.secret(t, "openai", "")
	tell(openAI, "GET /echo")
	l.secret(t, "openai", bearerKey)

	// What did the upstream see? All of this would prove nothing without the keys.
	seen := make(map[string]int)
	for _, c := range a.since(0) {
		for _, key := range []string{"Bearer " + bearerKey, fieldKey, teamKey} {
			for _, field := range []string{"Authorization", "X-Api-Key", "X-Team"} {
				if c.Header.Get(field) == key {
					seen[key]++
				}
			}
		}
	}
	for _, key := range []string{"Bearer " + bearerKey, fieldKey, teamKey} {
		if seen[key] < 20 {
			t.Errorf("the upstream got %q %d times", key, seen[key])
		}
	}

	// Everything else that comes out.
	unix := func() (net.Conn, error) { return net.Dial("unix", g.path(adminSocket)) }
	for _, path := range []string{"/config/", "/metrics", "/pki/ca/local", "/pki/ca/local/certificates", "/reverse_proxy/upstreams", "/debug/vars", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2"} {
		e.add("admin "+path, []byte(get(t, "http://caddy"+path, unix)))
	}
	e.add("metrics of CoreDNS", []byte(g.corednsMetrics(t)))
	board := func() (net.Conn, error) { return g.lab.gateway.dial("tcp", netip.MustParseAddrPort("127.0.0.1:8900")) }
	e.add("dashboard", []byte(get(t, "http://localhost:8900/", board)))
	e.add("events of the dashboard", boardEvents(t, board))
	for _, p := range []*process{g.caddy, g.coredns} {
		for _, file := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.pid(), file))
			if err != nil {
				t.Fatal(err)
			}
			e.add(file+" of "+p.name, b)
		}
		p.stop(10 * time.Second) // with which denials are logged that were folded
		e.add("log of "+p.name, []byte(strings.Join(p.log.lines(0), "\n")))
	}
	err := filepath.WalkDir(l.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Base(filepath.Dir(path)) == "secrets" {
			return err
		}
		b, err := os.ReadFile(path)
		e.add("file "+strings.TrimPrefix(path, l.dir), b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	for _, key := range []string{bearerKey, fieldKey, teamKey} {
		for _, leak := range e.leaks(key) {
			t.Errorf("%s comes out: %s", key, leak)
		}
	}

	// The search finds what is there: what the site of leakedKey gives away, what the client has sent, and in each
	// place something of what it is for.
	found := strings.Join(e.leaks(leakedKey), "\n")
	for _, where := range []string{"answers, ", "log of caddy, "} {
		if !strings.Contains(found, where) {
			t.Errorf("%snothing was found of what the site gives away; only\n%s", where, found)
		}
	}
	for where, text := range map[string]string{
		"answers": canary, "answers of HTTP/2": canary, "sockets": "Sec-Websocket-Key", "log of caddy": canary, "answers in clear": "plaintext_refused",
		"page of the gateway": openAI, "dashboard": openAI, "events of the dashboard": openAI, "metrics of CoreDNS": "coredns_sandboxallow",
		"admin /metrics": "caddy_sandboxallow_decisions_total", "admin /config/": "header_up", "admin /pki/ca/local": "BEGIN CERTIFICATE",
		"admin /debug/pprof/goroutine?debug=2": "goroutine", "cmdline of caddy": "Caddyfile", "environ of caddy": "SSL_CERT_FILE",
		"file /decisions.log": openAI,
	} {
		if text == "header_up" {
			text = "sandboxallow_broker"
		}
		if !bytes.Contains(e.text[where], []byte(text)) {
			t.Errorf("%s: no %q in %d octets", where, text, len(e.text[where]))
		}
	}
	if !bytes.Contains(e.text["log of caddy"], []byte("upstream roundtrip")) {
		t.Error("the log of caddy is not that of level debug")
	}
}

// parrots are what parrot does.
var parrots = []string{"/version", "/field", "/length", "/encoding", "/chunk", "/phrase", "/location", "/switch", "/early", "/half", "/nothing"}

// parrot answers one request with its Authorization, where it breaks the answer or is not looked for.
func parrot(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	key := r.Header.Get("Authorization")
	const ok = "HTTP/1.1 200 OK\r\n"
	_, _ = io.WriteString(c, map[string]string{
		"/version":  key + " 200 OK\r\n\r\n",
		"/field":    ok + key + "\r\n\r\n",
		"/length":   ok + "Content-Length: " + key + "\r\n\r\n",
		"/encoding": ok + "Transfer-Encoding: " + key + "\r\n\r\n",
		"/chunk":    ok + "Transfer-Encoding: chunked\r\n\r\n" + key + "\r\n",
		"/phrase":   "HTTP/1.1 200 " + key + "\r\nContent-Length: 0\r\n\r\n",
		"/location": "HTTP/1.1 302 Found\r\nLocation: https://" + evilHost + "/?" + key + "\r\nContent-Length: 0\r\n\r\n",
		"/switch":   "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: " + key + "\r\n\r\n" + key,
		"/early":    "HTTP/1.1 103 " + key + "\r\nLink: " + key + "\r\n\r\n" + ok + "Content-Length: 0\r\n\r\n",
		"/half":     ok + "Content-Length: 1000\r\n\r\n" + key,
	}[r.URL.Path])
}

// boardEvents is the beginning of the dashboard's event stream.
func boardEvents(tb testing.TB, dial func() (net.Conn, error)) []byte {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:8900/events", nil)
	if err != nil {
		tb.Fatal(err)
	}
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return dial() }}
	resp, err := t.RoundTrip(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	var text []byte
	for b := make([]byte, 64<<10); !bytes.Contains(text, []byte(openAI)) || !bytes.HasSuffix(text, []byte("\n\n")); {
		n, err := resp.Body.Read(b)
		text = append(text, b[:n]...)
		if err != nil {
			tb.Fatalf("events of the dashboard: %v after %d octets", err, len(text))
		}
	}
	return text
}
