//go:build linux

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// config is how a gateway is set up. The zero value has no policy; what is not set is as in the product.
type config struct {
	policy  string // the document
	options string // further lines of the global option of the Caddyfile
	listen  string // where TLS is accepted; by default port 443 of all addresses
	handler string // lines of what decides on it
	layer4  bool   // by a route of layer4, in place of the option of the app
	http    string // further lines of the handler on port 80
	proxy   string // further lines of the forward proxy on port 8080
	tlsOnly bool   // neither of these two
	global  string // further global options of the Caddyfile
	sites   string // further sites
	plugin  string // further lines of the plugin

	postgres bool     // a listener for PostgreSQL too
	ipv4Only bool     // CoreDNS answers no AAAA
	env      []string // of caddy
	files    int      // limit of open descriptors of caddy; 0: as inherited
}

// gateway is the product, running.
type gateway struct {
	lab        *lab
	dir        string
	policyFile string
	document   string // what is in it

	coredns *process
	caddy   *process
}

const (
	metricsAddr  = "127.0.0.1:9153" // CoreDNS's, in the gateway
	adminSocket  = "admin.sock"     // Caddy's
	startTimeout = 30 * time.Second
)

// byEachWay runs a test where the app accepts TLS by itself, and where a route of layer4 does.
func byEachWay(t *testing.T, test func(t *testing.T, c config)) {
	t.Run("listen", func(t *testing.T) { test(t, config{}) })
	t.Run("layer4", func(t *testing.T) { test(t, config{layer4: true}) })
}

// start runs the product with a configuration for the time of a test, and waits until it serves.
func (l *lab) start(tb testing.TB, c config) *gateway {
	tb.Helper()
	g := l.prepare(tb, c)
	g.run(tb, c)
	return g
}

// run starts both processes of a gateway whose files are there, and waits until they serve.
func (g *gateway) run(tb testing.TB, c config) {
	tb.Helper()
	g.coredns = g.startCoreDNS(tb, nil)
	g.caddy = g.startCaddy(tb, c)
	g.ready(tb)
}

// startExamples runs the product as Corefile.example and Caddyfile.example set it up.
func (l *lab) startExamples(tb testing.TB, document string) *gateway {
	tb.Helper()
	g := l.prepare(tb, config{policy: document})
	for to, from := range map[string]string{"Corefile": "Corefile.example", "Caddyfile": "Caddyfile.example"} {
		b, err := os.ReadFile(filepath.Join("..", "..", from))
		if err != nil {
			tb.Fatal(err)
		}
		g.write(tb, to, string(b))
	}
	env := []string{
		"SANDBOXALLOW_DNS_ADDR=" + gatewayAddr.String(),
		"SANDBOXALLOW_DNS_PORT=53",
		"SANDBOXALLOW_GATEWAY=" + gatewayAddr.String(),
		"SANDBOXALLOW_TLS_LISTEN=:443",
		"SANDBOXALLOW_HTTP_LISTEN=http://:80",
		"SANDBOXALLOW_PROXY_LISTEN=http://:8080",
		"SANDBOXALLOW_HTTP_BIND=::",
		"SANDBOXALLOW_ADMIN=unix/" + g.path(adminSocket),
		"SANDBOXALLOW_POLICY=" + g.policyFile,
	}
	g.coredns = g.startCoreDNS(tb, env)
	g.caddy = g.startCaddy(tb, config{env: env})
	g.ready(tb)
	return g
}

// prepare writes the files of a gateway and starts nothing.
func (l *lab) prepare(tb testing.TB, c config) *gateway {
	tb.Helper()
	dir, err := os.MkdirTemp(l.dir, "gw")
	if err != nil {
		tb.Fatal(err)
	}
	g := &gateway{lab: l, dir: dir, policyFile: filepath.Join(dir, "policy")}
	answer := gatewayAddr.String()
	if !c.ipv4Only {
		answer += " " + gatewayAddr6.String()
	}
	if c.listen == "" {
		c.listen = ":443"
	}
	g.setPolicy(tb, c.policy)
	g.write(tb, "Corefile", fmt.Sprintf(`.:53 {
	bind %s %s
	sandboxallow {
		answer %s
		policy_file %s
		%s
	}
	metadata
	log . "{type} {name} {rcode} verdict={/sandboxallow/verdict} reason={/sandboxallow/reason} rule={/sandboxallow/rule}"
	errors
	prometheus %s
}
`, gatewayAddr, gatewayAddr6, answer, g.policyFile, c.plugin, metricsAddr))
	listen := fmt.Sprintf("listen %s {\n\t\t\t%s\n\t\t}", c.listen, c.handler)
	var routes []string
	if c.layer4 {
		listen = ""
		routes = append(routes, layer4Route(c.listen, "sandboxallow", c.handler))
	}
	if c.postgres {
		routes = append(routes, layer4Route(fmt.Sprintf(":%d", dbPort), "sandboxallow postgres", ""))
	}
	if len(routes) > 0 {
		c.global += "\n" + layer4(routes...)
	}
	caddyfile := fmt.Sprintf(`{
	admin unix/%s
	%s
	sandboxallow {
		policy_file %s
		%s
		%s
	}
}
`, g.path(adminSocket), c.global, g.policyFile, listen, c.options)
	if !c.tlsOnly {
		caddyfile += fmt.Sprintf(`http://:80 {
	sandboxallow {
		%s
	}
}
http://:8080 {
	sandboxallow forward_proxy {
		%s
	}
}
`, c.http, c.proxy)
	}
	g.write(tb, "Caddyfile", caddyfile+c.sites)
	return g
}

// layer4 is the global option of a Caddyfile for the layer4 app.
func layer4(servers ...string) string { return "\tlayer4 {\n" + strings.Join(servers, "") + "\t}\n" }

// layer4Route is a server in it, with one route without matchers, and lines for its handler.
func layer4Route(listen, handler, lines string) string {
	return fmt.Sprintf("\t\t%s {\n\t\t\troute {\n\t\t\t\t%s {\n\t\t\t\t\t%s\n\t\t\t\t}\n\t\t\t}\n\t\t}\n", listen, handler, lines)
}

func (g *gateway) startCoreDNS(tb testing.TB, env []string) *process {
	tb.Helper()
	return spawn(tb, g.lab.gateway, env, filepath.Join(built.dir(tb), "coredns"), "-conf", g.path("Corefile"))
}

func (g *gateway) startCaddy(tb testing.TB, c config) *process {
	tb.Helper()
	env := append([]string{"HOME=" + g.dir, "XDG_DATA_HOME=" + g.dir, "XDG_CONFIG_HOME=" + g.dir}, c.env...)
	args := []string{filepath.Join(built.dir(tb), "caddy"), "run", "--adapter", "caddyfile", "--config", g.path("Caddyfile")}
	if c.files != 0 {
		args = append([]string{"prlimit", fmt.Sprintf("--nofile=%d:%d", c.files, c.files)}, args...)
	}
	p := spawn(tb, g.lab.gateway, env, args...)
	p.name = "caddy"
	return p
}

// ready waits until both processes serve.
func (g *gateway) ready(tb testing.TB) {
	tb.Helper()
	// What each of them logs once its listeners are open.
	for p, line := range map[*process]string{g.coredns: "CoreDNS-", g.caddy: "serving initial configuration"} {
		must(tb, startTimeout, p.name+" serves", func() bool {
			return !p.running() || len(p.log.with(0, line)) > 0
		})
		if !p.running() {
			tb.Fatalf("%s ended: %v", p.name, p.err)
		}
	}
}

// path is the path of a file of the gateway's.
func (g *gateway) path(name string) string { return filepath.Join(g.dir, name) }

// write replaces a file of the gateway's by renaming a complete one over it.
func (g *gateway) write(tb testing.TB, name, content string) {
	tb.Helper()
	tmp := g.path(name + ".tmp")
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(tmp, g.path(name)); err != nil {
		tb.Fatal(err)
	}
}

// read returns a file of the gateway's.
func (g *gateway) read(tb testing.TB, name string) string {
	tb.Helper()
	b, err := os.ReadFile(g.path(name))
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

// setPolicy replaces the policy document by rename.
func (g *gateway) setPolicy(tb testing.TB, document string) {
	tb.Helper()
	g.document = document
	g.write(tb, "policy", document)
}

// inForce waits until both processes have the document that setPolicy wrote last.
func (g *gateway) inForce(tb testing.TB) {
	tb.Helper()
	set, err := policy.Load(policy.Source{File: g.policyFile})
	if err != nil {
		tb.Fatal(err)
	}
	for _, prefix := range []string{"coredns", "caddy"} {
		must(tb, 5*time.Second, prefix+" has the new policy in force", func() bool { return g.hash(tb, prefix) == set.Hash() })
	}
}

// ask asks CoreDNS from the sandbox, as the stub resolver of a client does.
func (g *gateway) ask(tb testing.TB, name string, qtype uint16) *dns.Msg {
	tb.Helper()
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
	r, err := exchange(g.lab.sandbox, netip.AddrPortFrom(gatewayAddr, 53), m)
	if err != nil {
		tb.Fatalf("%s %s: %v", name, dns.TypeToString[qtype], err)
	}
	return r
}

// exchange asks a DNS server once, from a namespace, over UDP.
func exchange(n *namespace, server netip.AddrPort, m *dns.Msg) (*dns.Msg, error) {
	c, err := n.dial("udp", server)
	if err != nil {
		return nil, err
	}
	return exchangeOver(c, m)
}

// exchangeOver asks over a connection, and closes it.
func exchangeOver(c net.Conn, m *dns.Msg) (*dns.Msg, error) {
	defer c.Close()
	co := &dns.Conn{Conn: c}
	_ = co.SetDeadline(time.Now().Add(2 * time.Second))
	if err := co.WriteMsg(m); err != nil {
		return nil, err
	}
	return co.ReadMsg()
}

// knows reports whether CoreDNS steers a name to the gateway.
func (g *gateway) knows(tb testing.TB, name string) bool {
	tb.Helper()
	r := g.ask(tb, name, dns.TypeA)
	return r.Rcode == dns.RcodeSuccess && len(r.Answer) == 1
}
