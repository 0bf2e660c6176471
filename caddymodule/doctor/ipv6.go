package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// address6 is a line of /proc/net/if_inet6.
type address6 struct {
	addr netip.Addr
	dev  string
}

func (a address6) String() string { return a.addr.String() + " (" + a.dev + ")" }

// readIPv6 returns the IPv6 addresses of all interfaces but loopback, none where the kernel has no IPv6. A
// line is
//
//	address index length scope flags device
func (s *surroundings) readIPv6() (as []address6, err error) {
	text, err := s.read("proc/net/if_inet6")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 6 {
			return nil, fmt.Errorf("/proc/net/if_inet6: %q: %w", strings.TrimSpace(line), errFields)
		}
		a, err := addrOf6(fields[0])
		if err != nil {
			return nil, fmt.Errorf("/proc/net/if_inet6: %q: %w", strings.TrimSpace(line), err)
		}
		if dev := fields[5]; dev != "lo" {
			as = append(as, address6{a, dev})
		}
	}
	return as, nil
}

// checkIPv6 looks for IPv6 that the gateway takes no part in: addresses in a sandbox that gets no AAAA.
func checkIPv6(ctx context.Context, s *surroundings) []Finding {
	const off = "turn IPv6 off in the network of the sandbox"
	as, err := s.readIPv6()
	if err != nil {
		return warning(off, "the IPv6 addresses cannot be read: %s", why(err))
	}
	as = slices.DeleteFunc(as, func(a address6) bool { return a.addr.IsLinkLocalUnicast() })
	switch {
	case len(as) == 0:
		return ok("no IPv6 address but link-local ones")
	case s.Sandbox.Name == "":
		return warning("give --name and a name that the policy allows, or "+off,
			"IPv6 addresses %s; whether the gateway has one is not known", list(as))
	case len(s.lookUp(ctx, dns.TypeAAAA)) == 0:
		return warning("answer an IPv6 address of the gateway too, or "+off,
			"IPv6 addresses %s, but %s has no AAAA", list(as), s.Sandbox.Name)
	}
	return ok("IPv6 addresses %s, and %s has an AAAA", list(as), s.Sandbox.Name)
}
