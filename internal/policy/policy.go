// Package policy decides which names a client may reach. It is the one engine behind the CoreDNS plugin
// and the Caddy modules: documents and lists of rules, their compilation, the look-up, the choice of a
// policy by client, and the watching of the files. It knows neither DNS nor Caddy.
package policy

import (
	"net/netip"
	"slices"
)

// Mode is what a policy does with names that no rule matches.
type Mode uint8

const (
	Strict Mode = iota // denies them
	Open               // allows public ones
	Learn              // allows public ones and tells which Strict would deny
)

// String returns "strict", "open" or "learn".
func (m Mode) String() string {
	switch m {
	case Open:
		return "open"
	case Learn:
		return "learn"
	default:
		return "strict"
	}
}

// Policy is one compiled policy of a document. It is immutable.
type Policy struct {
	name     string
	mode     Mode
	ports    []uint16 // of allow rules without ports, and of open and learn; sorted
	clients  []netip.Prefix
	private  []netip.Prefix
	files    []string   // where rules stand
	portSets [][]uint16 // the ports of rules; [0] is nil
	rules    []rule     // in the order of the document
	names    string     // that rules are written with, one behind the other
	table    *table
	grants   []grant
}

// grant is what several rules, or rules with ports, say at one place of the tree. Both are sorted by
// port, each port stands once, with the first rule that names it.
type grant struct {
	allow, deny []portRule
}

type portRule struct {
	port uint32 // anyPort, a port, or policyPorts
	rule uint32
}

// policyPorts stands for the ports of the policy, in an allow rule without ports.
const policyPorts = 1 << 16

// compile fills the table from the rules.
func (p *Policy) compile() {
	// One and a half nodes for a rule, and room for names of no rule: to grow would take the memory of a second table.
	p.table = newTable(len(p.rules) * 8 / 5)
	for _, m := range metadataNames {
		p.table.insert(m, 0).flags |= metadata
	}
	for i := range p.rules {
		r := &p.rules[i]
		var ancestors flags
		if !r.deny {
			ancestors = allowsBelow
		}
		n := p.table.insert(p.ruleName(r), ancestors)
		if r.scope == exact || r.scope == suffix && (r.deny || n.flags&metadata == 0) {
			n.exact = p.add(n.exact, uint32(i))
		}
		if r.scope != exact {
			n.below = p.add(n.below, uint32(i))
			n.flags |= ancestors
		}
	}
}

// add returns what old and the rule say together.
func (p *Policy) add(old ref, rule uint32) ref {
	r := &p.rules[rule]
	plain := refPlainAllow
	if r.deny {
		plain = refPlainDeny
	}
	if r.ports == 0 {
		switch old.kind() {
		case refNone:
			return plain | ref(rule)
		case plain:
			return old // said before
		}
	}
	if old.kind() != refGrant {
		p.grants = append(p.grants, grant{})
		g := refGrant | ref(len(p.grants)-1)
		if old != refNone {
			p.grants[g.index()].add(p, old.index())
		}
		old = g
	}
	p.grants[old.index()].add(p, rule)
	return old
}

func (g *grant) add(p *Policy, rule uint32) {
	r := &p.rules[rule]
	list, ports := &g.allow, p.portSets[r.ports]
	if r.deny {
		list = &g.deny
	}
	if r.ports == 0 {
		port := uint32(policyPorts)
		if r.deny {
			port = anyPort
		}
		insertPort(list, portRule{port, rule})
		return
	}
	for _, port := range ports {
		insertPort(list, portRule{uint32(port), rule})
	}
}

func insertPort(list *[]portRule, pr portRule) {
	i, ok := findPort(*list, pr.port)
	if !ok {
		*list = slices.Insert(*list, i, pr)
	}
}

func findPort(list []portRule, port uint32) (int, bool) {
	return slices.BinarySearchFunc(list, port, func(pr portRule, port uint32) int { return int(pr.port) - int(port) })
}

// Rule is the place of one rule, for logs and explanations. The zero value is no rule.
type Rule struct {
	p *Policy
	n uint32 // index + 1
}

// IsZero reports whether r is no rule.
func (r Rule) IsZero() bool { return r.n == 0 }
