package learn

import (
	"net/netip"
	"slices"
)

// setClients gives p its client line. With one policy that is what Options.Client says, none if it says
// nothing; where there are several, it is the addresses that each judged last, and nothing for the default one.
// A policy to add to keeps the line that it has. It reports whether p is for anybody: a policy without a line
// would be for everybody else.
func (l *Learner) setClients(p *learned, g *group) bool {
	switch {
	case l.options.Diff != nil:
		for _, o := range l.options.Diff.Overview() {
			if o.Name == g.policy {
				p.setClients(o.Clients)
			}
		}
	case len(l.groups) == 1 && l.options.Client.IsValid():
		p.setClients([]netip.Prefix{l.options.Client})
	case len(l.groups) == 1, g.policy == defaultPolicy:
	default:
		var addrs []netip.Addr
		for _, c := range l.clients {
			if c.policy == g.policy {
				addrs = append(addrs, c.addr)
			}
		}
		p.setClients(cover(addrs))
		return len(p.clients) > 0
	}
	return true
}

func (p *learned) setClients(prefixes []netip.Prefix) {
	for _, pr := range prefixes {
		if pr.IsSingleIP() {
			p.clients = append(p.clients, pr.Addr().String())
		} else {
			p.clients = append(p.clients, pr.String())
		}
	}
}

// cover returns the fewest prefixes that hold these addresses and no other.
func cover(addrs []netip.Addr) []netip.Prefix {
	slices.SortFunc(addrs, netip.Addr.Compare)
	var stack []netip.Prefix
	for _, a := range slices.Compact(addrs) {
		stack = append(stack, netip.PrefixFrom(a, a.BitLen()))
		for n := len(stack); n > 1; n = len(stack) {
			both, ok := joined(stack[n-2], stack[n-1])
			if !ok {
				break
			}
			stack = append(stack[:n-2], both)
		}
	}
	return stack
}

// joined returns the prefix that consists of two, in order.
func joined(a, b netip.Prefix) (netip.Prefix, bool) {
	if a.Bits() != b.Bits() || a.Bits() == 0 || a.Addr().Is4() != b.Addr().Is4() {
		return netip.Prefix{}, false
	}
	both, err := a.Addr().Prefix(a.Bits() - 1)
	return both, err == nil && both.Addr() == a.Addr() && both.Contains(b.Addr())
}
