//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/miekg/dns"
)

// The names of the tests of PostgreSQL. Each leads to the server, had it not been denied.
const dbPolicy = `policy default {
	allow db.example.com:5432
	allow odd.example.com
	allow private.example.com:5432
	allow nowhere.example.com:5432
	allow refusing.example.com:5432
	allow relay.example.com:443,5432
}
`

// relayHost is the server behind a relay.
const relayHost = "relay.example.com"

// knownHosts are denied.
var knownHosts = []string{"known.example.net", "verified.example.net"}

// dbLab is a lab with a PostgreSQL and the product in front of it.
func dbLab(t *testing.T, c config) (*lab, *gateway, *postgres) {
	t.Helper()
	l := newLab(t)
	s := l.startPostgres(t, dbAddr, dbPrivateAddr)
	l.internet.dns.set(dbHost, addrs(dbAddr))
	l.internet.dns.set("odd.example.com", addrs(dbAddr))
	for _, host := range knownHosts {
		l.internet.dns.set(host, addrs(dbAddr))
	}
	l.internet.dns.set("private.example.com", addrs(dbPrivateAddr))
	l.internet.dns.set("refusing.example.com", addrs(refusingAddr))
	// These names lead a client to the gateway without a question to CoreDNS. Several, since what is denied once more
	// within a second is folded, and logged late.
	hosts := "127.0.0.1 localhost\n" + gatewayAddr.String() + " " + strings.Join(knownHosts, " ") + "\n"
	if err := l.sandbox.etc("hosts", hosts); err != nil {
		t.Fatal(err)
	}
	c.postgres = true
	if c.policy == "" {
		c.policy = dbPolicy
	}
	return l, l.start(t, c), s
}

// Tables of what clients of a database say.
const (
	tableDatabase         = "database"
	tableDatabaseVerified = "database-verified"
	tableDatabaseClear    = "database-clear"
)

// Every client of PostgreSQL without a change: an allowed database works by each way, and a denied one says why
// as far as the client is willing to read it.
func TestClientsOfPostgres(t *testing.T) {
	l, g, s := dbLab(t, config{ipv4Only: true})
	m := &matrix{lab: l, g: g, tables: readTables(t), servers: map[string][]*server{
		dbHost: {{addr: netip.AddrPortFrom(dbAddr, dbPort)}},
	}}
	// The server takes any of them: what follows is the gateway's doing.
	t.Run("without the gateway", func(t *testing.T) {
		need(t, "psql")
		for _, w := range []way{sslDisable, sslPrefer, sslVerifyFull} {
			out, err := l.beside().psql(conninfo(l, w, dbHost), whoIs)
			if err != nil || !strings.HasPrefix(out, page(dbHost)) || strings.Contains(out, "clear") != (w == sslDisable) {
				t.Errorf("sslmode=%s: %q, %v", w.name, out, err)
			}
		}
	})
	var labels []string
	for i := range databaseClients {
		c := &databaseClients[i]
		labels = append(labels, c.label)
		t.Run(c.name, func(t *testing.T) {
			c.ready(t, l)
			if *update {
				m.tables.setRow(t, versions, c.label, c.version())
			}
			for _, w := range c.ways {
				t.Run(w.name, func(t *testing.T) { m.works(t, &c.client, w, dbHost, "allow db") })
			}
			came := s.connections(t)
			denied := func(name string, w way, host, decided, reason, rule, table string, says ...string) {
				t.Run(name, func(t *testing.T) {
					mark := g.caddy.log.mark()
					said := m.fails(t, &c.client, w, host, says...)
					g.deniedBy(t, "postgres", mark, decided, reason, rule)
					m.tables.compare(t, table, c.label, &c.client, said)
				})
			}
			denied("not allowed", sslRequire, "known.example.net", "known.example.net", "not_allowed", "",
				tableDatabase, "sandboxallow: not_allowed: ")
			denied("not allowed, verified", sslVerifyFull, "verified.example.net", "verified.example.net", "not_allowed", "",
				tableDatabaseVerified, c.noTrust)
			denied("in clear", sslDisable, dbHost, "", "plaintext_refused", "",
				tableDatabaseClear, "sandboxallow: plaintext_refused: ")
			t.Run("no such name", func(t *testing.T) {
				m.fails(t, &c.client, sslRequire, "denied.example.net", c.noName)
			})
			if n := s.connections(t) - came; n != 0 {
				t.Errorf("%d connections came to the server for what was denied", n)
			}
		})
	}
	// Who verifies is told by the name server.
	t.Run("why", func(t *testing.T) {
		r := g.ask(t, "_5432.verified.example.net.why.sandboxallow", dns.TypeTXT)
		if len(r.Answer) != 1 || !slices.Contains(r.Answer[0].(*dns.TXT).Txt, "hint=allow verified.example.net:5432") {
			t.Errorf("%v, want a hint at the rule", r)
		}
	})
	for _, id := range []string{tableDatabase, tableDatabaseVerified, tableDatabaseClear} {
		m.tables.hasRows(t, id, labels)
	}
	m.tables.save(t)
}

// Each reason for which a database is not reached, as psql says it.
func TestPostgresDenied(t *testing.T) {
	need(t, "psql")
	l, g, s := dbLab(t, config{options: "max_tunnels 3"})
	// refused fails the test unless psql fails, says why and which SQLSTATE that is, and nobody came to the server.
	refused := func(t *testing.T, host, name, reason, state, rule, options string) string {
		t.Helper()
		came, mark := s.connections(t), g.caddy.log.mark()
		out, err := l.psql(conninfo(l, sslRequire, host+" "+options), whoIs)
		if err == nil {
			t.Fatalf("%s: got %q, want a failure", host, out)
		}
		if !strings.Contains(said(err), "FATAL:  sandboxallow: "+reason+": ") {
			t.Errorf("%s: psql says %v, want %s", host, err, reason)
		}
		g.deniedBy(t, "postgres", mark, name, reason, rule)
		if n := s.connections(t) - came; n != 0 {
			t.Errorf("%s: %d connections came to the server", host, n)
		}
		if c, err := l.database(t, sslRequire, host+" "+options, nil); sqlState(err) != state {
			t.Errorf("%s: pgx has %v, %v, want SQLSTATE %s", host, c, err, state)
		}
		return said(err)
	}
	for _, tc := range []struct{ host, reason, state, rule string }{
		{"known.example.net", "not_allowed", "28000", ""},
		{"odd.example.com", "port_not_allowed", "28000", "allow odd"},
		{"private.example.com", "private_address", "28000", "allow private"},
		{"nowhere.example.com", "no_address", "08006", "allow nowhere"},
		{"refusing.example.com", "dial_error", "08006", "allow refusing"},
	} {
		name := tc.reason
		if tc.reason == "private_address" {
			name = "postgres-021"
		}
		t.Run(name, func(t *testing.T) {
			said := refused(t, tc.host, tc.host, tc.reason, tc.state, tc.rule, "")
			if hint := "allow " + tc.host + ":5432\n"; strings.Contains(said, hint) != strings.HasSuffix(tc.reason, "not_allowed") {
				t.Errorf("psql says %q, want a hint at the rule if it is the policy that lacks one", said)
			}
		})
	}
	t.Run("postgres-008", func(t *testing.T) {
		came, mark := s.connections(t), g.caddy.log.mark()
		_, err := l.psql(conninfo(l, sslPrefer, "verified.example.net"), whoIs)
		for _, reason := range []string{"not_allowed", "plaintext_refused"} {
			if err == nil || !strings.Contains(said(err), "sandboxallow: "+reason+": ") {
				t.Errorf("psql says %v, want %s", err, reason)
			}
		}
		g.deniedBy(t, "postgres", mark, "verified.example.net", "not_allowed", "")
		g.deniedBy(t, "postgres", mark, "", "plaintext_refused", "")
		if n := s.connections(t) - came; n != 0 {
			t.Errorf("%d connections came to the server", n)
		}
	})
	t.Run("postgres-009", func(t *testing.T) { refused(t, dbHost, "", "no_name", "28000", "", "sslsni=0") })
	t.Run("postgres-011", func(t *testing.T) { refused(t, gatewayAddr.String(), "", "no_name", "28000", "", "") })
	t.Run("in clear", func(t *testing.T) {
		startup := []byte("\x00\x00\x00\x1f\x00\x03\x00\x00user\x00app\x00database\x00app\x00\x00")
		// The server would have asked for the password.
		c, err := l.gateway.dial("tcp", netip.AddrPortFrom(dbAddr, dbPort))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if answer, err := negotiate(c, startup); err != nil || answer != 'R' {
			t.Fatalf("without the gateway: answer %q, %v, want R", answer, err)
		}
		came := s.connections(t)
		for _, tc := range []struct {
			name   string
			sent   []byte
			answer string // how it begins
		}{
			{"startup", startup, "E"},
			{"cancel", []byte{0, 0, 0, 16, 4, 210, 22, 46, 0, 0, 0, 1, 0, 0, 0, 1}, "E"},
			{"startup behind a request", slices.Concat(sslRequest, startup), "E"},
			{"requests in one", slices.Concat(gssRequest, sslRequest), "E"},
			{"not PostgreSQL", []byte("GET / HTTP/1.1\r\n\r\n"), ""},
			{"length", []byte{0x7f, 0xff, 0xff, 0xff, 4, 210, 22, 47}, ""},
		} {
			answer := string(l.sendTo(t, gatewayPostgres, tc.sent))
			if !strings.HasPrefix(answer, tc.answer) || (answer == "") != (tc.answer == "") {
				t.Errorf("%s: answer %q, want %q", tc.name, answer, tc.answer)
			}
			if tc.answer != "" && !strings.Contains(answer, "sandboxallow: plaintext_refused: ") {
				t.Errorf("%s: answer %q, want plaintext_refused", tc.name, answer)
			}
		}
		// Nor behind a request that was granted.
		if c, err = l.sandbox.dial("tcp", gatewayPostgres); err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if answer, err := negotiate(c, sslRequest); err != nil || answer != 'S' {
			t.Fatalf("answer %q, %v", answer, err)
		}
		if _, err := c.Write(startup); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) || len(b) != 0 {
			t.Errorf("%q, %v, want the end", b, err)
		}
		if n := s.connections(t) - came; n != 0 {
			t.Errorf("%d connections came to the server", n)
		}
	})
	t.Run("limit", func(t *testing.T) {
		must(t, 5*time.Second, "no tunnel is open", func() bool { return g.metric(t, "caddy_sandboxallow_open_tunnels") == 0 })
		for range 3 {
			l.session(t, dbHost)
		}
		mark := g.caddy.log.mark()
		_, err := l.psql(conninfo(l, sslRequire, dbHost), whoIs)
		// It was told before there was TLS, which libpq does not believe any more (CVE-2024-10977).
		if err == nil || !strings.Contains(said(err), "server sent an error response during SSL exchange") {
			t.Errorf("psql says %v, want an error response", err)
		}
		g.deniedBy(t, "postgres", mark, "", "limit", "")
	})
	// The last one: the server has no TLS after it.
	t.Run("upstream_no_tls", func(t *testing.T) {
		s.admin(t, "ALTER SYSTEM SET ssl = off")
		s.admin(t, "SELECT pg_reload_conf()")
		must(t, 5*time.Second, "the server has TLS no more", func() bool { return s.admin(t, "SHOW ssl") == "off" })
		must(t, 5*time.Second, "no tunnel is open", func() bool { return g.metric(t, "caddy_sandboxallow_open_tunnels") == 0 })
		if out, err := l.beside().psql(conninfo(l, sslPrefer, dbHost), whoIs); err != nil || !strings.Contains(out, "clear") {
			t.Errorf("without the gateway: %q, %v, want an answer in clear text", out, err)
		}
		mark := g.caddy.log.mark()
		out, err := l.psql(conninfo(l, sslPrefer, dbHost), whoIs)
		for _, reason := range []string{"upstream_no_tls", "plaintext_refused"} {
			if err == nil || !strings.Contains(said(err), "sandboxallow: "+reason+": ") {
				t.Errorf("psql says %q, %v, want %s", out, err, reason)
			}
		}
		d := g.decidedBy(t, "postgres", mark, msgDenied, dbHost)
		if d.Reason != "upstream_no_tls" || d.Rule != g.line("allow db") {
			t.Errorf("decision %+v, want upstream_no_tls", d)
		}
	})
}

// What goes on within a session is not the gateway's business: it goes through as it is.
func TestPostgresSession(t *testing.T) {
	need(t, "psql")
	l, g, s := dbLab(t, config{})

	t.Run("postgres-022", func(t *testing.T) {
		out, err := l.psql(conninfo(l, sslVerifyFull, dbHost)+" channel_binding=require", whoIs)
		if err != nil || !strings.HasPrefix(out, page(dbHost)) {
			t.Errorf("%q, %v", out, err)
		}
	})
	t.Run("postgres-003", func(t *testing.T) {
		// As libpq with a Kerberos ticket does.
		c, err := l.database(t, sslVerifyFull, dbHost, func() (net.Conn, error) {
			c, err := l.sandbox.dial("tcp", gatewayPostgres)
			if err != nil {
				return nil, err
			}
			if answer, err := negotiate(c, gssRequest); err != nil || answer != 'N' {
				return nil, fmt.Errorf("answer %q to a GSSENCRequest: %v", answer, err)
			}
			return c, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		answers(t, c)
	})
	t.Run("postgres-016", func(t *testing.T) {
		// This server is too old for it. It is asked, and its refusal is what the client gets.
		mark, came := g.caddy.log.mark(), s.connections(t)
		config := l.databaseConfig(t, sslRequire, dbHost, nil)
		config.SSLNegotiation = "direct"
		if _, err := pgx.ConnectConfig(t.Context(), config); err == nil || sqlState(err) != "" {
			t.Errorf("%v, want a connection that ends", err)
		}
		d := g.decidedBy(t, "postgres", mark, msgAllowed, dbHost)
		if want := netip.AddrPortFrom(dbAddr, dbPort).String(); d.Upstream != want {
			t.Errorf("upstream %s, want %s", d.Upstream, want)
		}
		must(t, 5*time.Second, "the server has seen it", func() bool { return s.connections(t) > came })
	})
	t.Run("notify", func(t *testing.T) {
		c := l.session(t, dbHost)
		if _, err := c.Exec(t.Context(), "LISTEN news"); err != nil {
			t.Fatal(err)
		}
		heard := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		go func() {
			n, err := c.WaitForNotification(ctx)
			if err == nil && n.Payload != "hello" {
				err = fmt.Errorf("payload %q", n.Payload)
			}
			heard <- err
		}()
		s.admin(t, "NOTIFY news, 'hello'")
		if err := <-heard; err != nil {
			t.Error(err)
		}
	})
	t.Run("cancel in TLS", func(t *testing.T) {
		c := l.session(t, dbHost)
		asleep := make(chan error, 1)
		go func() {
			_, err := c.Exec(context.WithoutCancel(t.Context()), "SELECT pg_sleep(60)")
			asleep <- err
		}()
		s.sleeps(t)
		mark := g.caddy.log.mark()
		if err := c.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-asleep; sqlState(err) != "57014" {
			t.Errorf("%v, want query_canceled", err)
		}
		g.decidedBy(t, "postgres", mark, msgAllowed, dbHost)
	})
	t.Run("postgres-005", func(t *testing.T) {
		// libpq before 17 cancels in clear text, and so does not cancel. psql cannot know.
		p := spawn(t, l.sandbox, clientEnv(l), psql(conninfo(l, sslVerifyFull, dbHost), "--command", "SELECT pg_sleep(60)")...)
		s.sleeps(t)
		mark := g.caddy.log.mark()
		p.signal(t, syscall.SIGINT)
		g.deniedBy(t, "postgres", mark, "", "plaintext_refused", "")
		s.sleeps(t)
		if !p.running() {
			t.Errorf("psql has ended: %v", p.err)
		}
		s.admin(t, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'")
		p.ended(t, 10*time.Second)
		if len(p.log.with(0, "canceling statement due to user request")) == 0 {
			t.Errorf("psql says %q", p.log.lines(0))
		}
	})
}

// A change of the policy ends the sessions that it no longer allows, and no other.
func TestPostgresRevoked(t *testing.T) {
	need(t, "psql")
	const kept, removed = dbHost, "odd.example.com"
	l, g, s := dbLab(t, config{policy: "policy default {\n\tallow " + kept + ":5432 " + removed + ":5432\n}\n"})
	stays, ends := l.session(t, kept), l.session(t, removed)
	answers(t, stays)
	answers(t, ends)
	p := spawn(t, l.sandbox, clientEnv(l), psql(conninfo(l, sslRequire, removed), "--command", "SELECT pg_sleep(60)")...)
	s.sleeps(t)

	mark := g.caddy.log.mark()
	g.setPolicy(t, "policy default {\n\tallow "+kept+":5432\n}\n")
	start := time.Now()
	if code := p.ended(t, applies); code == 0 {
		t.Error("psql ends as if all were well")
	}
	if len(p.log.with(0, "onnection to server was lost")) == 0 {
		t.Errorf("psql says %q", p.log.lines(0))
	}
	ctx, cancel := context.WithTimeout(t.Context(), applies)
	defer cancel()
	if _, err := ends.WaitForNotification(ctx); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an idle session: %v after %s, want its end", err, time.Since(start))
	}
	answers(t, stays)
	must(t, 5*time.Second, "each end is logged", func() bool {
		n := 0
		for _, d := range g.decisions(mark) {
			if d.Msg == msgRevoked && d.Name == removed && d.Reason == "not_allowed" && d.Layer == "postgres" && d.BytesOut > 0 {
				n++
			}
		}
		return n == 2
	})
	if _, err := l.database(t, sslRequire, removed, nil); sqlState(err) != "28000" {
		t.Errorf("%v, want SQLSTATE 28000", err)
	}
}

// Whose policy it is decides, about a private database too.
func TestPostgresPolicies(t *testing.T) {
	trusted := netip.MustParseAddr("172.30.0.101")
	l, g, _ := dbLab(t, config{policy: `policy default {
	allow db.example.com:5432
	allow private.example.com:5432
}
policy trusted {
	client  172.30.0.101/32
	allow   private.example.com:5432
	private 10.20.0.0/16
}
`})
	if err := l.sandbox.ip("addr", "add", trusted.String()+"/24", "dev", linkGateway); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		client netip.Addr
		host   string
		reason string // "": allowed
	}{
		{"default, public", sandboxAddr, dbHost, ""},
		{"default, private", sandboxAddr, "private.example.com", "private_address"},
		{"trusted, public", trusted, dbHost, "not_allowed"},
		{"trusted, private", trusted, "private.example.com", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mark := g.caddy.log.mark()
			c, err := l.database(t, sslRequire, tc.host, func() (net.Conn, error) {
				return l.sandbox.dialFrom(tc.client, "tcp", gatewayPostgres)
			})
			if tc.reason != "" {
				if sqlState(err) != "28000" || !strings.Contains(err.Error(), tc.reason) {
					t.Errorf("%v, want %s", err, tc.reason)
				}
				if d := g.decidedBy(t, "postgres", mark, msgDenied, tc.host); d.Reason != tc.reason || d.Client != tc.client {
					t.Errorf("decision %+v, want %s of %s", d, tc.reason, tc.client)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(t.Context())
			answers(t, c)
		})
	}
}
