package caddymodule

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func document(port uint16, more ...string) string {
	return fmt.Sprintf("policy default {\n\tports %d\n\tprivate %s/32 127.0.0.3/32\n\tallow .example.com:%d\n%s\n}\n",
		port, upstreamAddr, port, strings.Join(more, "\n"))
}

// startDefault runs a gateway that allows example.com and what is below it.
func startDefault(t *testing.T, change func(*App), more ...string) *gateway {
	t.Helper()
	g := startGateway(t, "policy default {\n}\n", change)
	g.set(document(g.upPort, more...))
	return g
}

// set replaces the document and waits until it is in force.
func (g *gateway) set(document string) {
	g.t.Helper()
	before := g.app.store.Set()
	g.write(document)
	deadline := time.Now().Add(10 * time.Second)
	for g.app.store.Set() == before {
		if time.Now().After(deadline) {
			g.t.Fatal("the new document is not in force after 10 s")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestAllowed(t *testing.T) {
	g := startDefault(t, nil)
	for _, name := range []string{"www.example.com", "WWW.Example.COM", "example.com"} {
		c, err := g.dial(name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := echo(c, strings.Repeat("through the tunnel ", 10_000)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		e := g.entry(decision.MsgAllowed)
		if e["name"] != strings.ToLower(name) || e["verdict"] != "allow" || e["reason"] != "" || e["layer"] != "tls" {
			t.Errorf("log of the decision: %v", e)
		}
		if e["rule"] != g.policy+":4" || e["policy"] != "default" || e["client"] != "127.0.0.1" {
			t.Errorf("log of the decision: %v", e)
		}
		c.Close()
		e = g.entry(msgClosed)
		if in := e["bytes_in"].(int64); in < 190_000 {
			t.Errorf("bytes_in %d, want what was sent", in)
		}
		if e["upstream"] != fmt.Sprintf("%s:%d", upstreamAddr, g.upPort) {
			t.Errorf("upstream %v", e["upstream"])
		}
	}
}

// alertError is how crypto/tls reports an alert of the peer.
func alertError(code byte) string {
	return fmt.Sprintf("remote error: %v", tls.AlertError(code))
}

// ops-017: what no rule allows and what cannot be reached look different, to the client and in the log. A name
// that DNS denies does not come here.
func TestDenied(t *testing.T) {
	g := startDefault(t, nil, "\tdeny gist.example.com", "\tallow other.test:1")
	tests := []struct {
		name   string
		reason policy.Reason
		alert  byte
		hint   bool
	}{
		{"evil.test", policy.ReasonNotAllowed, alertUnrecognizedName, true},
		{"gist.example.com", policy.ReasonDenied, alertUnrecognizedName, true},
		{"other.test", policy.ReasonPortNotAllowed, alertUnrecognizedName, true},
		{"private.example.com", policy.ReasonPrivateAddress, alertAccessDenied, false},
		{"meta.example.com", policy.ReasonPrivateAddress, alertAccessDenied, false},
		{"gone.example.com", policy.ReasonNoAddress, alertInternalError, false},
		{"fail.example.com", policy.ReasonResolverError, alertInternalError, false},
		{"dead.example.com", policy.ReasonDialError, alertInternalError, false},
		{strings.Repeat("a", 64) + ".example.com", policy.ReasonBadName, alertUnrecognizedName, false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			before := testutil.ToFloat64(g.app.metrics.decisions.WithLabelValues("tls", "default", "deny", tc.reason.String()))
			_, err := g.dial(tc.name)
			if err == nil || err.Error() != alertError(tc.alert) {
				t.Errorf("client sees %v, want %s", err, alertError(tc.alert))
			}
			e := g.entry(decision.MsgDenied)
			if e["verdict"] != "deny" || e["reason"] != tc.reason.String() || e["name"] != tc.name || e["policy"] != "default" {
				t.Errorf("log: %v, want reason %v", e, tc.reason)
			}
			if _, ok := e["hint"]; ok != tc.hint {
				t.Errorf("hint %q, want one: %v", e["hint"], tc.hint)
			}
			after := testutil.ToFloat64(g.app.metrics.decisions.WithLabelValues("tls", "default", "deny", tc.reason.String()))
			if after != before+1 {
				t.Errorf("decisions_total went from %v to %v", before, after)
			}
		})
	}
	if n := open.held.Load(); n != 0 {
		waitFor(t, "all connections to be given back", func() bool { return open.held.Load() == 0 })
	}
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited 10 s for %s", what)
		}
	}
}

// clientHello returns the bytes that crypto/tls sends first.
func clientHello(t *testing.T, serverName string) []byte {
	t.Helper()
	a, b := net.Pipe()
	go func() {
		c := tls.Client(a, &tls.Config{ServerName: serverName, InsecureSkipVerify: true})
		c.Handshake()
	}()
	defer a.Close()
	defer b.Close()
	head := make([]byte, 5)
	if _, err := io.ReadFull(b, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(b, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

func TestRawBytes(t *testing.T) {
	g := startDefault(t, func(a *App) { a.HelloTimeout = caddy.Duration(300 * time.Millisecond) })
	hello := clientHello(t, "www.example.com")
	tests := []struct {
		name   string
		send   []byte
		reason policy.Reason
		answer []byte
	}{
		{"sni-006", clientHello(t, ""), policy.ReasonNoName, []byte{21, 3, 3, 0, 2, 2, 112}},
		{"sni-010", bytes.Replace(hello, []byte("www.example.com"), []byte("169.254.169.254"), 1), policy.ReasonBadName, []byte{21, 3, 3, 0, 2, 2, 112}},
		{"sni-013", bytes.Replace(hello, []byte("www.example.com"), []byte("example.com:443"), 1), policy.ReasonBadName, []byte{21, 3, 3, 0, 2, 2, 112}},
		{"sni-020", bytes.Replace(hello, []byte("www.example.com"), []byte("evil\x00example.com"[:15]), 1), policy.ReasonBadName, []byte{21, 3, 3, 0, 2, 2, 112}},
		{"sni-021", bytes.Replace(hello, []byte("www.example.com"), []byte("\x1b[2J.example.com"[:15]), 1), policy.ReasonBadName, []byte{21, 3, 3, 0, 2, 2, 112}},
		{"sni-012", bytes.Replace(hello, []byte("www.example.com"), []byte("0177.0000.00.01"), 1), policy.ReasonBadName, []byte{21, 3, 3, 0, 2, 2, 112}},
		{"sni-030", slices.Concat([]byte{22, 3, 1, 0, 50, 1, 0, 16, 0}, hello[9:55], []byte{23, 3, 3, 0, 5, 1, 2, 3, 4, 5}), policy.ReasonHelloMalformed, []byte{21, 3, 3, 0, 2, 2, 50}},
		{"sni-054", []byte("EHLO x\r\n"), policy.ReasonNotTLS, []byte{}},
		{"sni-063", []byte{21, 3, 1, 0, 2, 2, 40}, policy.ReasonNotTLS, []byte{}},
		{"ops-022", append([]byte("PROXY TCP4 1.2.3.4 5.6.7.8 1 443\r\n"), hello...), policy.ReasonNotTLS, []byte{}},
		{"sni-053", nil, policy.ReasonHelloTimeout, []byte{}},
		{"half a hello", hello[:100], policy.ReasonHelloTimeout, []byte{}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			c, err := net.Dial("tcp", g.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := c.Write(tc.send); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(c)
			if err != nil && tc.reason != policy.ReasonNotTLS { // closed with bytes unread: a reset
				t.Errorf("reading the answer: %v", err)
			}
			if tc.answer != nil && !bytes.Equal(answer, tc.answer) {
				t.Errorf("answer %v, want %v", answer, tc.answer)
			}
			if e := g.entry(decision.MsgDenied); e["reason"] != tc.reason.String() {
				t.Errorf("log %v, want reason %v", e, tc.reason)
			}
		})
	}
}

// A health check connects and goes away.
func TestSilentClient(t *testing.T) {
	t.Run("ops-026", func(t *testing.T) {
		g := startDefault(t, nil)
		before := g.logs.Len()
		c, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the connection to be held", func() bool { return open.held.Load() == 1 })
		c.Close()
		waitFor(t, "the connection to be given back", func() bool { return open.held.Load() == 0 })
		if es := g.logs.All()[before:]; len(es) != 0 {
			t.Errorf("logged %v, want nothing", es)
		}
	})
}

// Whatever the segments, the upstream gets every byte once.
func TestSegments(t *testing.T) {
	t.Run("sni-033", func(t *testing.T) {
		g := startDefault(t, nil)
		raw, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		c := tls.Client(drip{raw}, &tls.Config{ServerName: "www.example.com", RootCAs: g.roots})
		defer c.Close()
		if err := echo(c, "byte by byte"); err != nil {
			t.Error(err)
		}
	})
}

// A ClientHello that outgrows the buffer, and one that outgrows a record, get through.
func TestLargeHello(t *testing.T) {
	g := startDefault(t, nil)
	for _, tc := range []struct {
		name   string
		protos int
	}{
		{"sni-041", 14_000 / 60},
		{"sni-042", 20_000 / 60},
	} {
		t.Run(tc.name, func(t *testing.T) {
			raw, err := net.Dial("tcp", g.addr)
			if err != nil {
				t.Fatal(err)
			}
			config := &tls.Config{ServerName: "www.example.com", RootCAs: g.roots}
			for i := range tc.protos {
				config.NextProtos = append(config.NextProtos, fmt.Sprintf("%059d", i))
			}
			c := tls.Client(raw, config)
			defer c.Close()
			if err := echo(c, "through"); err != nil {
				t.Error(err)
			}
		})
	}
}

// drip writes one byte at a time.
type drip struct{ net.Conn }

func (d drip) Write(p []byte) (int, error) {
	for i := range p {
		if n, err := d.Conn.Write(p[i : i+1]); err != nil {
			return i + n, err
		}
	}
	return len(p), nil
}

func TestLimit(t *testing.T) {
	g := startDefault(t, func(a *App) { a.MaxTunnels = 2 })
	var held []net.Conn
	for range 2 {
		c, err := g.dial("www.example.com")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	_, err := g.dial("www.example.com")
	if err == nil || err.Error() != alertError(alertInternalError) {
		t.Errorf("above the limit the client sees %v, want %s", err, alertError(alertInternalError))
	}
	if e := g.entry(decision.MsgDenied); e["reason"] != "limit" {
		t.Errorf("log: %v, want reason limit", e)
	}
	for _, c := range held {
		c.Close()
	}
	waitFor(t, "the tunnels to be given back", func() bool { return open.held.Load() == 0 })
	c, err := g.dial("www.example.com")
	if err != nil {
		t.Fatalf("below the limit again: %v", err)
	}
	c.Close()
}

// A name that is removed takes its tunnels with it, and no others.
func TestRevoked(t *testing.T) {
	t.Run("reload-010", func(t *testing.T) {
		g := startDefault(t, nil)
		www, err := g.dial("www.example.com")
		if err != nil {
			t.Fatal(err)
		}
		defer www.Close()
		api, err := g.dial("api.example.com")
		if err != nil {
			t.Fatal(err)
		}
		defer api.Close()
		g.set(document(g.upPort, "\tdeny www.example.com"))
		www.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := www.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) || !errors.Is(err, net.ErrClosed) && strings.Contains(err.Error(), "timeout") {
			t.Errorf("tunnel of the removed name: %v, want a reset", err)
		}
		if e := g.entry(msgRevoked); e["name"] != "www.example.com" || e["reason"] != "denied" || e["verdict"] != "deny" {
			t.Errorf("log: %v", e)
		}
		if err := echo(api, "still there"); err != nil {
			t.Errorf("tunnel of the other name: %v", err)
		}
	})
}

// A `private` line that goes takes the tunnels to its addresses with it.
func TestRevokedPrivate(t *testing.T) {
	g := startDefault(t, nil)
	c, err := g.dial("www.example.com")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	g.set(strings.Replace(document(g.upPort), "private "+upstreamAddr+"/32", "private 127.0.0.9/32", 1))
	if e := g.entry(msgRevoked); e["reason"] != "private_address" {
		t.Errorf("log: %v", e)
	}
}

// A configuration that takes over judges the tunnels of the one before; with the last one they all go.
func TestRevokedByNextApp(t *testing.T) {
	g := startDefault(t, nil)
	c, err := g.dial("www.example.com")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	next := func(lines ...string) *App {
		a := &App{Resolvers: []string{"127.0.0.1:1"}, Poll: caddy.Duration(time.Hour)}
		for i, l := range lines {
			a.Policy = append(a.Policy, policy.Line{File: "Caddyfile", Line: i + 1, Words: strings.Fields(l)})
		}
		a, _ = startApp(t, a)
		return a
	}
	same := next(fmt.Sprintf("allow .example.com:%d", g.upPort), "private "+upstreamAddr)
	if err := echo(c, "judged anew"); err != nil {
		t.Fatalf("under a new configuration that allows it: %v", err)
	}
	same.Stop() // a reload that failed later
	if err := echo(c, "and the old one again"); err != nil {
		t.Fatalf("after the new configuration was given up: %v", err)
	}
	next("allow other.test")
	if e := g.entry(msgRevoked); e["reason"] != "not_allowed" {
		t.Errorf("log: %v", e)
	}
}

func TestClosedWithLastApp(t *testing.T) {
	g := startDefault(t, nil)
	c, err := g.dial("www.example.com")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	g.app.Stop()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("tunnel after the last app stopped: %v, want a reset", err)
	}
	if e := g.entry(msgRevoked); e["reason"] != "no_policy" {
		t.Errorf("log: %v", e)
	}
	// A connection that was accepted before and is through with its ClientHello only now.
	late, err := g.dial("www.example.com")
	if err == nil {
		late.Close()
		t.Error("a tunnel opens though no app judges it")
	}
	waitFor(t, "the late tunnel to be gone", func() bool { return open.len() == 0 })
}

// A client that was told of a new name by the other binary finds it here.
func TestSettles(t *testing.T) {
	t.Run("reload-015", func(t *testing.T) {
		g := startDefault(t, func(a *App) { a.Poll = caddy.Duration(time.Second) })
		g.write(strings.ReplaceAll(document(g.upPort), ".example.com:", "api.example.com:"))
		waitFor(t, "the document with one name", func() bool { _, err := g.dial("www.example.com"); return err != nil })
		g.write(document(g.upPort))
		c, err := g.dial("www.example.com")
		if err != nil {
			t.Fatalf("right after the name was added: %v", err)
		}
		c.Close()
	})
}

func TestPanic(t *testing.T) {
	g := startDefault(t, nil)
	broken := *g.app // without a dialer
	broken.dialer = nil
	healthy := g.addr
	g.addr = g.admit(&broken, g.upPort, "")
	if _, err := g.dial("www.example.com"); err == nil {
		t.Error("want an error")
	}
	waitFor(t, "the panic to be counted", func() bool { return testutil.ToFloat64(g.app.metrics.panics) == 1 })
	g.entry("panic in connection handler")
	waitFor(t, "the place to be given back", func() bool { return open.held.Load() == 0 })
	g.addr = healthy
	c, err := g.dial("www.example.com")
	if err != nil {
		t.Fatalf("after the panic: %v", err)
	}
	c.Close()
}

// A name that is none is logged escaped and cut.
func TestLoggedName(t *testing.T) {
	t.Run("sni-022", func(t *testing.T) {
		g := startDefault(t, nil)
		hello := clientHello(t, strings.Repeat("a", 250))
		c, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Write(hello)
		e := g.entry(decision.MsgDenied)
		if n := len(e["name"].(string)); e["reason"] != "bad_name" || n > decision.MaxName {
			t.Errorf("reason %v, %d octets of name", e["reason"], n)
		}
	})
}

// The port that is dialled is the handler's, whatever the client connected to.
func TestUpstreamPort(t *testing.T) {
	t.Run("dial-041", func(t *testing.T) {
		g := startDefault(t, nil)
		c, err := g.dial("www.example.com")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		want := fmt.Sprintf("%s:%d", upstreamAddr, g.upPort)
		if e := g.entry(decision.MsgAllowed); e["upstream"] != want || e["port"] != int64(g.upPort) {
			t.Errorf("dialled %v for port %v, want %s", e["upstream"], e["port"], want)
		}

		// Without the option it is the port that is listened on, on which no rule allows the name.
		g.addr = g.admit(g.app, 0, "")
		if _, err := g.dial("www.example.com"); err == nil {
			t.Error("want an error")
		}
		_, listens, _ := net.SplitHostPort(g.addr)
		if e := g.entry(decision.MsgDenied); fmt.Sprint(e["port"]) != listens || e["reason"] != "port_not_allowed" {
			t.Errorf("log: %v, want port_not_allowed on port %s", e, listens)
		}
	})
}

// The policy that a listener names must admit a connection too, whatever the client's own says.
func TestListenerPolicy(t *testing.T) {
	g := startGateway(t, "policy default {\n}\n", nil)
	line := fmt.Sprintf("private %s/32\nallow www.example.com:%d", upstreamAddr, g.upPort)
	both := "policy default {\n" + line + fmt.Sprintf(" api.example.com:%d", g.upPort) + "\n}\npolicy narrow {\nclient 192.0.2.1\n" + line + "\n}\n"
	g.set(both)
	g.addr = g.admit(g.app, g.upPort, "narrow")
	c, err := g.dial("www.example.com")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if e := g.entry(decision.MsgAllowed); e["policy"] != "default" {
		t.Errorf("log: %v", e)
	}
	denied := func(name, reason string) {
		t.Helper()
		if _, err := g.dial(name); err == nil || err.Error() != alertError(alertUnrecognizedName) {
			t.Errorf("client sees %v, want %s", err, alertError(alertUnrecognizedName))
		}
		if e := g.entry(decision.MsgDenied); e["reason"] != reason || e["name"] != name {
			t.Errorf("log: %v, want %s", e, reason)
		}
	}
	denied("api.example.com", "not_allowed")
	// One that a change removes admits nobody.
	g.set(both[:strings.Index(both, "policy narrow")])
	if e := g.entry(msgRevoked); e["reason"] != "no_policy" {
		t.Errorf("log: %v", e)
	}
	denied("www.example.com", "no_policy")
}

func TestTunnelsFor(t *testing.T) {
	for _, tc := range []struct {
		limit, pipes uint64
		want         int
	}{
		{16, 2, 1},
		{256, 32, 48},
		{1024, 128, 384},
		{24_000, 512, 10_244},
		{1 << 20, 512, 458_496},
		{1 << 40, 512, 1 << 20},
	} {
		if got := tunnelsFor(tc.limit, tc.pipes); got != tc.want {
			t.Errorf("tunnelsFor(%d, %d) = %d, want %d", tc.limit, tc.pipes, got, tc.want)
		}
	}
}

func TestBacklogFor(t *testing.T) {
	for _, tc := range []struct {
		limit, pipes uint64
		tunnels      int
		want         int
	}{
		{16, 2, 1, 6},
		{256, 32, 48, 64},
		{256, 32, 1000, 1},
		{24_000, 512, 10_244, 1500},
		{1 << 20, 512, 458_496, 65_536},
	} {
		if got := backlogFor(tc.limit, tc.pipes, tc.tunnels); got != tc.want {
			t.Errorf("backlogFor(%d, %d, %d) = %d, want %d", tc.limit, tc.pipes, tc.tunnels, got, tc.want)
		}
	}
}

func TestMetricsLint(t *testing.T) {
	g := startDefault(t, nil)
	g.dial("evil.test")
	g.entry(decision.MsgDenied) // counted by then
	reg := prometheusRegistry(t, g.app)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
