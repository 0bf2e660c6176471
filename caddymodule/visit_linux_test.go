package caddymodule

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
)

// The same decisions, with the same outcome for the client and in the log, whichever way a connection comes in. Where a
// test is about the way itself it is not in here.
func TestByEntrance(t *testing.T) {
	wayIn = byEntrance
	defer func() { wayIn = byLayer4 }()
	for _, tc := range []struct {
		name string
		test func(*testing.T)
	}{
		{"Allowed", TestAllowed},
		{"Denied", TestDenied},
		{"RawBytes", TestRawBytes},
		{"SilentClient", TestSilentClient},
		{"Segments", TestSegments},
		{"LargeHello", TestLargeHello},
		{"Limit", TestLimit},
		{"Revoked", TestRevoked},
		{"RevokedPrivate", TestRevokedPrivate},
		{"RevokedByNextApp", TestRevokedByNextApp},
		{"ClosedWithLastApp", TestClosedWithLastApp},
		{"Settles", TestSettles},
		{"Panic", TestPanic},
		{"LoggedName", TestLoggedName},
		{"UpstreamPort", TestUpstreamPort},
		{"ListenerPolicy", TestListenerPolicy},
		{"MetricsLint", TestMetricsLint},
		{"RepeatedDenials", TestRepeatedDenials},

		{"Broker", TestBroker},
		{"BrokerRemovesCredentials", TestBrokerRemovesCredentials},
		{"BrokerConnectionField", TestBrokerConnectionField},
		{"BrokerOneName", TestBrokerOneName},
		{"BrokerNoOtherWay", TestBrokerNoOtherWay},
		{"BrokerByStream", TestBrokerByStream},
		{"BrokerDenies", TestBrokerDenies},
		{"BrokerCutsStreams", TestBrokerCutsStreams},
		{"BrokerMissingSecret", TestBrokerMissingSecret},
		{"BrokerOtherUpstream", TestBrokerOtherUpstream},
		{"TransportWithoutBroker", TestTransportWithoutBroker},
		{"BrokerExcept", TestBrokerExcept},
		{"BrokerCertificate", TestBrokerCertificate},
		{"BrokerEarlyHints", TestBrokerEarlyHints},
		{"BrokerExpectRefused", TestBrokerExpectRefused},
		{"BrokerLimit", TestBrokerLimit},
		{"BrokerOtherUpgrade", TestBrokerOtherUpgrade},
		{"BrokerRecords", TestBrokerRecords},
		{"BrokerReload", TestBrokerReload},
		{"BrokerStreams", TestBrokerStreams},
		{"BrokerTellsNoSecret", TestBrokerTellsNoSecret},
		{"BrokerWebSocket", TestBrokerWebSocket},
		{"BrokerWebSocketProtocols", TestBrokerWebSocketProtocols},
		{"Issuer", TestIssuer},
		{"BrokerSecretInValue", TestBrokerSecretInValue},
		{"BrokerTellsNoSecretBehindHead", TestBrokerTellsNoSecretBehindHead},
		{"BrokerTellsNoSecretOfRefused", TestBrokerTellsNoSecretOfRefused},
	} {
		t.Run(tc.name, tc.test)
	}
}

// startVisits runs a gateway with an entrance, further names, and a policy that lets them lead to addresses of loopback.
func startVisits(t *testing.T, names map[string]string, change func(*App)) *gateway {
	t.Helper()
	waitFor(t, "the places of other tests to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
	wayIn = byEntrance
	defer func() { wayIn = byLayer4 }()
	all := maps.Clone(testNames)
	maps.Copy(all, names)
	g := startGateway(t, "policy default {\n}\n", func(a *App) {
		a.Resolvers = []string{startDNS(t, all)}
		if change != nil {
			change(a)
		}
	})
	g.set(visitDocument(fmt.Sprint(g.upPort)))
	return g
}

func visitDocument(ports string) string {
	return "policy default {\n\tprivate 127.0.0.2/32 127.0.0.3/32 127.0.0.4/32 127.0.0.5/32 127.0.3.1/32\n\tallow .example.com:" + ports + "\n}\n"
}

// to has connections lead to an origin of the test's own, besides, and returns where they come in.
func (g *gateway) to(o *origin) (addr string) {
	g.t.Helper()
	wayIn = byEntrance
	defer func() { wayIn = byLayer4 }()
	g.set(visitDocument(fmt.Sprintf("%d,%d", g.upPort, o.port)))
	return g.admit(g.app, o.port, "")
}

// connect connects without TLS.
func connect(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn)
}

// given waits until all that came in is gone.
func given(t *testing.T) {
	t.Helper()
	waitFor(t, "all places to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
}

// A name is asked for first, and known then: both ways lead to the same.
func TestVisitAddresses(t *testing.T) {
	for _, tc := range []struct {
		name      string
		addresses string
		silent    string // of these
		timeout   time.Duration
		reason    policy.Reason // ReasonNone: connected
		alert     byte
		least     time.Duration
		most      time.Duration
	}{
		{"one", "127.0.0.2", "", 0, policy.ReasonNone, 0, 0, 2 * time.Second},
		{"first refuses", "127.0.0.3 127.0.0.2", "", 0, policy.ReasonNone, 0, 0, 200 * time.Millisecond},
		{"first never answers", "127.0.0.4 127.0.0.2", "127.0.0.4", 0, policy.ReasonNone, 0, 250 * time.Millisecond, 450 * time.Millisecond},
		{"first is private", "10.0.0.1 127.0.0.2", "", 0, policy.ReasonNone, 0, 0, 200 * time.Millisecond},
		{"all refuse", "127.0.0.3 127.0.0.5", "", 0, policy.ReasonDialError, alertInternalError, 0, 2 * time.Second},
		{"one refuses", "127.0.0.3", "", 0, policy.ReasonDialError, alertInternalError, 0, 2 * time.Second},
		{"all are private", "10.0.0.1 169.254.169.254", "", 0, policy.ReasonPrivateAddress, alertAccessDenied, 0, 2 * time.Second},
		{"one never answers", "127.0.0.4", "127.0.0.4", 400 * time.Millisecond, policy.ReasonDialError, alertInternalError, 400 * time.Millisecond, 2 * time.Second},
		{"none ever answers", "127.0.0.4 127.0.0.5", "127.0.0.4 127.0.0.5", 400 * time.Millisecond, policy.ReasonDialError, alertInternalError, 400 * time.Millisecond, 2 * time.Second},
		{"none answers in a moment", "127.0.0.4 127.0.0.5", "127.0.0.4 127.0.0.5", 20 * time.Millisecond, policy.ReasonDialError, alertInternalError, 20 * time.Millisecond, 2 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := startVisits(t, map[string]string{"several.example.com": tc.addresses}, func(a *App) { a.DialTimeout = caddy.Duration(tc.timeout) })
			for _, a := range strings.Fields(tc.silent) {
				relay.silence(t, fmt.Sprintf("%s:%d", a, g.upPort))
			}
			for _, known := range []bool{false, true} {
				began := time.Now()
				c, err := g.dial("several.example.com")
				took := time.Since(began)
				if took < tc.least || took > tc.most {
					t.Errorf("known: %v: took %v, want %v to %v", known, took, tc.least, tc.most)
				}
				if tc.reason == policy.ReasonNone {
					if err != nil {
						t.Fatalf("known: %v: %v", known, err)
					}
					if err := echo(c, "through"); err != nil {
						t.Errorf("known: %v: %v", known, err)
					}
					c.Close()
					if e := g.entry(decision.MsgAllowed); e["upstream"] != fmt.Sprintf("127.0.0.2:%d", g.upPort) {
						t.Errorf("known: %v: log %v", known, e)
					}
					g.entry(msgClosed)
					continue
				}
				if err == nil || err.Error() != alertError(tc.alert) {
					t.Errorf("known: %v: client sees %v, want %s", known, err, alertError(tc.alert))
				}
				if e := g.entry(decision.MsgDenied); e["reason"] != tc.reason.String() || e["name"] != "several.example.com" {
					t.Errorf("known: %v: log %v, want %v", known, e, tc.reason)
				}
			}
			given(t)
		})
	}
}

// The address and port that the gateway listens on is none to lead to, whatever a policy lifts.
func TestVisitItself(t *testing.T) {
	g := startVisits(t, map[string]string{"self.example.com": "127.0.3.1"}, nil)
	_, port, _ := net.SplitHostPort(g.addr)
	g.set(visitDocument(port))
	wayIn = byEntrance
	defer func() { wayIn = byLayer4 }()
	n, _ := strconv.Atoi(port)
	g.addr = g.admit(g.app, uint16(n), "")
	for range 2 {
		if _, err := g.dial("self.example.com"); err == nil || err.Error() != alertError(alertAccessDenied) {
			t.Errorf("client sees %v, want %s", err, alertError(alertAccessDenied))
		}
		if e := g.entry(decision.MsgDenied); e["reason"] != "private_address" {
			t.Errorf("log %v", e)
		}
	}
}

// rawOrigin gives a test the connections that come to it.
func rawOrigin(t *testing.T) (*origin, <-chan net.Conn) {
	t.Helper()
	o := listenOrigin(t)
	conns := make(chan net.Conn, 1000)
	go func() {
		for {
			c, err := o.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(20 * time.Second))
			conns <- c
		}
	}()
	return o, conns
}

// slow has an upstream that connects only when it is told to, and starts a visit to it.
func slow(t *testing.T) (g *gateway, c *net.TCPConn, hello []byte, connects func() net.Conn) {
	t.Helper()
	g = startVisits(t, map[string]string{"slow.example.com": "127.0.0.4"}, nil)
	o, conns := rawOrigin(t)
	at := fmt.Sprintf("127.0.0.4:%d", o.port)
	relay.silence(t, at)
	addr := g.to(o)
	if _, err := g.app.dialer.Resolver.Lookup(t.Context(), parseName(t, "slow.example.com")); err != nil {
		t.Fatal(err)
	}
	c = connect(t, addr)
	hello = clientHello(t, "slow.example.com")
	if _, err := c.Write(hello); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the connection to be held", func() bool { return open.held.Load() == 1 })
	return g, c, hello, func() net.Conn {
		relay.lead(t, at, o.Addr().String())
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
			select {
			case up := <-conns: // or what has filled the queue, which has nothing to say
				b := make([]byte, len(hello))
				if _, err := io.ReadFull(up, b); err == nil && bytes.Equal(b, hello) {
					return up
				}
			case <-time.After(time.Second):
			}
		}
		t.Fatal("the upstream gets no connection with the ClientHello")
		return nil
	}
}

func TestVisitSlowUpstream(t *testing.T) {
	t.Run("client waits", func(t *testing.T) {
		g, c, _, connects := slow(t)
		up := connects()
		io.WriteString(up, "answer")
		if b := make([]byte, 6); !readFull(c, b) || string(b) != "answer" {
			t.Errorf("client got %q", b)
		}
		if e := g.entry(decision.MsgAllowed); e["name"] != "slow.example.com" {
			t.Errorf("log %v", e)
		}
		c.Close()
		up.Close()
		g.entry(msgClosed)
		given(t)
	})
	t.Run("client sends more", func(t *testing.T) {
		g, c, _, connects := slow(t)
		const more = 100 << 10
		go func() {
			for range more / 1024 {
				c.Write(make([]byte, 1024))
				time.Sleep(time.Millisecond)
			}
			c.CloseWrite()
		}()
		up := connects()
		if n, err := io.Copy(io.Discard, up); n != more || err != nil {
			t.Errorf("the upstream got %d octets more, %v, want %d", n, err, more)
		}
		up.Close()
		if e := g.entry(msgClosed); e["bytes_in"] != int64(more)+int64(len(clientHello(t, "slow.example.com"))) {
			t.Errorf("log %v", e)
		}
		given(t)
	})
	t.Run("client leaves", func(t *testing.T) {
		g, c, _, connects := slow(t)
		c.Close()
		up := connects()
		if b, err := io.ReadAll(up); len(b) > 0 || err != nil {
			t.Errorf("the upstream got %q, %v", b, err)
		}
		up.Close()
		g.entry(decision.MsgAllowed)
		g.entry(msgClosed)
		given(t)
	})
	t.Run("client resets", func(t *testing.T) {
		g, c, _, connects := slow(t)
		c.SetLinger(0)
		c.Close()
		up := connects()
		if _, err := io.ReadAll(up); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the upstream sees %v, want a reset", err)
		}
		g.entry(decision.MsgAllowed)
		if e := g.entry(msgClosed); !strings.Contains(fmt.Sprint(e["error"]), "reset") {
			t.Errorf("log %v", e)
		}
		given(t)
	})
	t.Run("nobody connects", func(t *testing.T) {
		g, c, _, _ := slow(t)
		if b, err := io.ReadAll(c); !bytes.Equal(b, []byte{21, 3, 3, 0, 2, 2, 80}) || err != nil {
			t.Errorf("client got %v, %v", b, err)
		}
		if e := g.entry(decision.MsgDenied); e["reason"] != "dial_error" {
			t.Errorf("log %v", e)
		}
		given(t)
	})
	t.Run("the policy changes", func(t *testing.T) {
		g, c, _, connects := slow(t)
		g.set("policy default {\n}\n")
		connects()
		if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("client sees %v, want a reset", err)
		}
		if e := g.entry(msgRevoked); e["reason"] != "not_allowed" {
			t.Errorf("log %v", e)
		}
		given(t)
	})
}

func readFull(r io.Reader, b []byte) bool {
	_, err := io.ReadFull(r, b)
	return err == nil
}

// largeHello returns a ClientHello of about that many octets.
func largeHello(t *testing.T, serverName string, size int) (b []byte) {
	t.Helper()
	near, far := net.Pipe()
	config := &tls.Config{ServerName: serverName, InsecureSkipVerify: true}
	for i := range size / 60 {
		config.NextProtos = append(config.NextProtos, fmt.Sprintf("%059d", i))
	}
	go tls.Client(near, config).Handshake()
	defer near.Close()
	defer far.Close()
	for len(b) < size {
		head := make([]byte, 5)
		if !readFull(far, head) {
			t.Fatal("no record")
		}
		body := make([]byte, int(head[3])<<8|int(head[4]))
		if !readFull(far, body) {
			t.Fatal("no body")
		}
		b = append(append(b, head...), body...)
		if int(head[3])<<8|int(head[4]) < 16<<10 {
			break
		}
	}
	return b
}

// However a ClientHello comes, and whatever stands behind it, the upstream gets every octet once.
func TestVisitHello(t *testing.T) {
	g := startVisits(t, nil, nil)
	o, conns := rawOrigin(t)
	addr := g.to(o)
	small, large := clientHello(t, "www.example.com"), largeHello(t, "www.example.com", 60_000)
	if len(large) < 60_000 || len(large) > 64<<10 {
		t.Fatalf("a ClientHello of %d octets", len(large))
	}
	behind := make([]byte, 200<<10)
	rand.Read(behind)
	other := clientHello(t, "evil.test")
	for _, tc := range []struct {
		name   string
		hello  []byte
		pieces int // octets in each
	}{
		{"at once", small, len(small)},
		{"by octets", small, 1},
		{"large", large, len(large)},
		{"large, in pieces", large, 1000},
		{"large, as much as is read at a time", large, 16 << 10},
		{"with more behind it", append(slices.Clone(small), behind...), len(small) + len(behind)},
		{"with more behind it, in pieces", append(slices.Clone(small), behind...), 16<<10 + 1},
		{"large, with more behind it", append(slices.Clone(large), behind...), len(large) + len(behind)},
		{"with another behind it", append(slices.Clone(small), other...), len(small) + len(other)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := connect(t, addr)
			c.SetNoDelay(true)
			go func() {
				for piece := range slices.Chunk(tc.hello, tc.pieces) {
					c.Write(piece)
					if tc.pieces < len(tc.hello) {
						time.Sleep(100 * time.Microsecond)
					}
				}
				c.CloseWrite()
			}()
			up := <-conns
			got, err := io.ReadAll(up)
			if !bytes.Equal(got, tc.hello) || err != nil {
				t.Errorf("the upstream got %d octets, %v, want the %d that were sent", len(got), err, len(tc.hello))
			}
			// The client has ended what it sends, and hears the answer all the same.
			io.WriteString(up, "answer")
			up.Close()
			if got, err := io.ReadAll(c); string(got) != "answer" || err != nil {
				t.Errorf("client got %q, %v", got, err)
			}
			if e := g.entry(decision.MsgAllowed); e["name"] != "www.example.com" {
				t.Errorf("log %v", e)
			}
			if e := g.entry(msgClosed); e["bytes_in"] != int64(len(tc.hello)) || e["bytes_out"] != int64(6) || e["error"] != nil {
				t.Errorf("log %v, want %d octets in", e, len(tc.hello))
			}
		})
	}
	given(t)
}

// Of what has come before anybody looks no event tells again: all of it is read.
func TestVisitHelloBefore(t *testing.T) {
	g := startVisits(t, nil, nil)
	o, conns := rawOrigin(t)
	g.set(visitDocument(fmt.Sprint(o.port)))
	addr := freeAddr(t)
	if err := entrances.open(addr, &server{app: g.app, listener: &Listener{UpstreamPort: o.port}}); err != nil {
		t.Fatal(err)
	}
	sent := largeHello(t, "www.example.com", 60_000)
	c := connect(t, addr)
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the other end to have it", func() (ok bool) {
		raw.Control(func(fd uintptr) {
			n, err := unix.IoctlGetInt(int(fd), unix.TIOCOUTQ)
			ok = n == 0 && err == nil
		})
		return ok
	})
	if err := entrances.serve(g.app); err != nil {
		t.Fatal(err)
	}
	up := <-conns
	if b := make([]byte, len(sent)); !readFull(up, b) || !bytes.Equal(b, sent) {
		t.Error("the upstream got other octets")
	}
	up.Close()
}

// The same where the buffer ends behind the header of a record that is as long as the buffer, and the loop had waited
// before.
func TestVisitHelloUnread(t *testing.T) {
	g := startVisits(t, nil, nil)
	o, conns := rawOrigin(t)
	addr := g.to(o)
	var message []byte
	for b := largeHello(t, "www.example.com", 50_000); len(b) > 0; {
		n := 5 + int(b[3])<<8 + int(b[4])
		message, b = append(message, b[5:n]...), b[n:]
	}
	var sent []byte
	for n := 16<<10 + 1 - 2*5; len(message) > 0; n = 16 << 10 {
		n = min(n, len(message))
		sent = append(append(sent, 22, 3, 1, byte(n>>8), byte(n)), message[:n]...)
		message = message[n:]
	}
	for range 10 {
		c := connect(t, addr)
		c.Write(sent[:1])
		waitFor(t, "the connection to be held", func() bool { return open.held.Load() == 1 })
		time.Sleep(5 * time.Millisecond)
		c.Write(sent[1:])
		up := <-conns
		if b := make([]byte, len(sent)); !readFull(up, b) || !bytes.Equal(b, sent) {
			t.Error("the upstream got other octets")
		}
		up.Close()
		c.Close()
		given(t)
	}
}

// What ends before the ClientHello does.
func TestVisitHelloEnds(t *testing.T) {
	g := startVisits(t, nil, func(a *App) { a.HelloTimeout = caddy.Duration(500 * time.Millisecond) })
	small, large := clientHello(t, "www.example.com"), largeHello(t, "www.example.com", 60_000)
	decode := []byte{21, 3, 3, 0, 2, 2, 50}
	type ending func(c *net.TCPConn)
	closes := func(c *net.TCPConn) { c.CloseWrite() }
	resets := func(c *net.TCPConn) { c.SetLinger(0); c.Close() }
	stops := func(*net.TCPConn) {}
	for _, tc := range []struct {
		name   string
		sent   []byte
		end    ending
		reason string // "" if nobody is denied
		answer []byte
	}{
		{"silent, closes", nil, closes, "", nil},
		{"silent, resets", nil, resets, "", nil},
		{"silent, stops", nil, stops, "hello_timeout", nil},
		{"an octet, closes", small[:1], closes, "hello_malformed", decode},
		{"an octet, resets", small[:1], resets, "hello_malformed", nil},
		{"an octet, stops", small[:1], stops, "hello_timeout", nil},
		{"half, closes", small[:100], closes, "hello_malformed", decode},
		{"half, resets", small[:100], resets, "hello_malformed", nil},
		{"all but an octet, closes", small[:len(small)-1], closes, "hello_malformed", decode},
		{"all but an octet, stops", small[:len(small)-1], stops, "hello_timeout", nil},
		{"large, closes", large[:40_000], closes, "hello_malformed", decode},
		{"large, resets", large[:40_000], resets, "hello_malformed", nil},
		{"large, stops", large[:40_000], stops, "hello_timeout", nil},
		{"large, all but an octet, stops", large[:len(large)-1], stops, "hello_timeout", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := g.logs.Len()
			began := time.Now()
			c := connect(t, g.addr)
			if _, err := c.Write(tc.sent); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "the connection to be held", func() bool { return open.held.Load() == 1 })
			if len(tc.sent) > 0 { // a reset takes what was not read yet with it
				time.Sleep(20 * time.Millisecond)
			}
			tc.end(c)
			if got, _ := io.ReadAll(c); !bytes.Equal(got, tc.answer) {
				t.Errorf("answer %v, want %v", got, tc.answer)
			}
			c.Close()
			given(t)
			if took := time.Since(began); tc.reason == "hello_timeout" && (took < 450*time.Millisecond || took > 2*time.Second) {
				t.Errorf("took %v", took)
			}
			if tc.reason == "" {
				if es := g.logs.All()[before:]; len(es) > 0 {
					t.Errorf("logged %v, want nothing", es)
				}
				return
			}
			if e := g.entry(decision.MsgDenied); e["reason"] != tc.reason {
				t.Errorf("log %v, want %s", e, tc.reason)
			}
		})
	}
}

// Clients that are refused, and stay all the same, hold nothing.
func TestVisitRefusedStay(t *testing.T) {
	g := startVisits(t, nil, func(a *App) { a.MaxTunnels = 400 })
	evil := clientHello(t, "evil.test")
	const n = 200
	var stay []*net.TCPConn
	for range n {
		c := connect(t, g.addr)
		c.Write(evil)
		stay = append(stay, c)
	}
	given(t)
	for _, c := range stay {
		if b, err := io.ReadAll(c); !bytes.Equal(b, []byte{21, 3, 3, 0, 2, 2, 112}) || err != nil {
			t.Fatalf("answer %v, %v", b, err)
		}
	}
	for range n {
		if e := g.entry(decision.MsgDenied); e["reason"] != "not_allowed" {
			t.Errorf("log %v", e)
		}
	}
	// Those that go on sending are read for a while, and reset then.
	var wg sync.WaitGroup
	for range 20 {
		c := connect(t, g.addr)
		c.Write(evil)
		wg.Go(func() {
			for b := make([]byte, 4096); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	given(t)
	c, err := g.dial("www.example.com")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// Not one more than max_tunnels is held, whoever comes at once.
func TestVisitLimit(t *testing.T) {
	const max, crowd = 10, 60
	g := startVisits(t, nil, func(a *App) { a.MaxTunnels = max })
	for range 3 {
		results := make(chan error, crowd)
		conns := make(chan net.Conn, crowd)
		for range crowd {
			go func() {
				c, err := g.dial("www.example.com")
				if err == nil {
					conns <- c
				}
				results <- err
			}()
		}
		in := 0
		for range crowd {
			if n := open.held.Load(); n > max+crowd { // one that is refused is counted for a moment
				t.Errorf("%d places are taken", n)
			}
			switch err := <-results; {
			case err == nil:
				in++
			case err.Error() != alertError(alertInternalError) && !errors.Is(err, syscall.ECONNRESET):
				t.Errorf("client sees %v", err)
			}
		}
		if n := open.held.Load(); in != max || n != max {
			t.Errorf("%d were let in and %d places are taken, want %d", in, n, max)
		}
		for range crowd - max {
			if e := g.entry(decision.MsgDenied); e["reason"] != "limit" || !strings.Contains(fmt.Sprint(e["error"]), "max_tunnels") {
				t.Errorf("log %v", e)
			}
		}
		for range in {
			(<-conns).Close()
		}
		given(t)
	}
	// The silent count too.
	for range max {
		connect(t, g.addr)
	}
	waitFor(t, "the silent to be held", func() bool { return open.held.Load() == max })
	if _, err := g.dial("www.example.com"); err == nil {
		t.Error("let in above the limit")
	}
}

// The line of a decision stands before that of the end, and tells nothing of it.
func TestVisitLogOrder(t *testing.T) {
	names := make(map[string]string)
	const n = 100
	for i := range n {
		names[fmt.Sprintf("n%d.example.com", i)] = upstreamAddr
	}
	g := startVisits(t, names, nil)
	o, conns := rawOrigin(t)
	go func() {
		for c := range conns { // reset at once, but not before it was sent anything
			go func() {
				c.Read(make([]byte, 1))
				c.(*net.TCPConn).SetLinger(0)
				c.Close()
			}()
		}
	}()
	addr := g.to(o)
	hello := make(map[string][]byte)
	for name := range names {
		hello[name] = clientHello(t, name)
	}
	for round := range 3 {
		before := g.logs.Len()
		var wg sync.WaitGroup
		for _, b := range hello {
			wg.Go(func() {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				c.SetDeadline(time.Now().Add(20 * time.Second))
				c.Write(b)
				io.ReadAll(c)
			})
		}
		if round == 2 { // and while all that is open is closed
			g.set("policy default {\n}\n")
		}
		wg.Wait()
		given(t)
		lines := make(map[string][]string)
		var closed int
		for _, e := range g.logs.All()[before:] {
			f := e.ContextMap()
			name, _ := f["name"].(string)
			if name == "" {
				continue
			}
			lines[name] = append(lines[name], e.Message)
			if e.Message == decision.MsgAllowed && (f["error"] != nil || f["bytes_out"] != nil && f["bytes_out"] != int64(0)) {
				t.Errorf("the decision tells of the end: %v", f)
			}
			if e.Message == msgClosed || e.Message == msgRevoked {
				closed++
			}
		}
		for name, got := range lines {
			switch strings.Join(got, ", ") {
			case decision.MsgAllowed + ", " + msgClosed:
			case decision.MsgAllowed + ", " + msgRevoked, decision.MsgDenied:
				if round == 2 {
					continue
				}
				fallthrough
			default:
				t.Errorf("round %d: %s: logged %q", round, name, got)
			}
		}
		if len(lines) != n {
			t.Errorf("round %d: %d names are logged, want %d", round, len(lines), n)
		}
	}
}

// A listener of all addresses knows its clients by the addresses that they have, of either family.
func TestVisitFamilies(t *testing.T) {
	g := startVisits(t, nil, nil)
	if err := entrances.open(":0", &server{app: g.app, listener: &Listener{UpstreamPort: g.upPort}}); err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprint(entrances.byAddress[":0"].addr.Port())
	if err := entrances.serve(g.app); err != nil {
		t.Fatal(err)
	}
	body := strings.TrimSuffix(strings.SplitN(visitDocument(fmt.Sprint(g.upPort)), "{\n", 2)[1], "}\n")
	g.set("policy four {\nclient 127.0.0.9\n" + body + "}\npolicy six {\nclient ::1\n" + body + "}\n")
	for _, tc := range []struct{ from, to, policy string }{
		{"127.0.0.9", "127.0.0.1", "four"},
		{"::1", "::1", "six"},
		{"127.0.0.8", "127.0.0.1", ""},
	} {
		d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(tc.from)}, Timeout: 10 * time.Second}
		c, err := tls.DialWithDialer(d, "tcp", net.JoinHostPort(tc.to, port), &tls.Config{ServerName: "www.example.com", RootCAs: g.roots})
		if tc.policy == "" {
			if err == nil || err.Error() != alertError(alertUnrecognizedName) {
				t.Errorf("%s sees %v", tc.from, err)
			}
			if e := g.entry(decision.MsgDenied); e["reason"] != "no_policy" || e["client"] != tc.from {
				t.Errorf("log %v", e)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tc.from, err)
			continue
		}
		if e := g.entry(decision.MsgAllowed); e["policy"] != tc.policy || e["client"] != tc.from {
			t.Errorf("log %v", e)
		}
		c.Close()
	}
}

// panickyCore panics at a line about a name.
type panickyCore struct {
	zapcore.Core
	name string
}

func (c panickyCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return ce.AddCore(e, c)
}

func (c panickyCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	if enc.Fields["name"] == c.name {
		panic("at a line about " + c.name)
	}
	return c.Core.Write(e, fields)
}

// A decision that cannot be recorded is not the end of the process, nor of anything else.
func TestVisitPanicWhileRecording(t *testing.T) {
	g := startVisits(t, nil, func(a *App) { a.HelloTimeout = caddy.Duration(300 * time.Millisecond) })
	for range 2 { // known then
		c, err := g.dial("api.example.com")
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	for _, name := range []string{"evil.test", "api.example.com", ""} {
		broken := *g.app
		broken.log = zap.New(panickyCore{g.app.log.Core(), name})
		wayIn = byEntrance
		addr := g.admit(&broken, g.upPort, "")
		wayIn = byLayer4
		before := testutil.ToFloat64(g.app.metrics.panics)
		c := connect(t, addr)
		if name != "" {
			c.Write(clientHello(t, name))
		}
		waitFor(t, "the panic to be counted", func() bool { return testutil.ToFloat64(g.app.metrics.panics) > before })
		c.Close()
		given(t)
	}
	c, err := g.dial("www.example.com")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// A client that could not be handed over is closed, and its descriptor may be anybody's.
func TestVisitRefusesNobodyElse(t *testing.T) {
	ln, err := tunnel.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	clients := make(chan *tunnel.Client, 1)
	if err := ln.Serve(func(c *tunnel.Client) { clients <- c }); err != nil {
		t.Fatal(err)
	}
	peer := connect(t, ln.Addr().String())
	v := &visit{client: <-clients, over: true}
	v.client.Do(v.client.Close)
	if b, err := io.ReadAll(peer); len(b) > 0 || err != nil {
		t.Fatalf("got %v, %v", b, err)
	}
	// The lowest free descriptors are those that were closed.
	var others [8][2]int
	for i := range others {
		if others[i], err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(others[i][0])
		defer unix.Close(others[i][1])
	}
	v.refuse(nil, policy.ReasonNotBrokered, nil)
	for _, p := range others {
		for _, fd := range p {
			if n, err := unix.Read(fd, make([]byte, 16)); err != unix.EAGAIN {
				t.Errorf("another connection got %d octets, %v", n, err)
			}
		}
	}
}
