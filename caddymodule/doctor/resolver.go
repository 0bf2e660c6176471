package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/miekg/dns"

	"github.com/sandboxallow/sandboxallow/internal/upstream"
)

const doResolvers = "give the global option sandboxallow other resolvers"

// checkResolvers looks at whom the gateway asks for the addresses of allowed names: not our own CoreDNS, whose
// answer is the gateway, which does not dial itself.
func checkResolvers(ctx context.Context, s *surroundings) (fs []Finding) {
	servers, err := s.resolvers()
	if err != nil {
		return failure(doResolvers, "%s", err)
	}
	for _, server := range servers {
		r, err := s.askTXT(ctx, server, nobody)
		switch {
		case err != nil:
			fs = append(fs, failure(doResolvers, "resolver %s does not answer: %s", server, why(err))...)
		case ours(r):
			fs = append(fs, failure(doResolvers,
				"resolver %s is the CoreDNS of the sandboxes, which resolves names to this gateway", server)...)
		default:
			fs = append(fs, ok("resolver %s answers (%s)", server, dns.RcodeToString[r.Rcode])...)
		}
	}
	return fs
}

// resolvers returns whom the gateway asks, at least one.
func (s *surroundings) resolvers() (servers []netip.AddrPort, err error) {
	for _, r := range s.Gateway.Resolvers {
		server, err := upstream.ParseServer(r)
		if err != nil {
			return nil, err
		}
		servers = append(servers, server)
	}
	if len(servers) > 0 {
		return servers, nil
	}
	st, err := s.readStub()
	if err != nil {
		return nil, fmt.Errorf("/etc/resolv.conf cannot be read: %s", why(err))
	}
	for _, a := range st.servers {
		servers = append(servers, netip.AddrPortFrom(a, dnsPort))
	}
	if len(servers) == 0 {
		return nil, errors.New("no nameserver in /etc/resolv.conf: no name can be resolved")
	}
	return servers, nil
}
