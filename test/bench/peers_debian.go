package main

import (
	"context"
	"fmt"
	"os"
)

// debian is a peer that Debian packages: with which configuration of the folder peers it runs, with how many rules,
// and with which arguments. prepare writes what else it needs, and ready waits until it does its job.
func (l *lab) debian(name, setUp string, p program, configuration string, rules int,
	arguments func(s *setting, path string) []string, prepare func(*setting) error, ready func(context.Context, *server) error) peer {
	return peer{name: name, setUp: setUp + ": " + configuration, start: func(ctx context.Context) (*server, error) {
		path, err := p.find()
		if err != nil {
			return nil, err
		}
		s, err := l.newSetting(name, rules)
		if err != nil {
			return nil, err
		}
		if prepare != nil {
			if err := prepare(s); err != nil {
				return nil, err
			}
		}
		conf, err := s.write(configuration)
		if err != nil {
			return nil, err
		}
		server := &server{addr: s.Addr}
		if server.version, err = p.version(path); err != nil {
			return nil, err
		}
		if server.process, err = startProcess(s.Dir, path, arguments(s, conf)...); err != nil {
			return nil, err
		}
		return server, ready(ctx, server)
	}}
}

func nginx(l *lab, name string) peer {
	return l.debian(name, "a map of the rules, resolver, access log, a worker for each core", nginxProgram, "nginx.conf", gatewayRules,
		func(s *setting, path string) []string {
			return []string{"-e", s.Dir + "/error.log", "-p", s.Dir, "-c", path}
		},
		nil, l.proveResolving)
}

func haproxy(l *lab, name string) peer {
	return l.debian(name, "lists of the rules, resolver, log, two threads, splice-auto", haproxyProgram, "haproxy.cfg", gatewayRules,
		func(_ *setting, path string) []string { return []string{"-db", "-f", path} },
		func(s *setting) error {
			if err := s.list("names", func(r rule) string {
				if r.Zone {
					return ""
				}
				return r.Name
			}); err != nil {
				return err
			}
			return s.list("zones", func(r rule) string {
				if r.Zone {
					return r.suffix()
				}
				return ""
			})
		}, l.proveResolving)
}

func sniproxy(l *lab, name string) peer {
	return l.debian(name, "two regular expressions instead of the rules, resolver, access log", sniproxyProgram, "sniproxy.conf", gatewayRules,
		func(s *setting, path string) []string {
			return []string{"-f", "-n", fmt.Sprint(s.Descriptors), "-c", path}
		},
		func(*setting) error { return l.zone.need53() }, l.proveResolving)
}

// squid serves requests byProxy and tunnels byCONNECT.
func squid(l *lab, name string, w way) peer {
	return l.debian(name, "a list of the rules, resolver, access log, no cache", squidProgram, "squid.conf", gatewayRules,
		func(_ *setting, path string) []string { return []string{"-N", "-f", path} },
		func(s *setting) error {
			if err := l.zone.need53(); err != nil {
				return err
			}
			if err := s.list("squid.rules", rule.suffix); err != nil || os.Geteuid() != 0 {
				return err
			}
			return s.giveTo("proxy") // which squid becomes
		},
		func(ctx context.Context, s *server) error {
			if w == byCONNECT {
				s.proxyTo = l.upstream.addr.Port()
				return l.proveResolving(ctx, s)
			}
			s.proxyTo = l.upstream.web.Port()
			return l.proveWeb(ctx, s)
		})
}

func dnsmasq(l *lab, name string, rules int) peer {
	return l.debian(name, "an address for each rule", dnsmasqProgram, "dnsmasq.conf", rules,
		func(_ *setting, path string) []string { return []string{"-C", path} }, nil, proveDNS(rules, nil))
}

func unbound(l *lab, name string, rules int) peer {
	return l.debian(name, "a local zone for each rule, two threads", unboundProgram, "unbound.conf", rules,
		func(_ *setting, path string) []string { return []string{"-d", "-c", path} }, nil, proveDNS(rules, nil))
}

// need53 is an error if the zone cannot be asked on port 53.
func (z *zone) need53() error {
	if z.err53 != nil {
		return fmt.Errorf("it asks resolvers on port 53 only, and the bench cannot be one: %w", z.err53)
	}
	return nil
}
