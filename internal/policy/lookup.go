package policy

import "slices"

// AnyPort asks Lookup and Explain whether a name is admitted on whatever port, as DNS does.
const AnyPort uint16 = anyPort

// Decision is what a policy says about one name and port.
type Decision struct {
	Verdict Verdict
	Reason  Reason // why not, for Deny and WouldDeny
	Policy  string // name of the policy that is the client's; "" if none
	Rule    Rule   // the rule that decided, the most specific one; zero if none did
	Below   bool   // the name is not admitted, but names below it are or may be (RFC 8020)

	// PortNamed tells that the name is allowed and an allow rule lists the port by its number: not by `:*`,
	// not by the policy's ports. It is false on AnyPort.
	PortNamed bool
}

// lookup decides, into d. It allocates nothing, unless rules stand at more than eight levels above the
// name.
func (p *Policy) lookup(d *Decision, n Name, port uint16) {
	var buf [8]ref
	var t trail
	refs := t.walk(p, n, buf[:0])
	if port == AnyPort && t.grants {
		t.onAnyPort(d, p, refs)
		d.PortNamed = false // which is about one port
	} else {
		t.onPort(d, p, refs, port)
	}
	d.Policy = p.name
	if d.Verdict == Deny {
		d.Below = t.namesBelow(p, n, refs)
	}
}

// trail is what the rules say on the way from the top level down to a name.
type trail struct {
	allowFrom int   // refs before this one only deny: the name is a metadata name
	self      *node // the name's own node, nil if it has none
	grants    bool  // some refs are grants
	open      bool  // the mode admits the name where no rule matches
}

// walk appends what the rules say on the way to n to refs, the deepest last.
func (t *trail) walk(p *Policy, n Name, refs []ref) []ref {
	t.open = p.mode != Strict && !specialUse(n)
	h, parent := uint64(0), uint32(0)
	for end := len(n.s); ; {
		i := lastDot(n.s, end)
		label := n.s[i+1 : end]
		h = p.table.next(h, label)
		nd := p.table.find(h, parent, label)
		if nd == nil {
			return refs
		}
		r := nd.below
		if i < 0 {
			r, t.self = nd.exact, nd
			if nd.flags&metadata != 0 {
				t.allowFrom, t.open = len(refs), false
			}
		}
		if r != refNone {
			refs = append(refs, r)
			t.grants = t.grants || r.kind() == refGrant
		}
		if i < 0 || nd.flags&hasChildren == 0 {
			return refs
		}
		parent, end = nd.id, i
	}
}

// onPort decides on one port; on AnyPort where there are no grants.
func (t *trail) onPort(d *Decision, p *Policy, refs []ref, port uint16) {
	policyPort := p.onPolicyPort(port)
	var allow, deny, other uint32 // the deepest rules, by index + 1; other allows, but not this port
	named := false
	for i, r := range refs {
		switch r.kind() {
		case refPlainDeny:
			deny = r.index() + 1
		case refPlainAllow:
			if i < t.allowFrom {
				continue
			}
			other = r.index() + 1
			if policyPort {
				allow = other
			}
		case refGrant:
			g := &p.grants[r.index()]
			if rule, ok := g.find(g.deny, port, policyPort); ok {
				deny = rule + 1
			}
			if i < t.allowFrom || len(g.allow) == 0 {
				continue
			}
			other = g.allow[0].rule + 1
			if rule, ok := g.find(g.allow, port, policyPort); ok {
				allow = rule + 1
			}
			if _, ok := findPort(g.allow, uint32(port)); ok {
				named = port != AnyPort
			}
		}
	}
	switch {
	case deny != 0:
		d.Verdict, d.Reason, d.Rule = Deny, ReasonDenied, Rule{p, deny}
		return
	case allow != 0:
		d.Verdict, d.Reason, d.Rule, d.PortNamed = Allow, ReasonNone, Rule{p, allow}, named
		return
	case t.open && policyPort && p.mode == Open:
		d.Verdict, d.Reason, d.Rule = Allow, ReasonNone, Rule{}
		return
	}
	d.Verdict, d.Reason, d.Rule = Deny, ReasonNotAllowed, Rule{}
	if t.open && policyPort {
		d.Verdict = WouldDeny
	}
	if other != 0 {
		d.Rule = Rule{p, other}
	}
	if other != 0 || t.open && !policyPort {
		d.Reason = ReasonPortNotAllowed
	}
}

// onAnyPort decides where rules with ports are on the way: admitted is a name that is so on some port.
// It tries the ports that allow rules and the policy name. One that nobody names stands for all the others.
func (t *trail) onAnyPort(d *Decision, p *Policy, refs []ref) {
	try := func(port uint16) bool {
		var next Decision
		t.onPort(&next, p, refs, port)
		// Allowed beats tolerated; of several refusals, a deny rule tells most.
		switch {
		case next.Verdict == Allow, next.Verdict == WouldDeny:
			*d = next
		case d.Verdict == Deny && (d.Reason == ReasonNone || next.Reason == ReasonDenied):
			*d = next
		}
		return d.Verdict == Allow
	}
	for _, port := range p.ports {
		if try(port) {
			return
		}
	}
	for i, r := range refs {
		if r.kind() != refGrant || i < t.allowFrom {
			continue
		}
		for _, a := range p.grants[r.index()].allow {
			switch {
			case a.port == policyPorts: // tried
			case a.port == anyPort && try(unnamedPort(p, refs)), a.port != anyPort && try(uint16(a.port)):
				return
			}
		}
	}
	if d.Verdict != Deny || d.Reason == ReasonDenied {
		return
	}
	for _, r := range refs { // nothing allows; say so where a rule denies, be it on other ports
		if r.kind() == refGrant && len(p.grants[r.index()].deny) > 0 {
			d.Reason, d.Rule = ReasonDenied, Rule{p, p.grants[r.index()].deny[0].rule + 1}
		}
	}
}

// unnamedPort returns a port that no deny rule on the way names.
func unnamedPort(p *Policy, refs []ref) uint16 {
	port := uint16(1<<16 - 1)
	for ; port > 1; port-- {
		named := false
		for _, r := range refs {
			if r.kind() == refGrant {
				_, ok := findPort(p.grants[r.index()].deny, uint32(port))
				named = named || ok
			}
		}
		if !named {
			break
		}
	}
	return port
}

// find returns the rule of list that names the port.
func (g *grant) find(list []portRule, port uint16, policyPort bool) (rule uint32, ok bool) {
	if i, ok := findPort(list, uint32(port)); ok {
		return list[i].rule, true
	}
	if len(list) > 0 && list[0].port == anyPort {
		return list[0].rule, true
	}
	if n := len(list); n > 0 && list[n-1].port == policyPorts && policyPort {
		return list[n-1].rule, true
	}
	return 0, false
}

// namesBelow reports whether names below n are admitted, or may be: DNS must not answer NXDOMAIN for n
// then, which would deny them all (RFC 8020).
func (t *trail) namesBelow(p *Policy, n Name, refs []ref) bool {
	above := refs
	allowed := false
	if t.self != nil {
		if t.self.exact != refNone {
			above = above[:len(above)-1]
		}
		if p.deniesAll(t.self.below) {
			return false
		}
		allowed = t.self.flags&allowsBelow != 0
	}
	for _, r := range above {
		if p.deniesAll(r) {
			return false
		}
		allowed = allowed || p.allows(r)
	}
	return allowed || p.mode != Strict && (lastDot(n.s, len(n.s)) < 0 || !specialUse(n))
}

func (p *Policy) allows(r ref) bool {
	return r.kind() == refPlainAllow || r.kind() == refGrant && len(p.grants[r.index()].allow) > 0
}

func (p *Policy) deniesAll(r ref) bool {
	if r.kind() == refGrant {
		g := &p.grants[r.index()]
		return len(g.deny) > 0 && g.deny[0].port == anyPort
	}
	return r.kind() == refPlainDeny
}

func (p *Policy) onPolicyPort(port uint16) bool {
	return port == AnyPort || slices.Contains(p.ports, port)
}
