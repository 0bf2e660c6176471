// Package sandboxallow is the CoreDNS plugin of the same name: names that the policy allows resolve to the
// gateway, all others do not exist, and no question is ever forwarded.
//
// It only steers. Whoever ignores the answer and dials something else meets the gateway, which decides
// again, or no route at all.
package sandboxallow

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/edns"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/miekg/dns"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// name is also the directive. If Name returned anything else, *ready* and *metadata* would not see us.
const name = "sandboxallow"

var log = clog.NewWithPlugin(name)

// SandboxAllow answers the questions of one server block. It has no next handler on purpose: nothing
// behind it may answer for a name that it denied.
type SandboxAllow struct {
	zones    plugin.Zones  // of the server block
	v4       []net.IP      // what A is answered with
	v6       []net.IP      // what AAAA is answered with
	ttl      uint32        // of addresses, in seconds
	negative uint32        // TTL of NODATA and NXDOMAIN, in seconds
	listener listener      // the policy that the server block names
	store    *policy.Store // what the clients' addresses select from
	running  atomic.Bool
	counters atomic.Pointer[counters]
	instance *instance

	verbosity verbosity
	folder    *decision.Folder // of what is logged
}

// listener is a `policy NAME` line. The zero value names none.
type listener struct {
	policy string
	where  string // file:line
}

// ServeDNS implements plugin.Handler.
func (s *SandboxAllow) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if r.Response {
		return dns.RcodeSuccess, nil // dropped: answering an answer makes loops
	}
	opt, rcode := check(r)
	if rcode == dns.RcodeBadVers {
		m, _ := edns.Version(r)
		w.WriteMsg(m)
		return rcode, nil
	}
	if rcode != dns.RcodeSuccess {
		return rcode, nil // the server writes it, and would again had we
	}

	q := &r.Question[0]
	set := s.store.Set()
	client := clientAddr(w.RemoteAddr())
	if reserved(q.Name) {
		m := newReply(r, opt)
		m.tell(s, set, client, q)
		w.WriteMsg(&m.msg)
		return dns.RcodeSuccess, nil
	}
	d, n := s.decide(set, client, q.Name)
	s.count(set, d)
	s.record(client, q.Name, n, d)
	if rec := recordOf(ctx); rec != nil {
		rec.decided, rec.decision = true, d
	}

	m := newReply(r, opt)
	switch d.Existence() {
	case policy.Present:
		m.addresses(s, q)
	case policy.Empty:
		m.negative(s, q, dns.RcodeSuccess)
		if d.Reason == policy.ReasonDenied {
			m.blocked(d, n)
		}
	default:
		m.negative(s, q, dns.RcodeNameError)
		m.blocked(d, n)
	}
	w.WriteMsg(&m.msg)
	return dns.RcodeSuccess, nil
}

// Name implements plugin.Handler.
func (s *SandboxAllow) Name() string { return name }

// check returns the rcode that a message gets before its name is looked at, and its OPT record. The DNS
// server has made most of these checks on UDP and TCP, but messages come over HTTPS, QUIC and gRPC too.
func check(r *dns.Msg) (*dns.OPT, int) {
	if r.Opcode != dns.OpcodeQuery {
		return nil, dns.RcodeNotImplemented // NOTIFY among them, which the server lets through
	}
	if len(r.Question) != 1 {
		return nil, dns.RcodeFormatError // RFC 9619
	}
	var opt *dns.OPT
	for _, rr := range r.Extra {
		o, ok := rr.(*dns.OPT)
		if !ok {
			continue
		}
		if opt != nil {
			return nil, dns.RcodeFormatError // RFC 6891 §6.1.1
		}
		opt = o
	}
	if opt != nil && opt.Version() != 0 {
		return opt, dns.RcodeBadVers // RFC 6891 §6.1.3
	}
	q := &r.Question[0]
	if q.Qclass != dns.ClassINET || q.Qtype == dns.TypeAXFR || q.Qtype == dns.TypeIXFR {
		return opt, dns.RcodeRefused
	}
	return opt, dns.RcodeSuccess
}

// decide judges a question's name on behalf of a client. The Name is the zero one if qname is none.
func (s *SandboxAllow) decide(set *policy.Set, client netip.Addr, qname string) (policy.Decision, policy.Name) {
	n, err := policy.ParseName(qname)
	if !client.IsValid() {
		// A default policy is for every address, not for none.
		return policy.Decision{Reason: policy.ReasonNoPolicy}, n
	}
	sel := set.Select(client, s.listener.policy)
	if qname == "." {
		// NXDOMAIN here would deny the whole tree, to whoever believes RFC 8020.
		return policy.Decision{Reason: policy.ReasonNotAllowed, Policy: sel.Policy(), Below: true}, policy.Name{}
	}
	if err != nil {
		return policy.Decision{Reason: policy.ReasonBadName, Policy: sel.Policy()}, policy.Name{}
	}
	return sel.Lookup(n, policy.AnyPort), n // DNS does not know which port will be dialled
}

// clientAddr returns the address that selects the policy, unmapped and without a zone, or the zero Addr if
// a holds none.
func clientAddr(a net.Addr) netip.Addr {
	if u, ok := a.(interface{ Unwrap() net.Addr }); ok { // *proxyproto* wraps addresses
		if inner := u.Unwrap(); inner != nil {
			a = inner
		}
	}
	var ip net.IP
	switch a := a.(type) {
	case *net.UDPAddr:
		ip = a.IP
	case *net.TCPAddr:
		ip = a.IP
	case nil:
		return netip.Addr{}
	default:
		ap, _ := netip.ParseAddrPort(a.String())
		return ap.Addr().Unmap().WithZone("")
	}
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

var _ plugin.Handler = (*SandboxAllow)(nil)
