package sandboxallow

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// The names that the plugin itself answers, so that a sandbox can ask about its own policy. A single label
// is no public name: none is hidden.
const (
	reservedZone = name + "."
	whyZone      = "why." + reservedZone
	policyName   = "policy." + reservedZone
)

// reserved reports whether qname is sandboxallow. or below it.
func reserved(qname string) bool {
	_, ok := cutZone(qname, reservedZone)
	return ok
}

// cutZone returns what stands before the zone in qname, "" if nothing does. It compares labels: a dot may
// be part of one, and stands behind a backslash then.
func cutZone(qname, zone string) (before string, ok bool) {
	i := len(qname) - len(zone)
	if i < 0 || !strings.EqualFold(qname[i:], zone) || !dns.IsSubDomain(zone, qname) {
		return "", false
	}
	return strings.TrimSuffix(qname[:i], "."), true
}

// tell makes m the reply to a question for a reserved name. It is judged by the policy of whoever asks, and
// no decision: nobody is let through by it.
func (m *reply) tell(s *SandboxAllow, set *policy.Set, client netip.Addr, q *dns.Question) {
	sel := set.Select(client, s.listener.policy)
	var text []string
	if asked, ok := cutZone(q.Name, whyZone); ok {
		if asked != "" {
			text = why(sel, asked)
		}
	} else if before, ok := cutZone(q.Name, policyName); ok && before == "" {
		text = inForce(sel, set)
	} else if !strings.EqualFold(q.Name, reservedZone) {
		m.negative(s, q, dns.RcodeNameError)
		return
	}
	if q.Qtype != dns.TypeTXT || text == nil {
		m.negative(s, q, dns.RcodeSuccess)
		return
	}
	m.text(q, text)
}

// why tells what the policy says of a name, and of its port if one stands before it.
func why(sel policy.Selection, asked string) []string {
	port, host := cutPort(asked)
	n, _ := policy.ParseName(host) // the zero Name is judged to be none
	d := sel.Lookup(n, port)
	text := []string{
		pair("verdict", d.Verdict.String()),
		pair("reason", d.Reason.String()),
		pair("policy", d.Policy),
		pair("rule", d.Rule.Text()), // where it stands is the operator's affair
	}
	if d.Reason != policy.ReasonDenied { // which says where the rule stands
		text = append(text, pair("hint", d.Hint(n, port)))
	}
	return text
}

// inForce tells which policy is the client's, or that none is.
func inForce(sel policy.Selection, set *policy.Set) []string {
	if sel.Lookup(policy.Name{}, policy.AnyPort).Reason == policy.ReasonNoPolicy {
		return why(sel, "")
	}
	return []string{pair("policy", sel.Policy()), pair("mode", sel.Mode().String()), pair("hash", set.Hash())}
}

// cutPort splits "_8443.example.org", the form of SRV names. What has no port is about any.
func cutPort(asked string) (port uint16, host string) {
	first, rest, ok := strings.Cut(asked, ".")
	digits, ok2 := strings.CutPrefix(first, "_")
	n, err := strconv.ParseUint(digits, 10, 16)
	if !ok || !ok2 || err != nil || digits[0] < '1' || digits[0] > '9' {
		return policy.AnyPort, asked
	}
	return uint16(n), rest
}

// pair returns a string of a TXT record, "" if there is no value.
func pair(key, value string) string {
	if value == "" {
		return ""
	}
	return key + "=" + value
}

// maxString is how many octets a string of a TXT record has at most (RFC 1035 §3.3).
const maxString = 255

// text makes m a TXT reply with those strings that are not empty and fit. No cache may keep it: the next
// client may have another policy.
func (m *reply) text(q *dns.Question, lines []string) {
	txt := &dns.TXT{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}}
	size := m.head() + pointer + rrHeader
	for _, s := range lines {
		if s == "" || len(s) > maxString || size+1+len(s) > dns.MinMsgSize {
			continue
		}
		size += 1 + len(s)
		txt.Txt = append(txt.Txt, s)
	}
	m.rr[0] = txt
	m.msg.Answer = m.rr[:]
}
