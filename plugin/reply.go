package sandboxallow

import (
	"net"
	"strings"

	"github.com/miekg/dns"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// reply is a message together with the records that nearly every one has, so that making it is one
// allocation. It is not pooled: over HTTPS a message is packed after ServeDNS has returned.
type reply struct {
	msg      dns.Msg
	question [1]dns.Question
	rr       [1]dns.RR // the answer or the authority section
	a        dns.A
	aaaa     dns.AAAA
	soa      dns.SOA
	extra    [1]dns.RR
	opt      dns.OPT
	option   [1]dns.EDNS0
	ede      dns.EDNS0_EDE
}

// newReply answers r with no record. opt is the OPT record of r, or nil.
//
// The reply has an OPT record of its own even where the server would add one: that one would be r's, with
// the client's options in it.
func newReply(r *dns.Msg, opt *dns.OPT) *reply {
	m := new(reply)
	m.question[0] = r.Question[0]
	m.msg.Question = m.question[:]
	m.msg.Id = r.Id
	m.msg.Response = true
	m.msg.RecursionDesired = r.RecursionDesired
	m.msg.CheckingDisabled = r.CheckingDisabled
	// Without either of these Go's resolver takes NODATA for a lame referral and asks the next server.
	m.msg.Authoritative = true
	m.msg.RecursionAvailable = true

	if opt == nil {
		return m
	}
	if opt.UDPSize() < dns.MinMsgSize {
		// RFC 6891 §6.2.3. In the request, because the server copies its size into the reply.
		opt.SetUDPSize(dns.MinMsgSize)
	}
	m.opt.Hdr.Name = "."
	m.opt.Hdr.Rrtype = dns.TypeOPT
	m.opt.SetUDPSize(opt.UDPSize())
	if opt.Do() {
		m.opt.SetDo()
	}
	m.extra[0] = &m.opt
	m.msg.Extra = m.extra[:]
	return m
}

// maxAddresses is how many addresses of a family fit a reply of 512 octets together with a name of 255 and
// an OPT record: 12 + 255 + 4 + 8 × 28 + 11 = 506. No reply is ever truncated, so that clients which do
// not come back over TCP work (musl before 1.2.4).
const maxAddresses = 8

// addresses makes m the reply for an admitted name.
func (m *reply) addresses(s *SandboxAllow, q *dns.Question) {
	switch {
	case q.Qtype == dns.TypeA && len(s.v4) > 0:
		hdr := dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: s.ttl}
		if len(s.v4) == 1 {
			m.a = dns.A{Hdr: hdr, A: s.v4[0]}
			m.rr[0] = &m.a
			m.msg.Answer = m.rr[:]
			return
		}
		m.msg.Answer = records(s.v4, func(ip net.IP) dns.RR { return &dns.A{Hdr: hdr, A: ip} })
	case q.Qtype == dns.TypeAAAA && len(s.v6) > 0:
		hdr := dns.RR_Header{Name: q.Name, Rrtype: dns.TypeAAAA, Class: dns.ClassINET, Ttl: s.ttl}
		if len(s.v6) == 1 {
			m.aaaa = dns.AAAA{Hdr: hdr, AAAA: s.v6[0]}
			m.rr[0] = &m.aaaa
			m.msg.Answer = m.rr[:]
			return
		}
		m.msg.Answer = records(s.v6, func(ip net.IP) dns.RR { return &dns.AAAA{Hdr: hdr, AAAA: ip} })
	default:
		m.negative(s, q, dns.RcodeSuccess)
	}
}

func records(ips []net.IP, record func(net.IP) dns.RR) []dns.RR {
	rrs := make([]dns.RR, len(ips))
	for i, ip := range ips {
		rrs[i] = record(ip)
	}
	return rrs
}

// The source of denials and its mailbox, in names that nobody can own (RFC 6761 §6.4).
const (
	mname = name + ".invalid."
	rname = "hostmaster.invalid."
)

// negative makes m a NODATA (NOERROR) or NXDOMAIN reply that resolvers cache (RFC 2308 §5).
func (m *reply) negative(s *SandboxAllow, q *dns.Question, rcode int) {
	m.msg.Rcode = rcode
	m.soa = dns.SOA{
		Hdr: dns.RR_Header{Name: s.apex(q.Name), Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: s.negative},
		Ns:  mname, Mbox: rname,
		Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: s.negative,
	}
	m.rr[0] = &m.soa
	m.msg.Ns = m.rr[:]
}

// apex returns the owner of the SOA record: the zone of the server block that qname is in. A resolver that
// forwards only this zone to us would throw away an SOA record from above it.
func (s *SandboxAllow) apex(qname string) string {
	if len(s.zones) == 1 && s.zones[0] == "." {
		return "."
	}
	z := s.zones.Matches(qname)
	if z == "" {
		return "." // *rewrite* took the name out of the zone
	}
	if i := len(qname) - len(z); i >= 0 && strings.EqualFold(qname[i:], z) {
		return qname[i:] // in the case of the question, or it would not compress
	}
	return z
}

// blocked adds the Extended DNS Error that says why, if the client can take it (RFC 8914). The text begins
// with the reason.
func (m *reply) blocked(d policy.Decision, n policy.Name) {
	if len(m.msg.Extra) == 0 {
		return
	}
	const option = 2 + 2 + 2 // code, length, info code
	text := explain(d, n)
	if m.size()+option+len(text) > dns.MinMsgSize {
		text = d.Reason.String() // rather than a reply that some path drops or a client truncates
	}
	m.ede = dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeBlocked, ExtraText: text}
	m.option[0] = &m.ede
	m.opt.Option = m.option[:]
}

// Lengths in octets of parts of a message (RFC 1035 §4.1).
const (
	header   = 12
	maxWire  = 255    // of a name
	pointer  = 2      // in place of a name that stands before it
	rrHeader = 10     // of a record behind its owner: type, class, TTL, length
	numbers  = 5 * 4  // of an SOA record
	question = 2 + 2  // type and class
	optSize  = 1 + 10 // of an OPT record without options
)

// head returns how many octets header, question and OPT record have at most.
func (m *reply) head() int {
	return header + min(len(m.question[0].Name)+1, maxWire) + question + optSize
}

// size returns how many octets the negative reply m has at most, as yet without options. The owner of the
// SOA record is a suffix of the question's name.
func (m *reply) size() int {
	return m.head() + pointer + rrHeader + len(mname) + 1 + len(rname) + 1 + numbers
}

// explain says in a line why a name is denied.
func explain(d policy.Decision, n policy.Name) string {
	switch d.Reason {
	case policy.ReasonNotAllowed:
		return "not_allowed: " + n.String() + " is not in policy " + d.Policy
	case policy.ReasonDenied:
		return "denied: " + n.String() + ` by rule "` + d.Rule.Text() + `"` // whose place is the host's affair
	case policy.ReasonBadName:
		return "bad_name: a host name has labels of letters, digits, '-' and '_'"
	case policy.ReasonNoPolicy:
		return "no_policy: no policy is for this client or listener"
	default:
		return d.Reason.String()
	}
}
