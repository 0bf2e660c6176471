// Package learn makes the smallest policy that can be reviewed out of decision logs: exact names, a domain only
// where the names below it have no end.
//
// A log is full of what its clients chose, and they know that it is read here. Whatever is written is a name
// that policy.ParseName has made, a number, a time, or an address.
package learn

import (
	"net/netip"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// Options is what to learn, and from whom.
type Options struct {
	// Client is whose decisions count. The zero prefix: everybody's.
	Client netip.Prefix

	// MinCount is how many decisions a name needs to be allowed. Zero: one.
	MinCount int

	// Denied has names count that no rule allowed and that were denied for it.
	Denied bool

	// WildcardFrom is how many names below a domain it takes to allow all that is below. Zero: any number of
	// names stay names.
	WildcardFrom int

	// Diff is a set of policies that is to be added to. Names that its rules allow are left out, and a client's
	// names go to its policy there, not to the one in the log. Nil: write whole policies.
	Diff *policy.Set
}

// The limits of what a Learner keeps, which a sandbox could fill otherwise. Nobody reviews as many names.
const (
	maxNames   = 100_000 // of all policies together; each port of a name counts as one
	maxClients = 100_000
)

// Learner collects decisions.
type Learner struct {
	options Options
	groups  map[string]*group // by policy
	clients map[string]*client
	names   int // in all groups
	full    int // names at most

	lines     uint64
	decisions uint64 // that count
	passed    passed
}

// passed is what is not in the policy although it was in a log.
type passed struct {
	malformed  uint64 // lines
	first      string // file:line of the first of them
	suppressed uint64 // decisions that a log only has the number of
	full       uint64 // decisions beyond the limits
	noPolicy   uint64 // decisions on clients that Options.Diff has no policy for
}

// group is what becomes one policy.
type group struct {
	policy      string
	selection   policy.Selection // in Options.Diff
	names       map[string]*use
	first, last int64 // in seconds since 1970, 0 if unknown
}

// use is what was done with one name.
type use struct {
	name   policy.Name
	ports  []uint16 // sorted; none: it was only asked for in DNS
	first  int64    // in seconds since 1970, 0 if unknown
	asked  uint64   // decisions, most of them in DNS, that nothing was connected by
	opened uint64   // decisions that a connection was made by
	denied uint64
}

func (u *use) count() uint64 { return u.asked + u.opened + u.denied }

// client is one that is in a log.
type client struct {
	addr   netip.Addr
	counts bool   // it is one of Options.Client
	policy string // which judged it last
}

// New returns a Learner that has read nothing yet.
func New(o Options) *Learner {
	return &Learner{options: o, groups: make(map[string]*group), clients: make(map[string]*client), full: maxNames}
}

// Decisions returns how many decisions count so far.
func (l *Learner) Decisions() uint64 { return l.decisions }

// add takes a decision.
func (l *Learner) add(e *entry) kind {
	if !e.admitted() && !(l.options.Denied && e.missing()) {
		return decided
	}
	c, err := l.client(e.client)
	switch {
	case err != nil:
		return malformed
	case c == nil:
		l.passed.full += e.repeated
		return decided
	case !c.counts:
		return decided
	}
	g := l.group(c, e.policy)
	if g == nil {
		if l.options.Diff == nil {
			return malformed
		}
		l.passed.noPolicy += e.repeated
		return decided
	}
	u := g.names[string(e.name)]
	if u == nil {
		n, err := policy.ParseName(string(e.name))
		if err != nil {
			return refused(e)
		}
		if u = l.use(g, n); u == nil {
			l.passed.full += e.repeated
			return decided
		}
	}
	if !l.addPort(u, e.port) {
		l.passed.full += e.repeated
		return decided
	}
	l.decisions += e.repeated
	u.add(e)
	at := seconds(e.time)
	u.first, g.first, g.last = earlier(u.first, at), earlier(g.first, at), max(g.last, at)
	return decided
}

// use returns the use of a name in a group, nil if there is no room for it.
func (l *Learner) use(g *group, n policy.Name) *use {
	u := g.names[n.String()]
	if u == nil && l.names < l.full {
		u = &use{name: n}
		g.names[n.String()] = u
		l.groups[g.policy] = g
		l.names++
	}
	return u
}

// refused returns what a line with a name that is none is: nobody is let through by one.
func refused(e *entry) kind {
	if e.admitted() {
		return malformed
	}
	return decided
}

func (u *use) add(e *entry) {
	switch {
	case !e.admitted():
		u.denied += e.repeated
	case e.connected():
		u.opened += e.repeated
	default:
		u.asked += e.repeated
	}
}

// addPort reports whether there is room for a port.
func (l *Learner) addPort(u *use, port uint16) bool {
	if port == 0 {
		return true
	}
	i := 0
	for i < len(u.ports) && u.ports[i] < port {
		i++
	}
	if i < len(u.ports) && u.ports[i] == port {
		return true
	}
	if len(u.ports) > 0 {
		if l.names >= l.full {
			return false
		}
		l.names++
	}
	u.ports = append(u.ports, 0)
	copy(u.ports[i+1:], u.ports[i:])
	u.ports[i] = port
	return true
}

// earlier returns the earlier of two times that may be unknown.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// client returns the client of an address, nil if there are too many.
func (l *Learner) client(addr []byte) (*client, error) {
	if c := l.clients[string(addr)]; c != nil {
		return c, nil
	}
	a, err := netip.ParseAddr(string(addr))
	if err != nil || len(l.clients) >= maxClients {
		return nil, err
	}
	a = a.Unmap().WithZone("")
	c := &client{addr: a, counts: !l.options.Client.IsValid() || l.options.Client.Contains(a)}
	l.clients[string(addr)] = c
	return c, nil
}

// group returns where the decisions on a client go: by its policy in Options.Diff, or else by the one that the
// log names. It is nil if there is none, and is one of l.groups as soon as it has a name.
func (l *Learner) group(c *client, logged []byte) *group {
	set := l.options.Diff
	switch {
	case set == nil && string(logged) != c.policy:
		c.policy = string(logged)
	case set != nil && c.policy == "":
		c.policy = set.Select(c.addr, "").Policy()
	}
	if g := l.groups[c.policy]; g != nil {
		return g
	}
	if !policy.ValidPolicyName(c.policy) {
		return nil
	}
	g := &group{policy: c.policy, names: make(map[string]*use)}
	if set != nil {
		g.selection = set.Select(c.addr, "")
	}
	return g
}
