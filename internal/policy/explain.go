package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Explanation is the whole reasoning behind a decision, for people.
type Explanation struct {
	Name     Name
	Port     uint16 // AnyPort: on whatever port
	Decision Decision
	Judges   []Judgement // the client's policy, then the listener's if it names another
	Hint     string      // the line that would allow it, "" if nothing is missing or no line can
}

// Judgement is what one policy says.
type Judgement struct {
	Policy   string
	Mode     Mode
	Decision Decision
	Matches  []Match // every rule that covers the name, in the order of the document
}

// Match is a rule that covers the name.
type Match struct {
	Rule   Rule
	Deny   bool
	OnPort bool // it covers the port too
}

// Explain tells why Lookup decides as it does, and which other rules match. It reads every rule, one by
// one, so its decision also checks that of the look-up table.
func (sel Selection) Explain(n Name, port uint16) Explanation {
	e := Explanation{Name: n, Port: port}
	if !sel.valid() || n.IsZero() {
		e.Decision = sel.Lookup(n, port)
		return e
	}
	e.Judges = append(e.Judges, sel.client.judge(n, port))
	e.Decision = e.Judges[0].Decision
	if sel.listener != nil && sel.listener != sel.client {
		e.Judges = append(e.Judges, sel.listener.judge(n, port))
		e.Decision = e.Decision.and(e.Judges[1].Decision)
	}
	e.Hint = e.Decision.Hint(n, port)
	return e
}

func (p *Policy) judge(n Name, port uint16) Judgement {
	j := Judgement{Policy: p.name, Mode: p.mode}
	for i := range p.rules {
		r := &p.rules[i]
		spec := ruleSpec{name: Name{p.ruleName(r)}, scope: r.scope}
		if !spec.matches(n) || !r.deny && r.scope != exact && MetadataName(n) {
			continue
		}
		j.Matches = append(j.Matches, Match{Rule: p.ruleAt(uint32(i)), Deny: r.deny, OnPort: p.covers(r, port)})
	}
	j.Decision = p.weigh(n, port, j.Matches)
	j.Decision.Policy = p.name
	if !j.Decision.Verdict.Admits() {
		j.Decision.Below = p.belowAdmitted(n)
	}
	return j
}

// covers reports whether a rule is about the port; on AnyPort, whether it is about every one.
func (p *Policy) covers(r *rule, port uint16) bool {
	ports := p.portSets[r.ports]
	switch {
	case r.ports == 0 && r.deny, slices.Contains(ports, anyPort):
		return true
	case port == AnyPort:
		return !r.deny
	case r.ports == 0:
		return slices.Contains(p.ports, port)
	}
	return slices.Contains(ports, port)
}

func (p *Policy) weigh(n Name, port uint16, matches []Match) Decision {
	if port == AnyPort {
		d := p.weighAnyPort(n, matches)
		d.PortNamed = false
		return d
	}
	var allow, deny, other Rule
	named := false
	for _, m := range matches {
		switch {
		case m.Deny && m.OnPort:
			deny = p.deeper(deny, m.Rule)
		case m.Deny:
		case m.OnPort:
			allow = p.deeper(allow, m.Rule)
			named = named || slices.Contains(p.portSets[p.rules[m.Rule.n-1].ports], port)
		default:
			other = p.deeper(other, m.Rule)
		}
	}
	public := p.mode != Strict && !specialUse(n) && !MetadataName(n)
	policyPort := slices.Contains(p.ports, port)
	switch {
	case !deny.IsZero():
		return Decision{Reason: ReasonDenied, Rule: deny}
	case !allow.IsZero():
		return Decision{Verdict: Allow, Rule: allow, PortNamed: named}
	case public && policyPort && p.mode == Open:
		return Decision{Verdict: Allow}
	}
	d := Decision{Reason: ReasonNotAllowed, Rule: other}
	if !other.IsZero() || public && !policyPort {
		d.Reason = ReasonPortNotAllowed
	}
	if public && policyPort {
		d.Verdict = WouldDeny
	}
	return d
}

// weighAnyPort asks for each port that the policy or a rule names, those of the policy first, and for one
// that nobody names: the others are like it.
func (p *Policy) weighAnyPort(n Name, matches []Match) Decision {
	ports := slices.Clone(p.ports)
	for _, m := range matches {
		ports = append(ports, p.portSets[p.rules[m.Rule.n-1].ports]...)
	}
	unnamed := uint16(1)
	for unnamed != anyPort && slices.Contains(ports, unnamed) {
		unnamed++
	}
	var d Decision
	on := slices.Clone(matches)
	for _, port := range append(ports, unnamed) {
		if port == anyPort {
			continue
		}
		for i, m := range matches {
			on[i].OnPort = p.covers(&p.rules[m.Rule.n-1], port)
		}
		switch next := p.weigh(n, port, on); {
		case next.Verdict == Allow:
			return next
		case next.Verdict == WouldDeny, d.Verdict == Deny && (d.Reason == ReasonNone || next.Reason == ReasonDenied):
			d = next
		}
	}
	return d
}

// deeper returns the more specific of two rules, the first of two alike.
func (p *Policy) deeper(a, b Rule) Rule {
	if a.IsZero() || p.rules[b.n-1].size > p.rules[a.n-1].size {
		return b
	}
	return a
}

// belowAdmitted reports whether DNS must not deny what is below n.
func (p *Policy) belowAdmitted(n Name) bool {
	allowed := false
	for i := range p.rules {
		r := &p.rules[i]
		name := p.ruleName(r)
		coversBelow := r.scope != exact && (name == n.s || strings.HasSuffix(n.s, "."+name))
		switch {
		case r.deny:
			if coversBelow && p.covers(r, AnyPort) {
				return false
			}
		case coversBelow, strings.HasSuffix(name, "."+n.s):
			allowed = true
		}
	}
	return allowed || p.mode != Strict && (!strings.Contains(n.s, ".") || !specialUse(n))
}

// Hint returns what to write to have n admitted on the port, as far as a policy can: a line, or what to do
// with the rule that denies. It is "" if nothing is missing.
func (d Decision) Hint(n Name, port uint16) string {
	switch d.Reason {
	case ReasonDenied:
		return fmt.Sprintf("narrow or remove %q at %s", d.Rule.Text(), d.Rule)
	case ReasonNotAllowed, ReasonPortNotAllowed:
		line := "allow " + n.s
		if port != AnyPort && (d.Reason == ReasonPortNotAllowed || !slices.Contains(defaultPorts, port)) {
			line += fmt.Sprintf(":%d", port)
		}
		return line
	}
	return ""
}

func (p *Policy) ruleAt(i uint32) Rule { return Rule{p, i + 1} }
