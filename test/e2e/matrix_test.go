//go:build linux

package e2e

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// The policy of the matrix.
const matrixPolicy = `policy default {
	allow api.example.com .example.org
	allow private.example.net
	allow odd.example.net:8443
	allow nowhere.example.net
	allow refusing.example.net
	deny  secret.example.org
}
`

// matrix is a lab with the product, and with names for each kind of decision.
type matrix struct {
	*lab
	g       *gateway
	servers map[string][]*server // by name: TLS, and without
	dns     *tap                 // questions of the sandbox, to whomever
	tables  *tables              // what the clients are known to say
}

func newMatrix(t *testing.T, start func(l *lab) *gateway) *matrix {
	t.Helper()
	l := newLab(t)
	m := &matrix{lab: l, g: start(l), servers: make(map[string][]*server), tables: readTables(t)}
	for name, a := range map[string]netip.Addr{
		"api.example.com":     webAddr,
		"www.example.org":     otherAddr,
		"secret.example.org":  otherAddr,
		"private.example.net": netip.MustParseAddr("10.0.0.5"),
		"odd.example.net":     webAddr,
		"denied.example.net":  otherAddr,
		"known.example.net":   otherAddr,
	} {
		for _, host := range []func(string, netip.Addr) (*server, error){l.internet.host, l.internet.hostPlain} {
			s, err := host(name, a)
			if err != nil {
				t.Fatal(err)
			}
			m.servers[name] = append(m.servers[name], s)
		}
	}
	l.internet.dns.set("refusing.example.net", addrs(refusingAddr))
	m.dns = newTap(t, l.sandbox, func(p packet) bool { return p.out && p.port == 53 })
	// These names lead a client to the gateway without a question to CoreDNS.
	if err := l.sandbox.etc("hosts", "127.0.0.1 localhost\n"+gatewayAddr.String()+" known.example.net secret.example.org\n"); err != nil {
		t.Fatal(err)
	}
	return m
}

// Every client by every way that it has: an allowed name works, and each kind of denial fails in the client's
// own words, at once. docs/what-clients-say.md has these words.
func TestClients(t *testing.T) {
	m := newMatrix(t, func(l *lab) *gateway { return l.startExamples(t, matrixPolicy) })
	labels := make(map[string][]string) // of the rows of each table
	for i := range clients {
		c := &clients[i]
		for _, id := range c.inTables() {
			labels[id] = append(labels[id], c.label)
		}
		t.Run(c.name, func(t *testing.T) {
			c.ready(t, m.lab)
			if *update {
				m.tables.setRow(t, versions, c.label, c.version())
			}
			for _, w := range ways {
				if c.can(w) {
					t.Run(w.name, func(t *testing.T) { m.try(t, c, w) })
				}
			}
			// Those that look at the variables have come by them alone.
			if c.proxy != byEnvironment {
				t.Run("forwardproxy-026", func(t *testing.T) { m.caught(t, c) })
			}
		})
	}
	for i := range databaseClients {
		labels[versions] = append(labels[versions], databaseClients[i].label) // TestClientsOfPostgres has these rows
	}
	t.Run("why", m.why)
	t.Run("silence", m.silence)
	for id, rows := range labels {
		m.tables.hasRows(t, id, rows)
	}
	m.tables.save(t)
}

// By a route of layer4, clients of several TLS libraries say the same.
func TestClientsByRoute(t *testing.T) {
	m := newMatrix(t, func(l *lab) *gateway { return l.start(t, config{policy: matrixPolicy, layer4: true}) })
	for i := range clients {
		c := &clients[i]
		if slices.Contains([]string{"curl", "node", "go-pure", "openssl", "gnutls"}, c.name) {
			t.Run(c.name, func(t *testing.T) {
				c.ready(t, m.lab)
				m.try(t, c, overTLS)
			})
		}
	}
}

// try is the row of one client and one way.
func (m *matrix) try(t *testing.T, c *client, w way) {
	m.setResolver(t, w)
	asked, questions := m.g.coredns.log.mark(), len(m.dns.packets(t))
	denied := func(t *testing.T, host, reason, rule string) {
		t.Helper()
		mark := m.g.caddy.log.mark()
		s := m.fails(t, c, w, host, c.refusal(w, reason)...)
		m.g.deniedBy(t, w.layer, mark, host, reason, rule)
		m.compare(t, c, tableOf(w, reason), s)
	}

	t.Run("allowed", func(t *testing.T) { m.works(t, c, w, "api.example.com", "allow api") })
	t.Run("not allowed", func(t *testing.T) { denied(t, "known.example.net", "not_allowed", "") })
	t.Run("denied", func(t *testing.T) { denied(t, "secret.example.org", "denied", "deny  secret") })
	t.Run("private", func(t *testing.T) { denied(t, "private.example.net", "private_address", "allow private") })
	t.Run("port", func(t *testing.T) { denied(t, "odd.example.net", "port_not_allowed", "allow odd") })
	// One is said as the other, so each way has one.
	if w == overTLS || w == byAbsolute {
		t.Run("no address", func(t *testing.T) { denied(t, "nowhere.example.net", "no_address", "allow nowhere") })
	} else {
		t.Run("dial error", func(t *testing.T) { denied(t, "refusing.example.net", "dial_error", "allow refusing") })
	}
	// The questions of the others show that there would be something to see.
	if n := len(m.dns.packets(t)) - questions; (n == 0) != w.told {
		t.Errorf("the client has sent %d packets to nameservers", n)
	}
	if w.told {
		return
	}
	t.Run("no such name", func(t *testing.T) {
		mark := m.g.caddy.log.mark()
		s := m.fails(t, c, w, "denied.example.net", c.noName)
		must(t, 5*time.Second, "CoreDNS logs the denial", func() bool {
			return len(m.g.coredns.log.with(asked, "denied.example.net. NXDOMAIN verdict=deny reason=not_allowed")) > 0
		})
		if ds := m.g.decisions(mark); len(ds) != 0 {
			t.Errorf("a name that does not exist came to the gateway: %+v", ds)
		}
		if w == overTLS { // over HTTP it is the same, but for the URL
			m.compare(t, c, tableNoName, s)
		}
	})
	if w == overTLS {
		t.Run("names below", func(t *testing.T) {
			m.compare(t, c, tableNoAddress, m.fails(t, c, w, "example.com", c.noAddress))
		})
	}
}

// The tables of what a client says.
const (
	tableNoName        = "no-name"
	tableNoAddress     = "no-address"
	tableUnrecognized  = "unrecognized-name"
	tableAccessDenied  = "access-denied"
	tableInternalError = "internal-error"
	tableResponse      = "response"
	tableConnect       = "connect"
)

// tableOf is the table of a denial by the gateway, "" if there is one of another reason that is said alike.
func tableOf(w way, reason string) string {
	switch {
	case w == overTLS && reason == "not_allowed":
		return tableUnrecognized
	case w == overTLS && reason == "private_address":
		return tableAccessDenied
	case w == overTLS && reason == "no_address":
		return tableInternalError
	case w == overHTTP && reason == "not_allowed":
		return tableResponse
	case w == byConnect && reason == "not_allowed":
		return tableConnect
	}
	return ""
}

// inTables are the tables that have a row of the client.
func (c *client) inTables() []string {
	list := []string{versions, tableNoName, tableNoAddress}
	if c.namesOnly {
		return list
	}
	list = append(list, tableUnrecognized, tableAccessDenied, tableInternalError)
	if c.can(overHTTP) {
		list = append(list, tableResponse)
	}
	if c.can(byConnect) {
		list = append(list, tableConnect)
	}
	return list
}

// compare compares what a client says with a table, if the client has a row there.
func (m *matrix) compare(t *testing.T, c *client, id string, s saying) {
	t.Helper()
	if !slices.Contains(c.inTables(), id) {
		return
	}
	var more []string
	if id == tableResponse || id == tableConnect {
		by := c.shownBy
		if id == tableConnect {
			by = c.shownByTunnel
		}
		if by != whyShows && !strings.Contains(s.cell(), "not_allowed") {
			t.Errorf("%s names no reason: who shows it to users of %s?", s.cell(), c.label)
		}
		more = []string{cmp.Or(by, "the client itself")}
	}
	m.tables.compare(t, id, c.label, c, s, more...)
}

// caught is a client that looks at no proxy variable: its question to CoreDNS and its ClientHello lead it.
func (m *matrix) caught(t *testing.T, c *client) {
	m.setResolver(t, byVariables)
	m.works(t, c, byVariables, "api.example.com", "allow api")
	m.fails(t, c, byVariables, "denied.example.net", c.noName)
}

// setResolver gives the sandbox its nameserver; for the proxy none at all, so that nobody else can have resolved.
func (m *matrix) setResolver(t *testing.T, w way) {
	t.Helper()
	conf := "nameserver " + gatewayAddr.String() + "\n"
	if w.told {
		conf = "# none, and none on this host\n"
	}
	if err := m.sandbox.etc("resolv.conf", conf); err != nil {
		t.Fatal(err)
	}
}

// works fails the test unless the client gets the page of a host, by a decision of the way's layer.
func (m *matrix) works(t *testing.T, c *client, w way, host, rule string) {
	t.Helper()
	mark := m.g.caddy.log.mark()
	out, err := c.fetch(m.lab, w, host)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, page(host)) {
		t.Errorf("got %q, want %q in it", out, page(host))
	}
	upstream := netip.AddrPortFrom(m.servers[host][0].addr.Addr(), w.port()).String()
	allowed := m.g.decidedEach(t, w.layer, mark, msgAllowed, host)
	for _, d := range allowed {
		if want := m.g.line(rule); d.Rule != want || d.Policy != "default" || d.Port != w.port() || d.Upstream != upstream {
			t.Errorf("decision %+v, want rule %q of policy default, port %d, upstream %s", d, want, w.port(), upstream)
		}
	}
	var received, sent int64
	must(t, 5*time.Second, "the end of each is logged", func() bool {
		closed := m.g.decidedEach(t, w.layer, mark, msgClosed, host)
		received, sent = 0, 0
		for _, d := range closed {
			received, sent = received+d.BytesIn, sent+d.BytesOut
		}
		return len(closed) == len(allowed)
	})
	// Of a tunnel all that the client sends, of a request the body: only git has one.
	if sent < int64(len(page(host))) || (received > 0) != (w.scheme != "http" || c.name == "git") {
		t.Errorf("%d bytes in, %d out", received, sent)
	}
}

// fails fails the test unless the client fails, and says all of some texts. It returns how it says it.
func (m *matrix) fails(t *testing.T, c *client, w way, host string, says ...string) saying {
	t.Helper()
	start := time.Now()
	out, err := c.fetch(m.lab, w, host)
	if err == nil {
		t.Fatalf("%s: got %q, want a failure", host, out)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("%s: failed after %s only", host, d)
	}
	s, missing := sayingOf(said(err), host, says)
	for _, text := range missing {
		t.Errorf("%s: the client says\n%v\nwant %q in it", host, err, text)
	}
	return s
}

// silence fails the test if a name that is denied was asked for or connected to.
func (m *matrix) silence(t *testing.T) {
	for _, s := range m.servers["private.example.net"] {
		if n := s.accepted.Load(); n != 0 {
			t.Errorf("%d connections to %s", n, s.addr)
		}
		c, err := m.gateway.dial("tcp", s.addr)
		if err != nil {
			t.Errorf("the gateway could not have reached %s at all: %v", s.addr, err)
			continue
		}
		_ = c.Close()
	}
	for _, name := range []string{"denied.example.net", "known.example.net", "secret.example.org", "odd.example.net"} {
		if n := m.internet.dns.questions(name); n != 0 {
			t.Errorf("%s is denied, and the gateway asked for it %d times", name, n)
		}
	}
}

// why is what docs/what-clients-say.md has a program ask: the name server tells the reason of what the policy
// denies, the forward proxy that of the rest, and the gateway what the policy is.
func (m *matrix) why(t *testing.T) {
	need(t, "curl")
	m.setResolver(t, overTLS)
	for _, w := range []way{overTLS, overHTTP} {
		for name, want := range map[string][]string{
			"known.example.net":    {"verdict=deny", "reason=not_allowed", "policy=default", "hint=allow known.example.net"},
			"secret.example.org":   {"verdict=deny", "reason=denied", "policy=default", "rule=deny secret.example.org"},
			"odd.example.net":      {"verdict=deny", "reason=port_not_allowed", "policy=default", "rule=allow odd.example.net:8443"},
			"private.example.net":  {"verdict=allow", "policy=default", "rule=allow private.example.net"},
			"refusing.example.net": {"verdict=allow", "policy=default", "rule=allow refusing.example.net"},
		} {
			r := m.g.ask(t, fmt.Sprintf("_%d.%s.why.sandboxallow", w.port(), name), dns.TypeTXT)
			if len(r.Answer) != 1 {
				t.Errorf("why %s, port %d: %v", name, w.port(), r)
				continue
			}
			if got := r.Answer[0].(*dns.TXT).Txt; !slices.Equal(got[:min(len(got), len(want))], want) {
				t.Errorf("why %s, port %d: %q, want %q", name, w.port(), got, want)
			}
		}
	}
	for name, reason := range map[string]string{
		"private.example.net":  "private_address",
		"nowhere.example.net":  "no_address",
		"refusing.example.net": "dial_error",
	} {
		out, err := m.curl("https://"+name+"/", "--include", "--proxy", proxyURL)
		if err == nil || !strings.Contains(out, "\r\nX-Sandboxallow-Reason: "+reason+"\r\n") {
			t.Errorf("why %s: %q, %v, want %s", name, out, err, reason)
		}
	}
	out, err := m.curl("http://" + gatewayAddr.String() + "/")
	if err != nil || !strings.Contains(out, "your policy   default, mode strict") || !strings.Contains(out, "\n    api.example.com\n") {
		t.Errorf("%q, %v, want what the policy is", out, err)
	}
}

// Over IPv6 as over IPv4, on both sides of the gateway.
func TestIPv6(t *testing.T) {
	need(t, "curl")
	l := newLab(t)
	g := l.start(t, config{policy: "policy default {\n\tallow six.example.org\n}\n"})
	s, err := l.internet.host("six.example.org", webAddr6)
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range []string{"-4", "-6"} {
		mark := g.caddy.log.mark()
		out, err := l.curl("https://six.example.org/", family)
		if err != nil || out != page("six.example.org") {
			t.Errorf("curl %s: %q, %v", family, out, err)
		}
		d := g.decided(t, mark, msgAllowed, "six.example.org")
		if want := map[string]netip.Addr{"-4": sandboxAddr, "-6": sandboxAddr6}[family]; d.Client != want {
			t.Errorf("curl %s: client %s, want %s", family, d.Client, want)
		}
		if d.Upstream != s.addr.String() {
			t.Errorf("curl %s: upstream %s, want %s", family, d.Upstream, s.addr)
		}
	}
}

// A large answer arrives complete.
func TestDownload(t *testing.T) {
	need(t, "curl", "wget")
	const size = 128 << 20
	l := newLab(t)
	l.start(t, config{policy: "policy default {\n\tallow big.example.com\n}\n"})
	if _, err := l.internet.host("big.example.com", webAddr); err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("https://big.example.com/data?size=%d", size)
	want := sum(size)
	file := filepath.Join(l.dir, "big")
	for name, download := range map[string]func() (string, error){
		"curl": func() (string, error) { return l.curl(url, "--output", file) },
		"wget": func() (string, error) {
			return l.run("wget", "--no-verbose", "--tries=1", "--ca-certificate="+l.ca.file, "--output-document", file, url)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := download(); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got := sha256.Sum256(b); hex.EncodeToString(got[:]) != want {
				t.Errorf("%d octets with another hash, want %d", len(b), size)
			}
		})
	}
}

// Node has two resolvers, and its fetch tries one address family after the other.
func TestNode(t *testing.T) {
	need(t, "node")
	l := newLab(t)
	l.start(t, config{policy: "policy default {\n\tallow api.example.com\n}\n", ipv4Only: true})
	if _, err := l.internet.host("api.example.com", webAddr); err != nil {
		t.Fatal(err)
	}
	type answers struct{ Lookup, Resolve4, Resolve6 any }
	resolve := func(t *testing.T, name string) (a answers) {
		out, err := l.run("node", testdata("resolve.mjs"), name)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(out), &a); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		return a
	}
	only := func(v any) bool {
		list, ok := v.([]any)
		return ok && len(list) == 1 && list[0] == gatewayAddr.String()
	}

	t.Run("dns-060", func(t *testing.T) {
		a := resolve(t, "api.example.com")
		if !only(a.Lookup) || !only(a.Resolve4) || a.Resolve6 != "ENODATA" {
			t.Errorf("allowed name: %+v, want the gateway, the gateway, ENODATA", a)
		}
		a = resolve(t, "denied.example.net")
		if a.Lookup != "ENOTFOUND" || a.Resolve4 != "ENOTFOUND" || a.Resolve6 != "ENOTFOUND" {
			t.Errorf("denied name: %+v, want ENOTFOUND each time", a)
		}
	})
	t.Run("dns-061", func(t *testing.T) {
		// What fetch connects to are the addresses of lookup: a single one leaves no dead family to try.
		sandbox := newTap(t, l.sandbox, func(p packet) bool { return p.out && p.syn })
		out, err := l.run("env", "NODE_EXTRA_CA_CERTS="+l.ca.file, "node", testdata("fetch.mjs"), "https://api.example.com/")
		if err != nil || out != page("api.example.com") {
			t.Fatalf("%q, %v", out, err)
		}
		syns := sandbox.packets(t)
		if len(syns) != 1 || syns[0].to != gatewayAddr {
			t.Errorf("connections %+v, want one, to %s", syns, gatewayAddr)
		}
	})
}
