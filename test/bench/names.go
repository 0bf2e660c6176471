package main

import "fmt"

// rule is what all peers are given, in any number n: the even ones admit a single name, the odd ones a zone with all
// names below it. Their length does not depend on n, nor does that of the names that are asked for. All names are
// under RFC 6761 top-level domains, so none of them can be anybody's.
type rule struct {
	Name string
	Zone bool
}

// theRule returns rule i.
func theRule(i int) rule {
	if i%2 == 0 {
		return rule{fmt.Sprintf("api.site-%07d.example", i), false}
	}
	return rule{fmt.Sprintf("zone-%07d.test", i), true}
}

// rules returns the first n.
func rules(n int) []rule {
	rs := make([]rule, n)
	for i := range rs {
		rs[i] = theRule(i)
	}
	return rs
}

// suffix is the rule as our lists and most others write it: a zone with a leading dot.
func (r rule) suffix() string {
	if r.Zone {
		return "." + r.Name
	}
	return r.Name
}

// admitted returns a name that rule i admits. For a zone it is one below it, another one for each host.
func admitted(i, host int) string {
	r := theRule(i)
	if r.Zone {
		return fmt.Sprintf("h%03d.%s", host%1000, r.Name)
	}
	return r.Name
}

// denied returns a name that no rule admits.
func denied(i int) string { return fmt.Sprintf("www.other-%07d.invalid", i%10_000_000) }
