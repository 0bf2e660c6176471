package sandboxallow

import (
	"fmt"
	"net"
	"slices"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
)

// configs returns the configuration of each zone of each server block of the Corefile that c belongs to.
// It is complete once the servers have been made, in OnStartup.
func configs(c *caddy.Controller) []*dnsserver.Config {
	var all []*dnsserver.Config
	at := *c
	for at.ServerBlockIndex = 0; ; at.ServerBlockIndex++ {
		for at.ServerBlockKeyIndex = 0; ; at.ServerBlockKeyIndex++ {
			cfg := dnsserver.GetConfig(&at)
			if cfg.Zone == "" {
				break // made up by GetConfig, there is no such key
			}
			all = append(all, cfg)
		}
		if at.ServerBlockKeyIndex == 0 {
			return all // there is no such block
		}
	}
}

// unfiltered returns a warning for each way around the plugin that a Corefile leaves open on the listeners
// where the plugin answers.
func unfiltered(all []*dnsserver.Config) []string {
	var warnings []string
	warn := func(format string, args ...any) {
		if w := fmt.Sprintf(format, args...); !slices.Contains(warnings, w) {
			warnings = append(warnings, w)
		}
	}
	for _, cfg := range all {
		if cfg.Handler(name) != nil {
			continue
		}
		if slices.ContainsFunc(all, func(o *dnsserver.Config) bool { return o.Handler(name) != nil && shareListener(cfg, o) }) {
			warn("Names in zone %s are not filtered: its server block at %s has no %s", cfg.Zone, address(cfg), name)
		}
	}
	for _, cfg := range all {
		if cfg.Handler(name) == nil {
			continue
		}
		root := false
		for _, o := range all {
			if !shareListener(cfg, o) {
				continue
			}
			root = root || o.Zone == "."
			if o.Debug {
				warn("A panic would end the process: debug is on in the server block of zone %s at %s", o.Zone, address(o))
			}
		}
		if !root {
			warn("Names outside zone %s at %s are REFUSED, and many clients then ask another server: serve the zone . instead", cfg.Zone, address(cfg))
		}
	}
	return warnings
}

// shareListener reports whether a client can reach both zones at one address and port.
func shareListener(a, b *dnsserver.Config) bool {
	if a.Transport != b.Transport || a.Port != b.Port {
		return false
	}
	return slices.ContainsFunc(a.ListenHosts, func(h string) bool {
		return wildcard(h) || slices.ContainsFunc(b.ListenHosts, func(o string) bool { return wildcard(o) || o == h })
	})
}

func wildcard(host string) bool {
	return host == "" || net.ParseIP(host).IsUnspecified()
}

func address(cfg *dnsserver.Config) string { return cfg.Transport + "://:" + cfg.Port }
