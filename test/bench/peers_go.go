package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/miekg/dns"
)

// direct is no server at all: the client connects to the upstream. What it reaches is the most that client,
// upstream and machine are good for.
func direct(l *lab, name string) peer {
	return peer{name: name, setUp: "no server between client and upstream", start: func(context.Context) (*server, error) {
		return &server{addr: l.upstream.addr}, nil
	}}
}

// directWeb is the same for plain HTTP.
func directWeb(l *lab, name string) peer {
	p := direct(l, name)
	p.start = func(context.Context) (*server, error) { return &server{addr: l.upstream.web}, nil }
	return p
}

// way is how clients reach our gateway.
type way int

const (
	byDNS      way = iota // a TLS connection, where DNS has sent them
	byPostgres            // the same, asked for as PostgreSQL does
	byHTTP                // an HTTP request, where DNS has sent them
	byCONNECT             // a tunnel of the forward proxy
	byProxy               // an HTTP request to the forward proxy
)

// gateway is our Caddy.
func gateway(l *lab, name string, w way) peer {
	setUp := fmt.Sprintf("a list of %s rules, resolver, decision log: sandboxallow.Caddyfile", count(gatewayRules))
	return peer{name: name, setUp: setUp, ours: true, start: func(ctx context.Context) (*server, error) {
		program, err := l.makeOurs(ctx, "caddy")
		if err != nil {
			return nil, err
		}
		s, err := l.newSetting(name, gatewayRules)
		if err != nil {
			return nil, err
		}
		if err := s.policy(gatewayLines(s)...); err != nil {
			return nil, err
		}
		server, err := s.startCaddy(program, "sandboxallow.Caddyfile")
		if err != nil {
			return nil, err
		}
		server.policy = s
		switch w {
		case byPostgres:
			server.addr, server.postgres = s.Postgres, true
		case byHTTP:
			server.addr = s.HTTP
			return server, l.proveWeb(ctx, server)
		case byCONNECT:
			server.addr, server.proxyTo = s.Proxy, s.Upstream.Port()
		case byProxy:
			server.addr, server.proxyTo = s.Proxy, s.Web.Port()
			return server, l.proveWeb(ctx, server)
		}
		return server, l.proveResolving(ctx, server)
	}}
}

// gatewayLines are those of the gateway's policy besides the list.
func gatewayLines(s *setting) []string {
	return []string{
		fmt.Sprintf("ports %d %d", s.Upstream.Port(), s.Web.Port()),
		fmt.Sprintf("private %v/32", s.Upstream.Addr()),
	}
}

// startCaddy starts a Caddy with the configuration of that name.
func (s *setting) startCaddy(program, configuration string) (*server, error) {
	v, err := version(program, "version")
	if err != nil {
		return nil, err
	}
	v, _, _ = strings.Cut(v, " h1:")
	path, err := s.write(configuration)
	if err != nil {
		return nil, err
	}
	p, err := startProcess(s.Dir, program, "run", "--config", path, "--adapter", "caddyfile")
	if err != nil {
		return nil, err
	}
	return &server{version: v, process: p, addr: s.Addr}, nil
}

// caddyL4 is stock Caddy with caddy-l4.
func caddyL4(l *lab, name string) peer {
	return l.stockCaddy(name, "stock; two wildcards instead of the rules, a fixed address instead of a resolver, no log",
		"caddy-l4.Caddyfile", l.proveGateway)
}

// reverseProxy is the same Caddy with its own handler of that name.
func reverseProxy(l *lab, name string) peer {
	return l.stockCaddy(name, "stock; two wildcards instead of the rules, a fixed address instead of a resolver, access log",
		"reverse-proxy.Caddyfile", l.proveWeb)
}

func (l *lab) stockCaddy(name, setUp, configuration string, prove func(context.Context, *server) error) peer {
	return peer{name: name, setUp: setUp + ": " + configuration, start: func(ctx context.Context) (*server, error) {
		s, err := l.newSetting(name, 0)
		if err != nil {
			return nil, err
		}
		source := filepath.Join(s.Dir, "main.go")
		if err := os.WriteFile(source, []byte(`package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	_ "github.com/mholt/caddy-l4"
)

func main() { caddycmd.Main() }
`), 0o600); err != nil {
			return nil, err
		}
		program, err := l.buildStock(ctx, "caddy", "nobadger,nomysql,nopgx", source)
		if err != nil {
			return nil, err
		}
		server, err := s.startCaddy(program, configuration)
		if err != nil {
			return nil, err
		}
		if v, err := l.moduleVersion(ctx, "github.com/mholt/caddy-l4"); err == nil {
			server.version += ", caddy-l4 " + v
		}
		return server, prove(ctx, server)
	}}
}

// moduleVersion returns the version of a module in our go.mod.
func (l *lab) moduleVersion(ctx context.Context, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", module)
	cmd.Dir = l.root
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// coredns is our CoreDNS with a policy of so many rules.
func coredns(l *lab, name string, rules int) peer {
	return peer{name: name, setUp: "a list of the rules: sandboxallow.Corefile", ours: true, start: func(ctx context.Context) (*server, error) {
		program, err := l.makeOurs(ctx, "coredns")
		if err != nil {
			return nil, err
		}
		return l.startCoreDNS(ctx, name, program, "sandboxallow.Corefile", rules, nil)
	}}
}

// whoami is stock CoreDNS with the plugin that does least.
func whoami(l *lab, name string, rules int) peer {
	return l.stockCoreDNS(name, "stock, the plugin whoami alone", "whoami.Corefile", rules,
		func(q questions) { q.expectAll(header{}) }) // NOERROR; the address is in the additional section
}

// templates is stock CoreDNS with a template for each rule.
func templates(l *lab, name string, rules int) peer {
	return l.stockCoreDNS(name, "stock, a template with a regular expression for each rule", "template.Corefile", rules,
		func(q questions) { q.expectDenied(header{rcode: dns.RcodeServerFailure}) })
}

func (l *lab) stockCoreDNS(name, setUp, configuration string, rules int, expect func(questions)) peer {
	return peer{name: name, setUp: setUp + ": " + configuration, start: func(ctx context.Context) (*server, error) {
		program, err := l.buildStock(ctx, "coredns", "grpcnotrace", "github.com/coredns/coredns")
		if err != nil {
			return nil, err
		}
		return l.startCoreDNS(ctx, name, program, configuration, rules, expect)
	}}
}

// startCoreDNS starts a CoreDNS with the configuration of that name.
func (l *lab) startCoreDNS(ctx context.Context, name, program, configuration string, rules int, expect func(questions)) (*server, error) {
	s, err := l.newSetting(name, rules)
	if err != nil {
		return nil, err
	}
	if err := s.policy(); err != nil {
		return nil, err
	}
	path, err := s.write(configuration)
	if err != nil {
		return nil, err
	}
	server := &server{addr: s.Addr}
	if server.version, err = version(program, "-version"); err != nil {
		return nil, err
	}
	if server.process, err = startProcess(s.Dir, program, "-conf", path); err != nil {
		return nil, err
	}
	return server, proveDNS(rules, expect)(ctx, server)
}
