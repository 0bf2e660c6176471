package policy

import "strings"

// specialUse reports whether no public name is meant by n: a single label, or a name below a domain that
// RFC 6761 and its successors set aside (.localhost, .local RFC 6762, .onion RFC 7686, .home.arpa
// RFC 8375, .internal ICANN 2024). All of .arpa counts: the reverse zones, DDR's resolver.arpa
// (RFC 9462) and ipv4only.arpa (RFC 7050) tell about networks, no server that a sandbox needs has its
// name there.
//
// An open or learn policy does not admit such a name by itself; an allow rule that matches it does.
func specialUse(n Name) bool {
	i := strings.LastIndexByte(n.s, '.')
	if i < 0 {
		return true
	}
	switch n.s[i+1:] {
	case "internal", "local", "localhost", "onion", "arpa":
		return true
	}
	return false
}
