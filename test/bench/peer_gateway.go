package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// gateway is our Caddy with a policy, a resolver and the decision log on.
func gateway(l *lab, name string, how service) peer {
	setUp := fmt.Sprintf("a list of %s rules, resolver, decision log to a file (two lines a tunnel)", count(gatewayRules))
	return peer{name: name, setUp: setUp, ours: true, start: func(ctx context.Context) (*server, error) {
		program, err := l.makeOurs(ctx, "caddy")
		if err != nil {
			return nil, err
		}
		dir, err := l.folder(name)
		if err != nil {
			return nil, err
		}
		policy, err := writePolicy(dir, gatewayRules,
			fmt.Sprintf("ports %d", l.upstream.addr.Port()),
			fmt.Sprintf("private %v/32", l.upstream.addr.Addr()))
		if err != nil {
			return nil, err
		}
		addr, err := freePort()
		if err != nil {
			return nil, err
		}
		port := l.upstream.addr.Port()
		s, err := l.startCaddy(dir, program, fmt.Sprintf(`{
	admin off
	log default {
		output  stderr
		exclude sandboxallow
	}
	log decisions {
		output  file %[1]s
		format  json
		include sandboxallow
	}
	sandboxallow {
		policy_file %[2]s
		resolvers   %[3]v
	}
%[4]s`, filepath.Join(dir, "decisions.log"), policy, l.zone.addr, how.caddyfile(addr, port)))
		if err != nil {
			return nil, err
		}
		switch how {
		case proxyService:
			s.before = connect(port)
		case postgresService:
			s.before = askTLS
		}
		s.addr = addr
		if err := s.process.awaitTCP(ctx, addr.String()); err != nil {
			return s, err
		}
		return s, l.proveGateway(s, true)
	}}
}

// service is what a gateway is there for.
type service int

const (
	tlsService      service = iota // TLS, of clients that DNS sends
	proxyService                   // a forward proxy
	postgresService                // PostgreSQL, of clients that DNS sends
)

// caddyfile is the end of the Caddyfile: what listens on an address and connects to a port.
func (s service) caddyfile(addr netip.AddrPort, port uint16) string {
	if s == proxyService {
		return fmt.Sprintf(`}
http://:%d {
	bind %v
	sandboxallow forward_proxy
}
`, addr.Port(), addr.Addr())
	}
	handler := "sandboxallow"
	if s == postgresService {
		handler += " postgres"
	}
	return fmt.Sprintf(`	layer4 {
		%v {
			route {
				%s {
					upstream_port %d
				}
			}
		}
	}
}
`, addr, handler, port)
}

// startCaddy starts a Caddy with a Caddyfile.
func (l *lab) startCaddy(dir, program, caddyfile string) (*server, error) {
	v, err := version(program, "version")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(path, []byte(caddyfile), 0o600); err != nil {
		return nil, err
	}
	p, err := startProcess(dir, program, "run", "--config", path, "--adapter", "caddyfile")
	if err != nil {
		return nil, err
	}
	return &server{version: v, process: p}, nil
}
