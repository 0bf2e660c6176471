package learn

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// Result is what was learned.
type Result struct {
	Document string   // policies, formatted; "" if nothing is to be added
	Names    int      // that the document allows one by one
	Domains  int      // below which it allows everything
	Missing  []string // what is in the logs and not in the document, apart from what Options left out
}

// Result returns policies that strictly allow what was read. Its error says that there was nothing.
func (l *Learner) Result() (*Result, error) {
	if len(l.groups) == 0 && l.passed == (passed{}) {
		return nil, fmt.Errorf("no decision to learn from in %d lines, accepted are the JSON log of Caddy's logger %s, "+
			"and what the plugin of that name writes into the log of CoreDNS", l.lines, logger)
	}
	r := new(Result)
	var b strings.Builder
	m := missing{passed: l.passed}
	for _, g := range l.sorted() {
		p := l.policy(g, &m)
		if p == nil || len(p.rules) == 0 && l.options.Diff != nil {
			continue
		}
		p.write(&b)
		for _, rule := range p.rules {
			if rule.prefix != "" {
				r.Domains++
			} else {
				r.Names++
			}
		}
	}
	r.Missing = m.lines()
	if b.Len() == 0 {
		return r, nil
	}
	text, err := policy.Format("", l.head()+b.String())
	if err != nil {
		return nil, fmt.Errorf("what was learned is no policy: %w", err)
	}
	r.Document = text
	return r, nil
}

// head returns the comment that a document begins with.
func (l *Learner) head() string {
	var first, last int64
	for _, g := range l.groups {
		first, last = earlier(first, g.first), max(last, g.last)
	}
	s := "# Learned from " + plural(l.decisions, "decision")
	switch {
	case first == 0:
	case minute(first) == minute(last):
		s += " at " + minute(first) + " UTC"
	default:
		s += fmt.Sprintf(" between %s and %s UTC", minute(first), minute(last))
	}
	s += ".\n# The sandbox chose these names: read each line before it is in force.\n"
	if l.options.Diff != nil {
		s += "# These lines are to be added to the policies of the same names.\n"
	}
	return s + "\n"
}

func minute(at int64) string { return time.Unix(at, 0).UTC().Format("2006-01-02 15:04") }

func plural(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// defaultPolicy is the policy that has no client line where there are several.
const defaultPolicy = "default"

// sorted returns the groups, the default one first.
func (l *Learner) sorted() []*group {
	names := slices.Sorted(maps.Keys(l.groups))
	if i := slices.Index(names, defaultPolicy); i > 0 {
		names = slices.Insert(slices.Delete(names, i, i+1), 0, defaultPolicy)
	}
	groups := make([]*group, len(names))
	for i, name := range names {
		groups[i] = l.groups[name]
	}
	return groups
}

// learned is one policy of a document.
type learned struct {
	name    string
	clients []string
	ports   []uint16 // nil: those that a policy has without a line
	rules   []rule
	rare    int // names with fewer decisions than Options.MinCount
	min     int
}

// rule is one allow line.
type rule struct {
	prefix  string // "*." for all below the name, "." for the name too
	name    string
	ports   string // such as ":443,8443"
	comment string
	order   string // the labels of the name from the right
}

func (p *learned) write(b *strings.Builder) {
	fmt.Fprintf(b, "policy %s {\n", p.name)
	if len(p.clients) > 0 {
		fmt.Fprintf(b, "client %s\n", strings.Join(p.clients, " "))
	}
	if p.ports != nil {
		fmt.Fprintf(b, "ports %s\n", joinPorts(p.ports, " "))
	}
	for _, r := range p.rules {
		fmt.Fprintf(b, "allow %s%s%s # %s\n", r.prefix, r.name, r.ports, r.comment)
	}
	if p.rare > 0 {
		fmt.Fprintf(b, "# Left out: %s with fewer than %s.\n", plural(uint64(p.rare), "name"), plural(uint64(p.min), "decision"))
	}
	b.WriteString("}\n\n")
}

// policy makes the policy of a group, nil if it would be for nobody.
func (l *Learner) policy(g *group, m *missing) *learned {
	p := &learned{name: g.policy, min: l.options.MinCount}
	if !l.setClients(p, g) {
		m.moved.add(g.policy)
		return nil
	}
	var tree domain
	for _, name := range slices.Sorted(maps.Keys(g.names)) {
		u := g.names[name]
		switch {
		case policy.MetadataName(u.name):
			m.metadata.add(name)
		case u.count() < uint64(l.options.MinCount):
			p.rare++
		case l.options.Diff == nil:
			tree.insert(u)
		default:
			if u = g.toAdd(u, m); u != nil {
				tree.insert(u)
			}
		}
	}
	names, suffixes := tree.collapse(g, l.options.WildcardFrom)
	ports := l.setPorts(p, g, names, suffixes)
	for _, u := range names {
		p.add(rule{name: u.name.String(), ports: ports(u), comment: u.comment()}, m)
	}
	for _, s := range suffixes {
		p.add(rule{prefix: "*.", name: s.name.String(), ports: ports(&s.use), comment: s.comment()}, m)
	}
	p.sort()
	return p
}

// add adds a rule if it is one: DNS has names that no operator would write, such as -x.example.com.
func (p *learned) add(r rule, m *missing) {
	if _, err := policy.CheckRule(r.prefix + r.name + r.ports); err != nil {
		m.noRule.add(r.name)
		return
	}
	labels := strings.Split(r.name, ".")
	slices.Reverse(labels)
	r.order = strings.Join(labels, "\x00")
	p.rules = append(p.rules, r)
}

// sort sorts the rules, so that those of one owner are together, and makes one of a name and all below it.
func (p *learned) sort() {
	slices.SortStableFunc(p.rules, func(a, b rule) int { return strings.Compare(a.order, b.order) })
	rules := p.rules[:0]
	for _, r := range p.rules {
		if n := len(rules); n > 0 && rules[n-1].name == r.name && rules[n-1].ports == r.ports {
			r.prefix, r.comment = ".", r.comment+"; itself "+rules[n-1].comment
			rules = rules[:n-1]
		}
		rules = append(rules, r)
	}
	p.rules = rules
}

// toAdd returns what the rules of the policy to add to do not allow of u, nil if they allow all of it or if no
// rule could.
func (g *group) toAdd(u *use, m *missing) *use {
	ports := u.ports
	if len(ports) == 0 {
		ports = []uint16{policy.AnyPort}
	}
	var add []uint16
	for _, port := range ports {
		switch d := g.selection.Lookup(u.name, port); {
		case d.Verdict == policy.Allow && !d.Rule.IsZero():
		case d.Reason == policy.ReasonDenied:
			m.denied.add(fmt.Sprintf("%s (%s at %s)", u.name, d.Rule.Text(), d.Rule))
		default:
			add = append(add, port)
		}
	}
	if len(add) == 0 {
		return nil
	}
	left := *u
	if left.ports = add; add[0] == policy.AnyPort {
		left.ports = nil
	}
	return &left
}

// comment tells what was done with a name.
func (u *use) comment() string {
	var parts []string
	count, behind := u.opened+u.denied, ""
	if u.opened > 0 {
		parts = append(parts, times(u.opened))
	} else if u.asked > 0 {
		parts = append(parts, "asked for "+times(u.asked))
		count, behind = count+u.asked, ", never connected to"
	}
	if u.denied > 0 {
		parts = append(parts, "denied "+times(u.denied))
	}
	s := strings.Join(parts, ", ")
	switch {
	case u.first == 0:
	case count == 1:
		s += " on " + minute(u.first)
	default:
		s += " since " + minute(u.first)
	}
	return s + behind
}

func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func (s *suffix) comment() string {
	return fmt.Sprintf("all below: %d %s names such as %s, %s", s.names, s.why, s.example, s.use.comment())
}
