package policy

import (
	"net/netip"
	"slices"
)

// Selection is the policies that judge one connection or query: the client's and, where the listener
// names one too, the listener's; then both must admit. The zero value denies with no_policy.
type Selection struct {
	client   *Policy
	listener *Policy // nil: the listener names none
	lost     bool    // the listener names one that the set lacks
}

// Select returns what judges a client, on a listener that names the policy listener ("" if none). A
// client that no policy is for is denied, and so is everybody at a listener whose policy is gone.
func (s *Set) Select(client netip.Addr, listener string) Selection {
	sel := Selection{client: s.forClient(client)}
	if listener != "" {
		sel.listener = s.byName[listener]
		sel.lost = sel.listener == nil
	}
	return sel
}

func (sel Selection) valid() bool { return sel.client != nil && !sel.lost }

// Policy returns the name of the client's policy, "" if it has none.
func (sel Selection) Policy() string {
	if sel.client == nil {
		return ""
	}
	return sel.client.name
}

// Mode returns the mode of the client's policy, Strict if it has none.
func (sel Selection) Mode() Mode {
	if sel.client == nil {
		return Strict
	}
	return sel.client.mode
}

// Lookup decides on a name and a port; AnyPort asks whether it is admitted on whatever port. It
// allocates nothing and its cost does not depend on the number of rules.
func (sel Selection) Lookup(n Name, port uint16) (d Decision) {
	if !sel.valid() {
		return Decision{Reason: ReasonNoPolicy, Policy: sel.Policy()}
	}
	if n.IsZero() {
		return Decision{Reason: ReasonBadName, Policy: sel.Policy()}
	}
	sel.client.lookup(&d, n, port)
	if sel.listener == nil || sel.listener == sel.client {
		return d
	}
	var l Decision
	sel.listener.lookup(&l, n, port)
	return d.and(l)
}

// and joins the client's decision with the listener's. The record names the client's policy.
func (d Decision) and(l Decision) Decision {
	named := d.PortNamed && l.PortNamed
	below := (d.Below || d.Verdict.Admits()) && (l.Below || l.Verdict.Admits())
	if !l.Verdict.Admits() && d.Verdict.Admits() || l.Verdict == WouldDeny && d.Verdict == Allow {
		l.Policy = d.Policy
		d = l
	}
	d.Below = below && !d.Verdict.Admits()
	d.PortNamed = named
	return d
}

// Lifts reports whether the policies allow the private address a as a destination: a `private` line of
// each names it. It says nothing about what internal/floor denies in any case.
func (sel Selection) Lifts(a netip.Addr) bool {
	return sel.valid() && sel.client.lifts(a) && (sel.listener == nil || sel.listener.lifts(a))
}

func (p *Policy) lifts(a netip.Addr) bool {
	a = a.Unmap()
	return slices.ContainsFunc(p.private, func(pr netip.Prefix) bool { return pr.Contains(a) })
}

// clientTable finds the policy of the most specific prefix that has a client: one look-up for each length
// of prefix that is in use, whatever the number of policies.
type clientTable struct {
	byPrefix map[netip.Prefix]*Policy
	bits4    []int // lengths in use, longest first
	bits6    []int
}

func (ct *clientTable) add(pr netip.Prefix, p *Policy) {
	if ct.byPrefix == nil {
		ct.byPrefix = make(map[netip.Prefix]*Policy)
	}
	ct.byPrefix[pr] = p
	bits := &ct.bits6
	if pr.Addr().Is4() {
		bits = &ct.bits4
	}
	if !slices.Contains(*bits, pr.Bits()) {
		*bits = append(*bits, pr.Bits())
		slices.SortFunc(*bits, func(a, b int) int { return b - a })
	}
}

func (s *Set) forClient(a netip.Addr) *Policy {
	a = a.Unmap().WithZone("")
	bits := s.clients.bits6
	if a.Is4() {
		bits = s.clients.bits4
	}
	for _, b := range bits {
		if pr, err := a.Prefix(b); err == nil {
			if p, ok := s.clients.byPrefix[pr]; ok {
				return p
			}
		}
	}
	if !a.IsValid() {
		return nil
	}
	return s.fallback
}
