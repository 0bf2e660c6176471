package caddymodule

import (
	"fmt"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("sandboxallow", parseApp)
	httpcaddyfile.RegisterDirective("sandboxallow", parseDirective)
	httpcaddyfile.RegisterDirectiveOrder("sandboxallow", httpcaddyfile.Before, "respond")
}

// parseApp sets up the app from the global option. Syntax:
//
//	sandboxallow {
//		policy_file    <path>
//		resolvers      <address[:port]>...
//		deny_addresses <prefix>...
//		poll           <duration>
//		hello_timeout  <duration>
//		dial_timeout   <duration>
//		idle_timeout   <duration>
//		max_tunnels    <number>
//		listen         <address>... {
//			upstream_port <port>
//			policy        <name>
//		}
//		<line of a policy>...
//	}
//
// The lines of a policy exclude policy_file.
func parseApp(d *caddyfile.Dispenser, existing any) (any, error) {
	d.Next() // the option's name
	if existing != nil {
		return nil, d.Err("sandboxallow is given twice")
	}
	if d.NextArg() {
		return nil, d.ArgErr()
	}
	a := new(App)
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		if err := a.parseOption(d, option); err != nil {
			return nil, err
		}
		if len(a.Policy) > 0 && a.PolicyFile != "" {
			return nil, d.Errf("%s: policy_file and the lines of a policy exclude each other", option)
		}
		if seen[option] && isOption(option) && option != "listen" {
			return nil, d.Errf("%s is given twice", option)
		}
		seen[option] = true
	}
	if len(a.Policy) == 0 && a.PolicyFile == "" {
		return nil, d.Err("sandboxallow without a policy, accepted are policy_file PATH or the lines of a policy")
	}
	return httpcaddyfile.App{Name: "sandboxallow", Value: caddyconfig.JSON(a, nil)}, nil
}

func isOption(word string) bool {
	switch word {
	case "policy_file", "resolvers", "deny_addresses", "poll", "hello_timeout", "dial_timeout", "idle_timeout", "max_tunnels", "listen":
		return true
	}
	return false
}

func (a *App) parseOption(d *caddyfile.Dispenser, option string) error {
	line := d.Line()
	args := d.RemainingArgs()
	if isOption(option) && len(args) == 0 {
		return d.ArgErr()
	}
	switch option {
	case "listen":
		return a.parseListen(d, args)
	case "resolvers":
		a.Resolvers = args
		return nil
	case "deny_addresses":
		a.DenyAddresses = args
		for _, s := range args {
			if _, err := policy.ParsePrefix(s); err != nil {
				return d.Errf("deny_addresses %v", err)
			}
		}
		return nil
	}
	if isOption(option) && len(args) > 1 {
		return d.ArgErr()
	}
	switch option {
	case "policy_file":
		a.PolicyFile = args[0]
	case "poll":
		return parseDuration(d, &a.Poll)
	case "hello_timeout":
		return parseDuration(d, &a.HelloTimeout)
	case "dial_timeout":
		return parseDuration(d, &a.DialTimeout)
	case "idle_timeout":
		return parseDuration(d, &a.IdleTimeout)
	case "max_tunnels":
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 1 {
			return d.Errf("max_tunnels %q, accepted are positive numbers", args[0])
		}
		a.MaxTunnels = n
	default:
		// Not ours, so it is of a policy: that parser knows all its words, and says which they are.
		if d.NextBlock(d.Nesting()) {
			return d.Errf("%q opens no block", option)
		}
		a.Policy = append(a.Policy, policy.Line{File: d.File(), Line: line, Words: append([]string{option}, args...)})
	}
	return nil
}

// parseListen parses the block of a listen option.
func (a *App) parseListen(d *caddyfile.Dispenser, addresses []string) error {
	l := &Listener{Addresses: addresses}
	for _, s := range addresses {
		if _, err := parseListenAddress(s); err != nil {
			return d.Errf("listen: %v", err)
		}
	}
	a.Listen = append(a.Listen, l)
	return parseHandlerBlock(d, &l.UpstreamPort, &l.Policy, &l.PolicyAt)
}

// parseDuration parses the current token, the only argument of its option.
func parseDuration(d *caddyfile.Dispenser, to *caddy.Duration) error {
	dur, err := caddy.ParseDuration(d.Val())
	if err != nil || dur <= 0 {
		return d.Errf("duration %q, accepted are positive durations such as 5s", d.Val())
	}
	*to = caddy.Duration(dur)
	return nil
}

// UnmarshalCaddyfile sets up the handler. Syntax:
//
//	sandboxallow [postgres] {
//		upstream_port <port>
//		policy        <name>
//	}
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the handler's name
	if d.NextArg() {
		if d.Val() != protocolPostgres {
			return d.Errf("unknown argument %q, accepted is %s", d.Val(), protocolPostgres)
		}
		h.Protocol = protocolPostgres
		if d.NextArg() {
			return d.ArgErr()
		}
	}
	return parseHandlerBlock(d, &h.UpstreamPort, &h.Policy, &h.PolicyAt)
}

// parseHandlerBlock parses the block, if there is one, of what decides on connections.
func parseHandlerBlock(d *caddyfile.Dispenser, upstreamPort *uint16, policy, policyAt *string) error {
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		var err error
		switch option := d.Val(); option {
		case "upstream_port":
			err = parseUpstreamPort(d, upstreamPort)
		case "policy":
			err = parsePolicyName(d, policy, policyAt)
		default:
			err = d.Errf("unknown option %q, accepted are upstream_port and policy", option)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func parseUpstreamPort(d *caddyfile.Dispenser, to *uint16) error {
	var s string
	if *to != 0 {
		return d.Err("upstream_port is given twice")
	}
	if !d.AllArgs(&s) {
		return d.ArgErr()
	}
	port, err := parsePort(s)
	if err != nil {
		return d.Errf("upstream_port: %v", err)
	}
	*to = port
	return nil
}

// parsePolicyName parses the name of a policy, and notes where it stands.
func parsePolicyName(d *caddyfile.Dispenser, to, at *string) error {
	if *to != "" {
		return d.Err("policy is given twice")
	}
	if !d.AllArgs(to) {
		return d.ArgErr()
	}
	*at = fmt.Sprintf("%s:%d", d.File(), d.Line())
	return nil
}

// parseDirective sets up what the directive stands for: the HTTP handler, the dashboard, or a site that brokers.
func parseDirective(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	if take, ok := h.Option(takeBinding).(func(any)); ok {
		take(h.Option("default_bind"))
		return nil, nil
	}
	h.Next() // the directive's name
	matchers, err := h.ExtractMatcherSet()
	if err != nil {
		return nil, err
	}
	d := h.Dispenser
	d.Next()
	var kind string
	if d.NextArg() {
		kind = d.Val()
	}
	d.Reset()
	switch kind {
	case "dashboard":
		v := new(Dashboard)
		if err := v.UnmarshalCaddyfile(d); err != nil {
			return nil, err
		}
		return h.NewRoute(matchers, v), nil
	case "broker":
		v := new(Broker)
		if err := v.UnmarshalCaddyfile(d); err != nil {
			return nil, err
		}
		return brokerValues(h, h.NewRoute(matchers, v))
	default:
		v := new(HTTPHandler)
		if err := v.UnmarshalCaddyfile(d); err != nil {
			return nil, err
		}
		return h.NewRoute(matchers, v), nil
	}
}

// UnmarshalCaddyfile sets up the HTTP handler. Syntax:
//
//	sandboxallow [<matcher>] {
//		upstream_port <port>
//		policy        <name>
//	}
//
//	sandboxallow [<matcher>] forward_proxy {
//		policy <name>
//		basic_auth {
//			<user> <hash>
//		}
//	}
func (h *HTTPHandler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	if d.NextArg() {
		if d.Val() != "forward_proxy" {
			return d.Errf("unknown argument %q, accepted are forward_proxy, broker and dashboard", d.Val())
		}
		h.ForwardProxy = true
		if d.NextArg() {
			return d.ArgErr()
		}
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		var err error
		switch option := d.Val(); {
		case option == "upstream_port" && !h.ForwardProxy:
			err = parseUpstreamPort(d, &h.UpstreamPort)
		case option == "policy":
			err = parsePolicyName(d, &h.Policy, &h.PolicyAt)
		case option == "basic_auth" && h.ForwardProxy:
			err = h.parseBasicAuth(d)
		case h.ForwardProxy:
			err = d.Errf("unknown option %q, accepted are policy and basic_auth", option)
		default:
			err = d.Errf("unknown option %q, accepted are upstream_port and policy", option)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parseBasicAuth parses accounts, each a user and what `caddy hash-password` prints.
func (h *HTTPHandler) parseBasicAuth(d *caddyfile.Dispenser) error {
	if h.BasicAuth != nil {
		return d.Err("basic_auth is given twice")
	}
	if d.NextArg() {
		return d.ArgErr()
	}
	h.BasicAuth = &caddyauth.HTTPBasicAuth{HashCache: new(caddyauth.Cache)}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		a := caddyauth.Account{Username: d.Val()}
		if !d.AllArgs(&a.Password) {
			return d.Err("accepted are a user and a password hashed by caddy hash-password")
		}
		h.BasicAuth.AccountList = append(h.BasicAuth.AccountList, a)
	}
	if len(h.BasicAuth.AccountList) == 0 {
		return d.Err("basic_auth without an account")
	}
	return nil
}

// Interface guards
var (
	_ caddyfile.Unmarshaler = (*Handler)(nil)
	_ caddyfile.Unmarshaler = (*HTTPHandler)(nil)
)
