// Package doctor looks at the surroundings of the firewall, which it depends on and cannot change: whether a
// sandbox has another way out, and whether a gateway is open where it should not be.
//
// It is run in the network namespace that it judges: a gateway's, or a sandbox's. It changes nothing and
// sends nothing but questions to the name servers, connections to the addresses that must not be reachable,
// and requests for the metrics and the version.
package doctor

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// Config says what to look at. The zero value is a gateway of which nothing is known.
type Config struct {
	// FromSandbox is for a sandbox's network namespace; without it this is a gateway's.
	FromSandbox bool

	// Timeout is for each answer that is waited for. Default: 2s.
	Timeout time.Duration

	// Docker is the API of Docker, as in DOCKER_HOST: a path, unix:///path or tcp://host:port. Default:
	// /var/run/docker.sock if it is there.
	Docker string

	// DockerVersion is what `docker version` says of the server; it is not asked then.
	DockerVersion string

	Sandbox Sandbox
	Gateway Gateway
}

// Sandbox is what to look at from a sandbox.
type Sandbox struct {
	// Gateways are the gateway's addresses. Default: the name servers' and those of Name.
	Gateways []netip.Addr

	// Name is a name that the policy allows. Without one what it resolves to is not looked at.
	Name string

	// Probes must not be connected to.
	Probes []netip.AddrPort
}

// Gateway is what to look at in a gateway.
type Gateway struct {
	// Admin is Caddy's admin endpoint; nil if it is not known. AdminFrom says from where it is known.
	Admin     *Endpoint
	AdminFrom string

	// Resolvers are the DNS servers that allowed names are resolved with, as address or address:port.
	// Default: those of /etc/resolv.conf.
	Resolvers []string

	// CoreDNSMetrics and CaddyMetrics are the URLs of the metrics of both; "" for CaddyMetrics is the admin
	// endpoint's.
	CoreDNSMetrics string
	CaddyMetrics   string

	// Descriptors is how many descriptors a process of this container may have open, and Tunnels how many
	// tunnels they are enough for. 0 is unknown.
	Descriptors uint64
	Tunnels     int
}

// Endpoint is a place to connect to, as net.Dial takes it. The zero value is one that is turned off.
type Endpoint struct {
	Network string // such as "tcp" or "unix"
	Address string // host:port or path
}

// DefaultTimeout is what zero means in Config.Timeout.
const DefaultTimeout = 2 * time.Second

// check is one thing that is looked at. It returns at least one finding, without its name.
type check struct {
	name string
	run  func(context.Context, *surroundings) []Finding
}

var sandboxChecks = []check{
	{"nameserver", checkNameservers},
	{"route", checkRoutes},
	{"network", checkNetworks},
	{"ipv6", checkIPv6},
	{"metadata", checkMetadata},
	{"probe", checkProbes},
	{"admin", checkAdminFromSandbox},
	{"service", checkServices},
	{"capabilities", checkCapabilities},
	{"docker", checkDocker},
}

var gatewayChecks = []check{
	{"policy", checkPolicy},
	{"admin", checkAdmin},
	{"resolver", checkResolvers},
	{"metadata", checkMetadata},
	{"forwarding", checkForwarding},
	{"descriptors", checkDescriptors},
	{"docker", checkDocker},
}

// Run makes all checks, at once, and returns what they found in the order of the checks.
func Run(ctx context.Context, c Config) []Finding {
	return run(ctx, &surroundings{
		Config: c,
		files:  os.DirFS("/"),
		dial:   new(net.Dialer).DialContext,
	})
}

func run(ctx context.Context, s *surroundings) []Finding {
	if s.Timeout <= 0 {
		s.Timeout = DefaultTimeout
	}
	checks := gatewayChecks
	if s.FromSandbox {
		checks = sandboxChecks
		s.explore(ctx)
	}
	found := make([][]Finding, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { found[i] = c.run(ctx, s) })
	}
	wg.Wait()

	var all []Finding
	for i, fs := range found {
		for _, f := range fs {
			f.Check = checks[i].name
			all = append(all, f)
		}
	}
	return all
}
