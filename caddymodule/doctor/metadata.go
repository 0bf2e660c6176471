package doctor

import (
	"context"
	"net/netip"
	"strings"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// metadataPorts are those of the metadata services, and of the name servers on such addresses.
var metadataPorts = []uint16{80, 53}

// checkMetadata tries to reach the cloud metadata services. From a sandbox that is a way to credentials. From
// a gateway nothing leads there for a sandbox, but a fault in it would.
func checkMetadata(ctx context.Context, s *surroundings) []Finding {
	targets := s.metadataTargets()
	var reached []string
	for i, err := range s.tryAll(ctx, targets) {
		if err == nil {
			reached = append(reached, targets[i])
		}
	}
	switch {
	case len(reached) == 0:
		return ok("no metadata address is reached, of %d", len(policy.MetadataAddrs()))
	case s.FromSandbox:
		return failure("take away the route that leads there, or drop these addresses in the host's packet filter",
			"connected to %s", strings.Join(reached, ", "))
	}
	return warning("sandboxes are refused these, but drop them for the gateway too (hop limit 1, a packet filter)",
		"connected to %s", strings.Join(reached, ", "))
}

// metadataTargets returns all addresses and ports to try. A link-local one is tried on each interface.
func (s *surroundings) metadataTargets() (targets []string) {
	var devs []string
	as, _ := s.readIPv6() // without IPv6 there is nothing to try
	for _, a := range as {
		if a.addr.IsLinkLocalUnicast() {
			devs = append(devs, a.dev)
		}
	}
	add := func(a netip.Addr) {
		for _, port := range metadataPorts {
			targets = append(targets, netip.AddrPortFrom(a, port).String())
		}
	}
	for _, a := range policy.MetadataAddrs() {
		if !a.Is6() || !a.IsLinkLocalUnicast() {
			add(a)
			continue
		}
		for _, dev := range devs {
			add(a.WithZone(dev))
		}
	}
	return targets
}
