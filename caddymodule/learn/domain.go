package learn

import (
	"maps"
	"math"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// domain is a node of the tree of all names of a group.
type domain struct {
	name  string // "" of the root
	depth int    // labels of the name
	use   *use   // of the name itself, nil if there was none
	below map[string]*domain

	// registered is how many labels the longest registered domain has that a name here or below belongs to. A
	// domain with fewer is shared by strangers.
	registered int
}

// insert adds a name to the tree below d, the root.
func (d *domain) insert(u *use) {
	name := u.name.String()
	registered := math.MaxInt
	if r, err := publicsuffix.EffectiveTLDPlusOne(name); err == nil {
		registered = strings.Count(r, ".") + 1
	}
	d.registered = max(d.registered, registered)
	for end := len(name); end > 0; {
		start := strings.LastIndexByte(name[:end-1], '.') + 1
		label := strings.TrimSuffix(name[start:end], ".")
		next := d.below[label]
		if next == nil {
			next = &domain{name: name[start:], depth: d.depth + 1}
			if d.below == nil {
				d.below = make(map[string]*domain)
			}
			d.below[label] = next
		}
		d, end = next, start
		d.registered = max(d.registered, registered)
	}
	d.use = u
}

// suffix is a domain, all below which is to be allowed, and what was done there.
type suffix struct {
	use
	why     string // "generated", "numbered" or "new", see endless and growing
	names   int
	example string // one of the names
}

// collapse returns the names of d and below it, and in place of those that have no end the domains above them.
//
// Only names that clients were connected to count for that. Any number of others costs a client nothing, and
// a tunnel through DNS consists of names that were only asked for.
func (d *domain) collapse(g *group, wildcardFrom int) (names []*use, suffixes []*suffix) {
	if d.use != nil {
		names = append(names, d.use)
	}
	var labels []string
	var firsts []int64
	for _, label := range slices.Sorted(maps.Keys(d.below)) {
		n, s := d.below[label].collapse(g, wildcardFrom)
		names, suffixes = append(names, n...), append(suffixes, s...)
		if first, ok := connected(n, s); ok {
			labels, firsts = append(labels, label), append(firsts, first)
		}
	}
	if wildcardFrom == 0 || len(labels) < wildcardFrom || !d.ownedByOne() {
		return names, suffixes
	}
	why := endless(labels, wildcardFrom)
	if why == "" && growing(firsts, g.first, g.last) {
		why = "new"
	}
	if why == "" {
		return names, suffixes
	}
	own := names[:0:0]
	if d.use != nil {
		own, names = names[:1], names[1:]
	}
	return own, []*suffix{d.all(names, suffixes, why)}
}

// connected reports whether a client was connected to one of the names, or one that a suffix stands for, and
// when such a one was seen first, 0 if unknown.
func connected(names []*use, suffixes []*suffix) (first int64, ok bool) {
	for _, s := range suffixes {
		first, ok = earlier(first, s.first), true
	}
	for _, u := range names {
		if u.opened > 0 {
			first, ok = earlier(first, u.first), true
		}
	}
	return first, ok
}

// ownedByOne reports whether whoever registered d decides on all names below it: d is no public suffix and has
// none below it, and is not, nor is below, a domain of a provider in which customers get names.
func (d *domain) ownedByOne() bool {
	if d.depth < 2 || d.registered > d.depth {
		return false
	}
	name := d.name
	for depth := d.depth; depth >= d.registered; depth-- {
		if warnings, err := policy.CheckRule("*." + name); err != nil || len(warnings) > 0 {
			return false
		}
		_, name, _ = strings.Cut(name, ".")
	}
	return true
}

// all returns the suffix that stands for names and suffixes below d.
func (d *domain) all(names []*use, suffixes []*suffix, why string) *suffix {
	all := &suffix{why: why}
	all.name, _ = policy.ParseName(d.name)
	for _, u := range names {
		all.merge(u, 1, u.name.String())
	}
	for _, s := range suffixes {
		all.merge(&s.use, s.names, s.example)
	}
	return all
}

func (s *suffix) merge(u *use, names int, example string) {
	s.names += names
	if s.example == "" {
		s.example = example
	}
	s.first = earlier(s.first, u.first)
	s.opened += u.opened
	s.asked += u.asked
	s.denied += u.denied
	s.ports = append(s.ports, u.ports...)
	slices.Sort(s.ports)
	s.ports = slices.Compact(s.ports)
}
