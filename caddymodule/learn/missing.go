package learn

import "fmt"

// missing is what is in the logs and not in the document.
type missing struct {
	passed
	metadata examples // names
	noRule   examples // names
	denied   examples // names, each with the rule
	moved    examples // policies
}

// examples is a number of things and the first of them.
type examples struct {
	n     int
	first string
}

func (e *examples) add(s string) {
	if e.n == 0 {
		e.first = s
	}
	e.n++
}

// lines returns a line for each kind of thing that is missing.
func (m *missing) lines() []string {
	var all []string
	say := func(n uint64, format string, args ...any) {
		if n > 0 {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	some := func(e examples, what string) { say(uint64(e.n), "%s: %d, the first is %s", what, e.n, e.first) }
	some(m.metadata, "names of cloud metadata services, which hand out credentials (write such a rule by hand)")
	some(m.noRule, "names that no rule can have")
	some(m.denied, "names that a deny rule is for")
	some(m.moved, "policies whose clients all have another one since")
	say(m.noPolicy, "decisions on clients that no policy is for: %d", m.noPolicy)
	say(m.full, "decisions beyond %d names and %d clients: %d (learn from fewer clients at once)", maxNames, maxClients, m.full)
	say(m.suppressed, "decisions that a log only has the number of: %d (a client made too many for a line each)", m.suppressed)
	say(m.malformed, "lines that cannot be read: %d, the first is %s", m.malformed, m.first)
	return all
}
