package caddymodule

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/caddyserver/caddy/v2/modules/caddytls"
	"github.com/caddyserver/certmagic"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// sites are the names that sites of a configuration broker: for which TLS ends at the gateway.
type sites struct {
	names    map[policy.Name][]uint16 // with the ports of their sites
	patterns []pattern
}

// pattern is a host with wildcards, each of which stands for one label, as Caddy reads it.
type pattern struct {
	labels []string
	port   uint16
	except []policy.Name
}

func (p *pattern) matches(n policy.Name) bool {
	rest, more := n.String(), true
	for _, want := range p.labels {
		var label string
		if label, rest, more = strings.Cut(rest, "."); want != "*" && want != label || label == "" {
			return false
		}
	}
	return !more && !slices.Contains(p.except, n)
}

// brokering says what a name on a port is to the sites that broker.
type brokering uint8

const (
	notBrokered     brokering = iota // no site brokers the name
	brokeredHere                     // a site brokers the name on the port
	brokeredOnOther                  // a site brokers the name, but on other ports
)

func (s *sites) brokering(n policy.Name, port uint16) brokering {
	found := notBrokered
	note := func(on uint16) {
		if on == port {
			found = brokeredHere
		} else if found == notBrokered {
			found = brokeredOnOther
		}
	}
	for _, on := range s.names[n] {
		note(on)
	}
	for i := range s.patterns {
		if p := &s.patterns[i]; p.matches(n) {
			note(p.port)
		}
	}
	return found
}

// brokers reports whether a certificate for the subject, a name or a wildcard, is one that a site needs.
func (s *sites) brokers(subject string) bool {
	if n, err := policy.ParseName(subject); err == nil {
		return s.brokering(n, 0) != notBrokered
	}
	return slices.ContainsFunc(s.patterns, func(p pattern) bool { return strings.Join(p.labels, ".") == subject })
}

// brokering says what a name on a port is to the sites of this configuration. Whoever lets a name through asks
// first: what a site brokers gets through that site or not at all.
func (a *App) brokering(n policy.Name, port uint16) brokering {
	s, err := a.sites()
	if err != nil {
		return brokeredOnOther // Start fails with the same error
	}
	return s.brokering(n, port)
}

// findSites finds what the sites of the http app broker. A handler may be asked before the last app is started, but
// never before all are provisioned, and then the routes are known: there is no moment in which a name that a site
// brokers goes by it.
func (a *App) findSites() (*sites, error) {
	f := siteFinder{app: a, sites: &sites{names: make(map[policy.Name][]uint16)}}
	mod, err := a.ctx.AppIfConfigured("http")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return f.sites, nil
	}
	if err != nil {
		return nil, err
	}
	web := mod.(*caddyhttp.App)
	f.httpPort = uint16(web.HTTPPort)
	if f.httpPort == 0 {
		f.httpPort = caddyhttp.DefaultHTTPPort
	}
	for _, name := range slices.Sorted(maps.Keys(web.Servers)) {
		if err := f.server(web.Servers[name]); err != nil {
			return nil, fmt.Errorf("server %s: %w", name, err)
		}
	}
	return f.sites, nil
}

// warnOfSites warns about sites that nobody can get to.
func (a *App) warnOfSites() {
	if s, err := a.sites(); err == nil && len(s.names)+len(s.patterns) > 0 && a.feeders == 0 {
		a.log.Warn("nothing leads to the sites with `sandboxallow broker`: the sandboxallow app needs `listen :443`")
	}
}

// siteFinder walks over the routes of servers.
type siteFinder struct {
	*sites
	app      *App
	httpPort uint16
}

func (f *siteFinder) server(srv *caddyhttp.Server) error {
	ports, elsewhere, err := listens(srv)
	if err != nil {
		return err
	}
	for i := range srv.Routes {
		route := &srv.Routes[i]
		w := siteWalk{named: srv.NamedRoutes}
		if err := w.handlers(route.Handlers); err != nil {
			return err
		}
		hosts, all := hostsOfAll(route.MatcherSets)
		switch {
		case len(w.brokers) == 0 && (len(ports) == 0 || redirects(route)):
		case len(w.brokers) == 0:
			return fmt.Errorf("the site %s is bound to %s and lacks `sandboxallow broker`", strings.Join(hosts, " "), brokerAddress)
		case len(elsewhere) > 0 || len(ports) == 0:
			return fmt.Errorf("a site with `sandboxallow broker` listens on %s, accepted is `bind %s` alone",
				strings.Join(elsewhere, " "), brokerAddress)
		case len(srv.TLSConnPolicies) == 0 || slices.Contains(ports, f.httpPort):
			return errors.New("a site with `sandboxallow broker` has no TLS, accepted are sites such as https://api.example.com")
		case !all || len(hosts) == 0:
			return errors.New("a site with `sandboxallow broker` is for any host, accepted are sites such as https://api.example.com")
		default:
			if err := f.site(srv, hosts, ports, w.brokers); err != nil {
				return err
			}
		}
	}
	return nil
}

// listens returns the ports on which a server listens in our network, and what else it listens on.
func listens(srv *caddyhttp.Server) (ports []uint16, elsewhere []string, err error) {
	for _, s := range srv.Listen {
		na, err := caddy.ParseNetworkAddress(s)
		if err != nil {
			return nil, nil, err
		}
		if na.Network != brokerNetwork {
			elsewhere = append(elsewhere, s)
			continue
		}
		if na.Host != brokerHost {
			return nil, nil, fmt.Errorf("%s: accepted is %s", s, brokerAddress)
		}
		for port := na.StartPort; port <= na.EndPort; port++ {
			ports = append(ports, uint16(port))
		}
	}
	return ports, elsewhere, nil
}

// redirects reports whether a route is one that Caddy adds by itself, to send clients of http on to https.
func redirects(route *caddyhttp.Route) bool {
	for _, h := range route.Handlers {
		if _, ok := h.(caddyhttp.StaticResponse); !ok {
			return false
		}
	}
	return true
}

// hostsOfAll returns the hosts that a route is for, and whether it is for those alone. What stands within the route
// can only be for fewer.
func hostsOfAll(sets caddyhttp.MatcherSets) (hosts []string, all bool) {
	all = true
	for _, set := range sets {
		own := hostsOf(caddyhttp.MatcherSets{set})
		all = all && len(own) > 0
		hosts = append(hosts, own...)
	}
	return hosts, all
}

// site notes what a site brokers.
func (f *siteFinder) site(srv *caddyhttp.Server, hosts []string, ports []uint16, brokers []*Broker) error {
	var except []policy.Name
	for _, b := range brokers {
		except = append(except, b.except...)
	}
	unused := slices.Clone(except)
	for _, host := range hosts {
		for _, port := range ports {
			if !strings.Contains(host, "*") {
				n, err := policy.ParseName(host)
				if err != nil {
					return badHost(host, err)
				}
				if slices.Contains(except, n) {
					return fmt.Errorf("except %s: the site is for that very name", n)
				}
				f.names[n] = append(f.names[n], port)
				continue
			}
			p := pattern{labels: strings.Split(strings.ToLower(host), "."), port: port}
			if _, err := policy.ParseName(strings.ReplaceAll("."+strings.Join(p.labels, ".")+".", ".*.", ".x.")[1:]); err != nil {
				return badHost(host, err)
			}
			unused = slices.DeleteFunc(unused, p.matches)
			p.except = except
			f.patterns = append(f.patterns, p)
		}
		if err := f.app.checkIssuers(srv, host); err != nil {
			return err
		}
	}
	if len(unused) > 0 {
		return fmt.Errorf("except %s: the site is not for that name", unused[0])
	}
	return nil
}

func badHost(host string, err error) error {
	if strings.Contains(host, "{") {
		return fmt.Errorf("host %q of a site with `sandboxallow broker` has a placeholder, accepted are names", host)
	}
	return fmt.Errorf("host %q of a site with `sandboxallow broker`: %w", host, err)
}

// checkIssuers makes sure that nobody in the world outside is asked for a certificate of a brokered name.
func (a *App) checkIssuers(srv *caddyhttp.Server, host string) error {
	if auto := srv.AutoHTTPS; auto != nil && (auto.Disabled || auto.DisableCerts || slices.Contains(auto.SkipCerts, host) || slices.Contains(auto.Skip, host)) {
		return nil
	}
	mod, err := a.ctx.AppIfConfigured("tls")
	if err != nil {
		return err
	}
	app := mod.(*caddytls.TLS)
	if app.HasCertificateForSubject(host) {
		return nil // of the operator's own
	}
	refused := fmt.Errorf("certificates for %s would not be those of `tls { issuer sandboxallow }`", host)
	if app.Automation == nil {
		return refused
	}
	for _, p := range app.Automation.Policies {
		subjects := p.Subjects()
		if len(subjects) > 0 && !slices.ContainsFunc(subjects, func(s string) bool { return certmagic.MatchWildcard(host, s) }) {
			continue
		}
		ours := func(i certmagic.Issuer) bool { _, ok := i.(*Issuer); return ok }
		if len(p.Issuers) == 0 || slices.ContainsFunc(p.Issuers, func(i certmagic.Issuer) bool { return !ours(i) }) {
			return refused
		}
		return nil
	}
	return refused
}

// siteWalk walks over the handlers of a site in the order in which requests meet them.
type siteWalk struct {
	named   map[string]*caddyhttp.Route // for `invoke`
	brokers []*Broker
	depth   int
}

// maxDepth bounds how deep routes stand in each other: named routes can invoke themselves.
const maxDepth = 100

func (w *siteWalk) handlers(hs []caddyhttp.MiddlewareHandler) error {
	if w.depth++; w.depth > maxDepth {
		return fmt.Errorf("routes stand more than %d deep in each other", maxDepth)
	}
	defer func() { w.depth-- }()
	for _, h := range hs {
		switch h := h.(type) {
		case *caddyhttp.Invoke:
			if route := w.named[h.Name]; route != nil {
				if err := w.handlers(route.Handlers); err != nil {
					return err
				}
			}
		case *Broker:
			w.brokers = append(w.brokers, h)
		case *caddyhttp.Subroute:
			for i := range h.Routes {
				if err := w.handlers(h.Routes[i].Handlers); err != nil {
					return err
				}
			}
		case *reverseproxy.Handler:
			t, ours := h.Transport.(*Transport)
			if !ours {
				continue
			}
			t.findSecrets(h.Headers)
			if len(w.brokers) == 0 {
				return errors.New("`reverse_proxy` stands before `sandboxallow broker`, because handle and route do: " +
					"write `route { sandboxallow broker ... }` around all of it")
			}
		}
	}
	return nil
}
