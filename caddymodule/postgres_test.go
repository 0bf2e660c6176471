package caddymodule

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/mholt/caddy-l4/layer4"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// What clients of PostgreSQL begin with.
var (
	sslRequest    = []byte{0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f}
	gssRequest    = []byte{0, 0, 0, 8, 4, 0xd2, 0x16, 0x30}
	cancelRequest = []byte{0, 0, 0, 16, 4, 0xd2, 0x16, 0x2e, 0, 0, 0, 1, 0, 0, 0, 2}
	startup       = []byte("\x00\x00\x00\x13\x00\x03\x00\x00user\x00bob\x00\x00")
)

// database is an upstream that echoes over TLS, as a PostgreSQL server takes it up.
type database struct {
	*origin
	config *tls.Config

	answer []byte // to SSLRequest; nil: 'S'
	old    bool   // it is older than 17, and takes no TLS without an SSLRequest
	mute   bool   // it answers nothing

	accepted atomic.Int64
	began    chan []byte    // the first eight octets of each connection
	sessions chan *tls.Conn // whose handshake is done
}

func (d *database) handle(c net.Conn) {
	d.accepted.Add(1)
	first := make([]byte, 8)
	if _, err := io.ReadFull(c, first); err != nil {
		return
	}
	d.began <- first
	switch {
	case d.mute:
		io.Copy(io.Discard, c)
		return
	case bytes.Equal(first, sslRequest):
		answer := d.answer
		if answer == nil {
			answer = []byte{'S'}
		}
		c.Write(answer)
		if answer[0] != 'S' {
			io.Copy(io.Discard, c)
			return
		}
	case first[0] == 22 && !d.old:
		c = &replay{c, bytes.NewReader(first)}
	default:
		return
	}
	s := tls.Server(c, d.config)
	if s.Handshake() != nil {
		return
	}
	d.sessions <- s
	io.Copy(s, s)
	s.Close()
}

// startPostgres runs a gateway for databases of example.com and below it.
func startPostgres(t *testing.T, db *database, change func(*App), more ...string) *gateway {
	t.Helper()
	g := startGateway(t, "policy default {\n}\n", change)
	var cert tls.Certificate
	cert, g.roots = certificate(t, "*.example.com", "example.com")
	db.config = &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"postgresql"}}
	db.origin, db.began, db.sessions = listenOrigin(t), make(chan []byte, 100), make(chan *tls.Conn, 100)
	go db.serve(db.handle)
	g.upPort = db.port
	g.set(document(g.upPort, more...))
	h := &Handler{UpstreamPort: g.upPort, Protocol: protocolPostgres, app: g.app}
	g.addr = serve(t, func(cx *layer4.Connection) { h.Handle(cx, nil) })
	return g
}

// connect connects and sends what is given, each in a segment of its own as far as that can be had.
func (g *gateway) connect(segments ...[]byte) net.Conn {
	g.t.Helper()
	c, err := net.Dial("tcp", g.addr)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	for i, s := range segments {
		if i > 0 {
			time.Sleep(10 * time.Millisecond) // for the one before to be read alone; either way the test holds
		}
		if _, err := c.Write(s); err != nil {
			g.t.Fatal(err)
		}
	}
	return c
}

// expect reads what the gateway answers.
func expect(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("answer %q (%v), want %q", got, err, want)
	}
}

// asked connects, asks for TLS, and is accepted.
func (g *gateway) asked() net.Conn {
	g.t.Helper()
	c := g.connect(sslRequest)
	expect(g.t, c, "S")
	return c
}

// begin connects to where a ClientHello is expected.
func (g *gateway) begin(direct bool) net.Conn {
	g.t.Helper()
	if direct {
		return g.connect()
	}
	return g.asked()
}

func (g *gateway) verifying(name string) *tls.Config {
	return &tls.Config{ServerName: name, RootCAs: g.roots}
}

func trusting(name string) *tls.Config {
	return &tls.Config{ServerName: name, InsecureSkipVerify: true}
}

// said is an ErrorResponse as a client shows it.
type said struct{ severity, code, message, hint string }

// readSaid reads an ErrorResponse, which is the last that there is to read.
func readSaid(t *testing.T, c io.Reader) said {
	t.Helper()
	b, err := io.ReadAll(c)
	if err != nil || len(b) < 5 || b[0] != 'E' || int(binary.BigEndian.Uint32(b[1:])) != len(b)-1 {
		t.Fatalf("got %q (%v), want an ErrorResponse and the end", b, err)
	}
	fields := make(map[byte]string)
	for _, f := range strings.Split(strings.TrimRight(string(b[5:]), "\x00"), "\x00") {
		fields[f[0]] = f[1:]
	}
	return said{fields['S'], fields['C'], fields['M'], fields['H']}
}

// told does what a client does that verifies nothing, and returns what it is told.
func told(t *testing.T, c net.Conn, config *tls.Config) said {
	t.Helper()
	s := tls.Client(c, config)
	if _, err := s.Write(startup); err != nil {
		t.Fatalf("no TLS to be told in: %v", err)
	}
	return readSaid(t, s)
}

func (s said) check(t *testing.T, code, message string) {
	t.Helper()
	if s.severity != "FATAL" || s.code != code || !strings.HasPrefix(s.message, "sandboxallow: "+message) {
		t.Errorf("told %+v, want FATAL %s and %q", s, code, message)
	}
}

// denied checks the record of a denial.
func (g *gateway) denied(reason policy.Reason) map[string]any {
	g.t.Helper()
	e := g.entry(decision.MsgDenied)
	if e["reason"] != reason.String() || e["layer"] != "postgres" || e["verdict"] != "deny" {
		g.t.Errorf("log %v, want reason %v", e, reason)
	}
	return e
}

func TestPostgresAllowed(t *testing.T) {
	half := func(b []byte) [][]byte { return [][]byte{b[:1], b[1:5], b[5:]} }
	for _, tc := range []struct {
		name     string
		segments [][]byte
		answer   string
		protos   []string
		first    []byte // of what the upstream gets
	}{
		{"postgres-001", [][]byte{sslRequest}, "S", nil, sslRequest},
		{"postgres-002", half(sslRequest), "S", nil, sslRequest},
		{"ALPN", [][]byte{sslRequest}, "S", []string{"postgresql"}, sslRequest},
		{"direct TLS", nil, "", []string{"postgresql"}, []byte{22, 3}},
		{"postgres-015", nil, "", nil, []byte{22, 3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db := new(database)
			g := startPostgres(t, db, nil)
			c := g.connect(tc.segments...)
			expect(t, c, tc.answer)
			config := g.verifying("www.example.com")
			config.NextProtos = tc.protos
			s := tls.Client(c, config)
			if err := echo(s, strings.Repeat("select 1; ", 10_000)); err != nil {
				t.Fatal(err)
			}
			if first := <-db.began; !bytes.HasPrefix(first, tc.first) {
				t.Errorf("upstream got % x first, want % x", first, tc.first)
			}
			e := g.entry(decision.MsgAllowed)
			if e["layer"] != "postgres" || e["name"] != "www.example.com" || e["rule"] != g.policy+":4" || e["port"] != int64(g.upPort) {
				t.Errorf("log of the decision: %v", e)
			}
			s.Close()
			if e := g.entry(msgClosed); e["bytes_in"].(int64) < 100_000 || e["bytes_out"].(int64) < 100_000 {
				t.Errorf("log of the end: %v", e)
			}
		})
	}
}

// libpq with Kerberos asks for GSSAPI first. Asked the other way round, TLS is under way already.
func TestPostgresGSS(t *testing.T) {
	t.Run("postgres-003", func(t *testing.T) {
		g := startPostgres(t, new(database), nil)
		c := g.connect(gssRequest[:3], gssRequest[3:])
		expect(t, c, "N")
		c.Write(sslRequest)
		expect(t, c, "S")
		if err := echo(tls.Client(c, g.verifying("www.example.com")), "after GSSAPI"); err != nil {
			t.Error(err)
		}

		c = g.asked()
		c.Write(gssRequest)
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("GSSENCRequest after SSLRequest is answered %q", b)
		}
		g.denied(policy.ReasonNotTLS)
	})
	t.Run("given up", func(t *testing.T) { // gssencmode=require
		g := startPostgres(t, new(database), nil)
		before := g.logs.Len()
		c := g.connect(gssRequest)
		expect(t, c, "N")
		c.Close()
		waitFor(t, "the connection to be given back", func() bool { return open.held.Load() == 0 })
		if es := g.logs.All()[before:]; len(es) != 0 {
			t.Errorf("logged %v, want nothing", es)
		}
	})
	t.Run("TLS without SSLRequest behind it", func(t *testing.T) { // which no server takes
		db := new(database)
		g := startPostgres(t, db, nil)
		c := g.connect(gssRequest)
		expect(t, c, "N")
		c.Write(clientHello(t, "www.example.com"))
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("answered %q", b)
		}
		g.denied(policy.ReasonNotTLS)
		db.untouched(t)
	})
}

// untouched checks that nothing was connected.
func (d *database) untouched(t *testing.T) {
	t.Helper()
	if n := d.accepted.Load(); n != 0 {
		t.Errorf("%d connections to the upstream, want none", n)
	}
}

func TestPostgresLoop(t *testing.T) {
	t.Run("postgres-004", func(t *testing.T) {
		db := new(database)
		g := startPostgres(t, db, nil)
		c := g.asked()
		for range 99 {
			if _, err := c.Write(sslRequest); err != nil {
				break
			}
		}
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("a second SSLRequest is answered %q", b)
		}
		g.denied(policy.ReasonNotTLS)

		c = g.connect(gssRequest)
		expect(t, c, "N")
		c.Write(gssRequest)
		readSaid(t, c).check(t, "28000", "plaintext_refused: a second GSSENCRequest")
		g.denied(policy.ReasonPlaintextRefused)
		db.untouched(t)
	})
}

func TestPostgresCancel(t *testing.T) {
	t.Run("postgres-005", func(t *testing.T) {
		db := new(database)
		g := startPostgres(t, db, nil)
		readSaid(t, g.connect(cancelRequest)).check(t, "28000", "plaintext_refused: a CancelRequest")
		g.denied(policy.ReasonPlaintextRefused)
		db.untouched(t)

		if err := echo(tls.Client(g.asked(), g.verifying("www.example.com")), string(cancelRequest)); err != nil {
			t.Errorf("within TLS: %v", err)
		}
	})
}

func TestPostgresInClear(t *testing.T) {
	for _, tc := range []struct {
		name string
		send []byte
	}{
		{"postgres-007", startup},
		{"protocol 3.2", slices.Concat(startup[:7], []byte{2}, startup[8:])},
		{"protocol 2", slices.Concat([]byte{0, 0, 1, 40, 0, 2, 0, 0}, make([]byte, 288))},
		{"without its end", startup[:8]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db := new(database)
			g := startPostgres(t, db, nil)
			got := readSaid(t, g.connect(tc.send))
			got.check(t, "28000", "plaintext_refused: ")
			if !strings.Contains(got.hint, "sslmode=require") {
				t.Errorf("hint %q, want sslmode=require", got.hint)
			}
			g.denied(policy.ReasonPlaintextRefused)
			db.untouched(t)
		})
	}
}

func TestPostgresPrefer(t *testing.T) {
	t.Run("postgres-008", func(t *testing.T) {
		db := new(database)
		g := startPostgres(t, db, nil)
		told(t, g.asked(), trusting("evil.test")).check(t, "28000", "not_allowed: evil.test ")
		g.denied(policy.ReasonNotAllowed)
		readSaid(t, g.connect(startup)).check(t, "28000", "plaintext_refused: ")
		g.denied(policy.ReasonPlaintextRefused)
		db.untouched(t)
	})
}

// A client that names no server cannot be judged. crypto/tls names none if the host is an address.
func TestPostgresNoName(t *testing.T) {
	for _, tc := range []struct{ name, host string }{
		{"postgres-009", ""},
		{"postgres-011", "10.200.0.1"},
		{"postgres-013", ""},
	} {
		for _, direct := range []bool{false, true} {
			t.Run(tc.name, func(t *testing.T) {
				db := new(database)
				g := startPostgres(t, db, nil)
				got := told(t, g.begin(direct), trusting(tc.host))
				got.check(t, "28000", "no_name: ")
				if !strings.Contains(got.hint, "version 14") {
					t.Errorf("hint %q, want what sends a name", got.hint)
				}
				g.denied(policy.ReasonNoName)
				db.untouched(t)
				if err := echo(tls.Client(g.asked(), g.verifying("www.example.com")), "with a name"); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// The end of a connection to a server that knows no direct TLS is passed on, and nothing else is tried.
func TestPostgresDirectToOld(t *testing.T) {
	t.Run("postgres-016", func(t *testing.T) {
		db := &database{old: true}
		g := startPostgres(t, db, nil)
		err := tls.Client(g.connect(), g.verifying("www.example.com")).Handshake()
		if err == nil || strings.Contains(err.Error(), "timeout") {
			t.Errorf("client sees %v, want the end of the connection", err)
		}
		if first := <-db.began; first[0] != 22 {
			t.Errorf("upstream got % x first, want the ClientHello", first)
		}
		g.entry(msgClosed)
		if n := db.accepted.Load(); n != 1 {
			t.Errorf("%d connections to the upstream, want 1", n)
		}
	})
}

// CVE-2021-23222: what is sent before TLS is no part of it.
func TestPostgresStuffed(t *testing.T) {
	hello := clientHello(t, "www.example.com")
	for _, tc := range []struct {
		name    string
		send    []byte
		message string
	}{
		{"postgres-017", slices.Concat(sslRequest, startup), "plaintext_refused: octets in clear behind the SSLRequest"},
		{"postgres-017", slices.Concat(sslRequest, hello), "plaintext_refused: octets in clear behind the SSLRequest"},
		{"one octet", slices.Concat(sslRequest, []byte{22}), "plaintext_refused: octets in clear behind the SSLRequest"},
		{"GSSENCRequest", slices.Concat(gssRequest, sslRequest), "plaintext_refused: octets in clear behind the GSSENCRequest"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db := new(database)
			g := startPostgres(t, db, nil)
			readSaid(t, g.connect(tc.send)).check(t, "28000", tc.message)
			g.denied(policy.ReasonPlaintextRefused)
			db.untouched(t)
		})
	}
	t.Run("read ahead by a matcher", func(t *testing.T) {
		db := new(database)
		g := startPostgres(t, db, nil)
		h := &Handler{UpstreamPort: g.upPort, Protocol: protocolPostgres, app: g.app}
		g.addr = serve(t, func(cx *layer4.Connection) {
			h.Handle(layer4.WrapConnection(cx.Conn, slices.Concat(sslRequest, hello), cx.Logger), nil)
		})
		readSaid(t, g.connect()).check(t, "28000", "plaintext_refused: octets in clear")
		db.untouched(t)
	})
	t.Run("after S", func(t *testing.T) {
		db := new(database)
		g := startPostgres(t, db, nil)
		c := g.asked()
		c.Write(startup)
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("answered %q", b)
		}
		g.denied(policy.ReasonNotTLS)
		db.untouched(t)
	})
}

func TestPostgresUpstreamNoTLS(t *testing.T) {
	for _, tc := range []struct {
		name  string
		db    *database
		error string
	}{
		{"postgres-019", &database{answer: append([]byte{'S'}, make([]byte, 20)...)}, "more than an octet before TLS"},
		{"N", &database{answer: []byte{'N'}}, `answers 'N' to SSLRequest`},
		{"E", &database{answer: []byte("E\x00\x00\x00\x05\x00")}, `answers 'E' to SSLRequest`},
		{"TLS at once", &database{answer: []byte{22, 3, 3}}, `answers '\x16' to SSLRequest`},
		{"nothing", &database{mute: true}, "i/o timeout"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := startPostgres(t, tc.db, func(a *App) {
				if tc.db.mute {
					a.DialTimeout = caddy.Duration(500 * time.Millisecond)
				}
			})
			got := told(t, g.asked(), trusting("www.example.com"))
			got.check(t, "08006", fmt.Sprintf("upstream_no_tls: www.example.com:%d does not take up TLS", g.upPort))
			e := g.denied(policy.ReasonUpstreamNoTLS)
			if !strings.Contains(e["error"].(string), tc.error) || e["upstream"] != fmt.Sprintf("%s:%d", upstreamAddr, g.upPort) {
				t.Errorf("log %v, want error %q", e, tc.error)
			}
			if es := g.logs.FilterMessage(decision.MsgAllowed).Len(); es != 0 {
				t.Errorf("%d decisions to allow it", es)
			}
		})
	}
}

// A denial is told within TLS, to whoever takes a certificate that proves nothing.
func TestPostgresDenied(t *testing.T) {
	db := new(database)
	g := startPostgres(t, db, nil, "\tdeny gist.example.com", "\tallow other.test:1")
	for _, tc := range []struct {
		name   string
		host   string
		reason policy.Reason
		code   string
		hint   string
	}{
		{"postgres-020", "evil.test", policy.ReasonNotAllowed, "28000", fmt.Sprintf("allow evil.test:%d", g.upPort)},
		{"denied", "gist.example.com", policy.ReasonDenied, "28000", ""},
		{"port", "other.test", policy.ReasonPortNotAllowed, "28000", fmt.Sprintf("allow other.test:%d", g.upPort)},
		{"postgres-021", "private.example.com", policy.ReasonPrivateAddress, "28000", ""},
		{"metadata", "meta.example.com", policy.ReasonPrivateAddress, "28000", ""},
		{"gone", "gone.example.com", policy.ReasonNoAddress, "08006", ""},
		{"resolver", "fail.example.com", policy.ReasonResolverError, "08006", ""},
		{"dead", "dead.example.com", policy.ReasonDialError, "08006", ""},
		{"bad name", "a..b", policy.ReasonBadName, "28000", ""},
		{"long name", strings.Repeat("a", 5000) + ".example.com", policy.ReasonBadName, "28000", ""},
	} {
		for _, way := range []struct {
			name    string
			direct  bool
			protos  []string
			version uint16
		}{
			{"", false, nil, 0},
			{"TLS 1.2", false, []string{"postgresql"}, tls.VersionTLS12},
			{"direct", true, []string{"postgresql"}, 0},
		} {
			t.Run(tc.name+way.name, func(t *testing.T) {
				count := g.app.metrics.decisions.WithLabelValues("postgres", "default", "deny", tc.reason.String())
				before := testutil.ToFloat64(count)
				config := trusting(tc.host)
				config.NextProtos, config.MaxVersion = way.protos, way.version
				got := told(t, g.begin(way.direct), config)
				got.check(t, tc.code, tc.reason.String()+": ")
				if (got.hint == "") != (tc.hint == "") || !strings.HasSuffix(got.hint, tc.hint) {
					t.Errorf("hint %q, want %q", got.hint, tc.hint)
				}
				if strings.Contains(got.message+got.hint, g.policy) {
					t.Errorf("%+v tells where the policy is", got)
				}
				g.denied(tc.reason)
				if after := testutil.ToFloat64(count); after != before+1 {
					t.Errorf("decisions_total went from %v to %v", before, after)
				}
			})
		}
	}
	db.untouched(t)
	waitFor(t, "all connections to be given back", func() bool { return open.held.Load() == 0 && telling.Load() == 0 })
}

// Who cannot be told within TLS gets the alert, at once.
func TestPostgresAlert(t *testing.T) {
	db := new(database)
	g := startPostgres(t, db, nil)
	hello := clientHello(t, "evil.test")
	t.Run("crowd", func(t *testing.T) {
		telling.Add(maxTelling)
		defer telling.Add(-maxTelling)
		err := tls.Client(g.asked(), trusting("evil.test")).Handshake()
		if err == nil || err.Error() != alertError(alertUnrecognizedName) {
			t.Errorf("client sees %v, want %s", err, alertError(alertUnrecognizedName))
		}
		g.denied(policy.ReasonNotAllowed)
	})
	t.Run("verifies", func(t *testing.T) {
		err := tls.Client(g.asked(), g.verifying("evil.test")).Handshake()
		var bad *tls.CertificateVerificationError
		if !errors.As(err, &bad) {
			t.Errorf("client sees %v, want an error of the certificate", err)
		}
		g.denied(policy.ReasonNotAllowed)
	})
	t.Run("ciphers of none", func(t *testing.T) {
		config := trusting("evil.test")
		config.MaxVersion, config.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}
		err := tls.Client(g.asked(), config).Handshake()
		if err == nil || !strings.Contains(err.Error(), "remote error: tls: handshake failure") {
			t.Errorf("client sees %v, want an alert", err)
		}
		g.denied(policy.ReasonNotAllowed)
	})
	t.Run("malformed hello", func(t *testing.T) {
		c := g.asked()
		c.Write(slices.Concat([]byte{22, 3, 1, 0, 50, 1, 0, 16, 0}, hello[9:55], []byte{23, 3, 3, 0, 5, 1, 2, 3, 4, 5}))
		if b, _ := io.ReadAll(c); !bytes.Equal(b, []byte{21, 3, 3, 0, 2, 2, alertDecodeError}) {
			t.Errorf("answer % x", b)
		}
		g.denied(policy.ReasonHelloMalformed)
	})
	t.Run("stops within the handshake", func(t *testing.T) {
		start := time.Now()
		c := g.asked()
		c.Write(hello)
		b, err := io.ReadAll(c)
		if took := time.Since(start); err != nil || len(b) == 0 || took > 5*time.Second {
			t.Errorf("%d octets and %v after %v, want the end after %v", len(b), err, took, tellTimeout)
		}
		waitFor(t, "its place to be given back", func() bool { return open.held.Load() == 0 && telling.Load() == 0 })
		g.denied(policy.ReasonNotAllowed)
	})
	t.Run("says nothing within TLS", func(t *testing.T) {
		s := tls.Client(g.asked(), trusting("evil.test"))
		if err := s.Handshake(); err != nil {
			t.Fatal(err)
		}
		readSaid(t, s).check(t, "28000", "not_allowed: evil.test ")
		g.denied(policy.ReasonNotAllowed)
	})
	db.untouched(t)
}

// TLS is between client and server alone: both see the same session and the server's own certificate, which is
// what SCRAM-SHA-256-PLUS binds to.
func TestPostgresChannelBinding(t *testing.T) {
	t.Run("postgres-022", func(t *testing.T) {
		db := new(database)
		g := startPostgres(t, db, nil)
		c := tls.Client(g.asked(), g.verifying("www.example.com"))
		if err := echo(c, "through"); err != nil {
			t.Fatal(err)
		}
		client, server := c.ConnectionState(), (<-db.sessions).ConnectionState()
		if !bytes.Equal(client.PeerCertificates[0].Raw, db.config.Certificates[0].Certificate[0]) {
			t.Error("the client sees another certificate than the server's") // tls-server-end-point
		}
		ours, err1 := client.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32) // tls-exporter (RFC 9266)
		theirs, err2 := server.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
		if err1 != nil || err2 != nil || !bytes.Equal(ours, theirs) {
			t.Errorf("client and server are of two sessions: %v, %v", err1, err2)
		}
	})
}

func TestPostgresSlow(t *testing.T) {
	g := startPostgres(t, new(database), func(a *App) { a.HelloTimeout = caddy.Duration(500 * time.Millisecond) })
	for _, tc := range []struct {
		name   string
		send   []byte
		answer string
	}{
		{"postgres-023", nil, ""},
		{"postgres-023", sslRequest, "S"},
		{"half a request", sslRequest[:5], ""},
		{"GSSENCRequest alone", gssRequest, "N"},
		{"half a direct hello", clientHello(t, "www.example.com")[:100], ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if b, err := io.ReadAll(g.connect(tc.send)); err != nil || string(b) != tc.answer {
				t.Errorf("answer %q, %v; want %q and the end", b, err, tc.answer)
			}
			g.denied(policy.ReasonHelloTimeout)
		})
	}
	t.Run("drip", func(t *testing.T) { // each octet in time, and all of them too late
		c := g.connect()
		for _, b := range slices.Concat(sslRequest, clientHello(t, "www.example.com")) {
			if _, err := c.Write([]byte{b}); err != nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if e := g.denied(policy.ReasonHelloTimeout); e["duration"].(float64) > 5 {
			t.Errorf("after %v s", e["duration"])
		}
	})
}

// Nothing that the client announces is waited or made room for.
func TestPostgresForeign(t *testing.T) {
	db := new(database)
	g := startPostgres(t, db, nil)
	for _, tc := range []struct {
		name string
		send []byte
	}{
		{"postgres-024", []byte{0x7f, 0xff, 0xff, 0xff, 4, 0xd2, 0x16, 0x2f}},
		{"postgres-024", []byte{0, 0, 0, 0}},
		{"postgres-024", []byte{0, 0, 0, 4}},
		{"SSLRequest that is too long", []byte{0, 0, 0, 9, 4, 0xd2, 0x16, 0x2f, 0}},
		{"unknown code", []byte{0, 0, 0, 8, 4, 0xd2, 0x16, 0x31}},
		{"too long", []byte{0, 0, 0x27, 0x11}},
		{"HTTP", []byte("G")},
		{"PROXY", []byte("PROXY TCP4 1.2.3.4 5.6.7.8 1 5432\r\n")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if b, _ := io.ReadAll(g.connect(tc.send)); len(b) > 0 {
				t.Errorf("answered %q", b)
			}
			g.denied(policy.ReasonNotTLS)
		})
	}
	t.Run("end within a request", func(t *testing.T) {
		c := g.connect(sslRequest[:5])
		c.(*net.TCPConn).CloseWrite()
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("answered %q", b)
		}
		g.denied(policy.ReasonNotTLS)
	})
	db.untouched(t)
}

func TestPostgresSilent(t *testing.T) {
	g := startPostgres(t, new(database), nil)
	before := g.logs.Len()
	for _, send := range [][]byte{nil, sslRequest} {
		c := g.connect(send)
		if send != nil {
			expect(t, c, "S")
		}
		waitFor(t, "the connection to be held", func() bool { return open.held.Load() == 1 })
		c.Close()
		waitFor(t, "the connection to be given back", func() bool { return open.held.Load() == 0 })
	}
	if es := g.logs.All()[before:]; len(es) != 0 {
		t.Errorf("logged %v, want nothing", es)
	}
}

func TestPostgresLimit(t *testing.T) {
	g := startPostgres(t, new(database), func(a *App) { a.MaxTunnels = 1 })
	held := tls.Client(g.asked(), g.verifying("www.example.com"))
	if err := echo(held, "held"); err != nil {
		t.Fatal(err)
	}
	readSaid(t, g.connect()).check(t, "53300", "limit: 1 connections are held")
	g.denied(policy.ReasonLimit)
	held.Close()
	waitFor(t, "the tunnel to be given back", func() bool { return open.held.Load() == 0 })
	if err := echo(tls.Client(g.asked(), g.verifying("www.example.com")), "below the limit again"); err != nil {
		t.Error(err)
	}
}

// A name that is removed takes its sessions with it. A `private` line lifts the floor.
func TestPostgresRevoked(t *testing.T) {
	g := startPostgres(t, new(database), nil)
	c := tls.Client(g.asked(), g.verifying("www.example.com"))
	if err := echo(c, "open"); err != nil {
		t.Fatal(err)
	}
	g.set(document(g.upPort, "\tdeny www.example.com"))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) || strings.Contains(err.Error(), "timeout") {
		t.Errorf("session of the removed name: %v, want a reset", err)
	}
	if e := g.entry(msgRevoked); e["layer"] != "postgres" || e["reason"] != "denied" {
		t.Errorf("log: %v", e)
	}
}

// The policy that the listener names must admit a name too.
func TestPostgresListener(t *testing.T) {
	g := startPostgres(t, new(database), nil)
	g.set(document(g.upPort) + fmt.Sprintf("policy databases {\n\tclient 192.0.2.1\n\tprivate %s\n\tallow api.example.com:%d\n}\n", upstreamAddr, g.upPort))
	h := &Handler{UpstreamPort: g.upPort, Protocol: protocolPostgres, Policy: "databases", app: g.app}
	g.addr = serve(t, func(cx *layer4.Connection) { h.Handle(cx, nil) })
	told(t, g.asked(), trusting("www.example.com")).check(t, "28000", "not_allowed: www.example.com ")
	if err := echo(tls.Client(g.asked(), g.verifying("api.example.com")), "through"); err != nil {
		t.Error(err)
	}
}

// What a denial costs, the client's side of the handshake included.
func BenchmarkTellInTLS(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	r := &record{}
	r.Name, r.Port = "evil.example", 5432
	message := fatal(r, policy.ReasonNotAllowed)
	b.ReportAllocs()
	for b.Loop() {
		go func() {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				return
			}
			s := tls.Client(c, trusting(r.Name))
			s.Write(startup)
			io.Copy(io.Discard, s)
			s.Close()
		}()
		c, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		p := &postgresPreamble{layer4Client: layer4Client{layer4.WrapConnection(c, nil, nil)}}
		if !p.tellInTLS(message, nil) {
			b.Fatal("not told")
		}
	}
}

// The page's configuration and policies are valid, and what it says that clients are told is what they are told.
func TestPostgresPage(t *testing.T) {
	const page = "../docs/postgres.md"
	validExamples(t, page, 1, "policy default {\n\tallow db.example.com:5432\n}\n")
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	documents := regexp.MustCompile("(?s)```policy\n(.*?)```").FindAllStringSubmatch(text, -1)
	if len(documents) != 2 {
		t.Errorf("%d policies, want 2", len(documents))
	}
	for _, d := range documents {
		file := filepath.Join(t.TempDir(), "policy")
		if err := os.WriteFile(file, []byte(d[1]), 0o644); err != nil {
			t.Fatal(err)
		}
		set, err := policy.Load(policy.Source{File: file})
		if err != nil || len(set.Warnings()) > 0 {
			t.Errorf("%v, %v\n%s", err, set.Warnings(), d[1])
		}
	}

	r := new(record)
	r.Name, r.Port, r.Decision.Reason = "db.example.org", 5432, policy.ReasonNotAllowed
	told := readSaid(t, bytes.NewReader(fatal(r, policy.ReasonNotAllowed)))
	if want := fmt.Sprintf("    FATAL:  %s\n    HINT:  %s\n", told.message, told.hint); !strings.Contains(text, want) {
		t.Errorf("the page lacks what psql says:\n%s", want)
	}

	listed := make(map[string]string)
	for _, row := range regexp.MustCompile(`(?m)^\| (`+"`[a-z_` ]+`"+`) \| ([0-9]{5}|none:.*) \|$`).FindAllStringSubmatch(text, -1) {
		for _, reason := range strings.Fields(strings.ReplaceAll(row[1], "`", "")) {
			listed[reason] = row[2]
		}
	}
	for reason := policy.ReasonNone + 1; reason.String() != "unknown"; reason++ {
		want := readSaid(t, bytes.NewReader(fatal(r, reason))).code
		switch reason {
		case policy.ReasonBadRequest, policy.ReasonNameMismatch, policy.ReasonAuthRequired, policy.ReasonNotBrokered:
			want = "" // of other handlers
		case policy.ReasonHelloMalformed, policy.ReasonHelloTooLarge:
			want = fmt.Sprintf("none: TLS alert decode_error (%d)", alertFor(reason))
		case policy.ReasonNotTLS, policy.ReasonHelloTimeout:
			want = "none: the connection is closed"
		}
		if listed[reason.String()] != want {
			t.Errorf("%v is %q on the page, want %q", reason, listed[reason.String()], want)
		}
	}
}
