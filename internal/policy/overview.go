package policy

import (
	"net/netip"
	"slices"
)

// Overview is what one policy of a set consists of, for people.
type Overview struct {
	Name    string
	Mode    Mode
	Ports   []uint16       // of allow rules without ports, sorted
	Clients []netip.Prefix // none: it is for whoever no other policy is for
	Rules   int
}

// Overview returns an overview of each policy, in the order of the document.
func (s *Set) Overview() []Overview {
	all := make([]Overview, len(s.policies))
	for i, p := range s.policies {
		all[i] = Overview{p.name, p.mode, slices.Clone(p.ports), slices.Clone(p.clients), len(p.rules)}
	}
	return all
}

// SelectDefault is Select for a client that no client line names.
func (s *Set) SelectDefault(listener string) Selection {
	sel := s.Select(netip.Addr{}, listener)
	sel.client = s.fallback
	return sel
}
