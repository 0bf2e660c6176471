package doctor

import (
	"context"
	"net"
	"net/netip"
)

const (
	doAdmin   = "write `admin unix//run/caddy-admin.sock` or `admin off` into the global options of the Caddyfile"
	adminPort = 2019
)

// checkAdmin looks at where Caddy's admin endpoint listens: whoever reaches it replaces the configuration.
func checkAdmin(_ context.Context, s *surroundings) []Finding {
	admin := s.Gateway.Admin
	switch {
	case admin == nil:
		return warning("give --config and the configuration that Caddy runs, or --admin",
			"where the admin endpoint listens is not known: %s", s.Gateway.AdminFrom)
	case *admin == Endpoint{}:
		return ok("the admin endpoint is off (%s)", s.Gateway.AdminFrom)
	case admin.Network == "unix":
		return ok("the admin endpoint is the socket %s (%s)", admin.Address, s.Gateway.AdminFrom)
	case isLoopback(admin.Address):
		return warning(doAdmin, "the admin endpoint is %s (%s): all that runs in this network namespace reaches it",
			admin.Address, s.Gateway.AdminFrom)
	}
	return failure(doAdmin, "the admin endpoint is %s (%s): sandboxes reach it", admin.Address, s.Gateway.AdminFrom)
}

// isLoopback reports whether only this host reaches an address. A name but localhost may be any address.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// checkAdminFromSandbox asks each gateway for its configuration, on the port that the admin endpoint has by
// default. Any answer is one too many: it takes changes from whom it answers.
func checkAdminFromSandbox(ctx context.Context, s *surroundings) (fs []Finding) {
	if len(s.gateways) == 0 {
		return noGateway()
	}
	for _, gw := range s.gateways {
		at := netip.AddrPortFrom(gw, adminPort)
		status, _, err := s.get(ctx, "http://"+at.String()+"/config/", nil)
		if err == nil {
			fs = append(fs, failure(doAdmin, "an admin endpoint answers on %s (%d)", at, status)...)
			continue
		}
		fs = append(fs, ok("no admin endpoint on %s (%s)", at, why(err))...)
	}
	return fs
}

func noGateway() []Finding {
	return warning("give --gateway and its address", "the gateway's address is not known")
}
