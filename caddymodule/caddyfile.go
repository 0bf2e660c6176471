package caddymodule

import (
	"fmt"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("sandboxallow", parseApp)
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
		if seen[option] && isOption(option) {
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
	case "policy_file", "resolvers", "deny_addresses", "poll", "hello_timeout", "dial_timeout", "idle_timeout", "max_tunnels":
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
//	sandboxallow {
//		upstream_port <port>
//		policy        <name>
//	}
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the handler's name
	if d.NextArg() {
		return d.ArgErr()
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		switch option := d.Val(); option {
		case "upstream_port":
			var s string
			if h.UpstreamPort != 0 {
				return d.Err("upstream_port is given twice")
			}
			if !d.AllArgs(&s) {
				return d.ArgErr()
			}
			port, err := strconv.ParseUint(s, 10, 16)
			if err != nil || port == 0 {
				return d.Errf("upstream_port %q, accepted are 1 to 65535", s)
			}
			h.UpstreamPort = uint16(port)
		case "policy":
			if h.Policy != "" {
				return d.Err("policy is given twice")
			}
			if !d.AllArgs(&h.Policy) {
				return d.ArgErr()
			}
			h.PolicyAt = fmt.Sprintf("%s:%d", d.File(), d.Line())
		default:
			return d.Errf("unknown option %q, accepted are upstream_port and policy", option)
		}
	}
	return nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Handler)(nil)
