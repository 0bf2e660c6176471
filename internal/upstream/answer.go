package upstream

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const (
	// maxChain bounds the CNAME records followed for one name, over all
	// replies. Real chains have three or four.
	maxChain = 16

	// maxAddrs bounds the addresses kept of one reply. More than that cannot
	// be tried, and a reply over TCP has room for thousands.
	maxAddrs = 64
)

// absence is how a server says that there is no address. It is ErrNoAddress.
type absence string

const (
	nxdomain absence = "NXDOMAIN"
	nodata   absence = "no A or AAAA record"
)

func (a absence) Error() string        { return string(a) }
func (a absence) Is(target error) bool { return target == ErrNoAddress }

// answer is what one reply says about the name and type of its question. Exactly
// one of addrs, next and none is set.
type answer struct {
	addrs []netip.Addr  // the addresses, in the order of the reply
	next  string        // the canonical name at which the reply stops short: ask on for it
	none  absence       // there is no address
	ttl   time.Duration // of addrs or next and the chain to them, whichever is shortest
	steps int           // CNAME records followed
}

var errChain = fmt.Errorf("more than %d CNAME records in a chain", maxChain)

// readAnswer interprets the reply m to q, which asks for A or AAAA records. Only
// records whose owner the CNAME chain from the question leads to count (RFC 1034
// §3.6.2): what else is in a reply is nobody's answer. An error means that m
// says nothing about q.
func readAnswer(m *dns.Msg, q dns.Question) (answer, error) {
	if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return answer{}, errors.New(rcodeText(m.Rcode))
	}
	ttl := uint32(math.MaxUint32)
	owner := q.Name
	for step := 0; ; step++ {
		if step > maxChain {
			return answer{}, errChain
		}
		addrs, least := addresses(m.Answer, owner, q.Qtype)
		next, nextTTL, ok := alias(m.Answer, owner)
		switch {
		case m.Rcode == dns.RcodeNameError && !ok:
			// Of the last name in the chain (RFC 6604 §3), so an address
			// beside it would be a contradiction.
			return answer{none: nxdomain, steps: step}, nil
		case len(addrs) > 0:
			return answer{addrs: addrs, ttl: seconds(min(ttl, least)), steps: step}, nil
		case ok:
			owner, ttl = next, min(ttl, nextTTL)
		case hasSOA(m):
			return answer{none: nodata, steps: step}, nil // RFC 2308 §2.2
		case step > 0:
			return answer{next: owner, ttl: seconds(ttl), steps: step}, nil
		case !m.Authoritative && !m.RecursionAvailable:
			// It neither owns the name nor asks for us: this is no answer.
			return answer{}, errors.New("referral, which means that the server does not resolve for us")
		default:
			return answer{none: nodata}, nil
		}
	}
}

// addresses returns the addresses of owner and their smallest TTL.
func addresses(rrs []dns.RR, owner string, qtype uint16) (addrs []netip.Addr, ttl uint32) {
	ttl = math.MaxUint32
	for _, rr := range rrs {
		h := rr.Header()
		if h.Rrtype != qtype || h.Class != dns.ClassINET || !sameName(h.Name, owner) {
			continue
		}
		var ip net.IP
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A.To4()
		case *dns.AAAA:
			ip = rr.AAAA
		}
		// A record without data has none.
		if a, ok := netip.AddrFromSlice(ip); ok && len(addrs) < maxAddrs {
			addrs = append(addrs, a)
			ttl = min(ttl, h.Ttl)
		}
	}
	return addrs, ttl
}

// alias returns what the first CNAME record of owner points to. One without data
// points nowhere.
func alias(rrs []dns.RR, owner string) (target string, ttl uint32, ok bool) {
	for _, rr := range rrs {
		if c, ok := rr.(*dns.CNAME); ok && c.Target != "" && c.Hdr.Class == dns.ClassINET && sameName(c.Hdr.Name, owner) {
			return c.Target, c.Hdr.Ttl, true
		}
	}
	return "", 0, false
}

func hasSOA(m *dns.Msg) bool {
	for _, rr := range m.Ns {
		if _, ok := rr.(*dns.SOA); ok {
			return true
		}
	}
	return false
}

// sameName compares two names as the dns package unpacks them: everything but
// printable ASCII is escaped, so that folding cannot take anything else for a
// letter.
func sameName(a, b string) bool { return strings.EqualFold(a, b) }

// seconds is a TTL as a duration; one with the top bit set is zero (RFC 2181 §8).
func seconds(ttl uint32) time.Duration {
	if ttl > math.MaxInt32 {
		return 0
	}
	return time.Duration(ttl) * time.Second
}

func rcodeText(rcode int) string {
	if s, ok := dns.RcodeToString[rcode]; ok {
		return s
	}
	return fmt.Sprintf("RCODE %d", rcode)
}

// answers reports whether m is a reply to q: to nothing else, and not from
// somebody who guessed only its number.
func answers(m *dns.Msg, id uint16, q dns.Question) bool {
	if !m.Response || m.Id != id || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 {
		return false
	}
	got := m.Question[0]
	return got.Qtype == q.Qtype && got.Qclass == q.Qclass && sameName(got.Name, q.Name)
}
