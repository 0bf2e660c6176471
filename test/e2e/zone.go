//go:build linux

package e2e

import (
	"net/netip"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

// reply is what the internet's DNS server says of a name. The zero value is an empty answer.
type reply struct {
	addrs []netip.Addr
	rcode int
	ttl   uint32 // seconds
}

// addrs is a reply with addresses, good for a minute.
func addrs(list ...netip.Addr) reply { return reply{addrs: list, ttl: 60} }

// zone is the internet's DNS server: it knows all names there are, and keeps what it was asked.
type zone struct {
	mu      sync.Mutex
	names   map[string][]reply // by FQDN
	asked   map[dns.Question]int
	silent  bool
	servers []*dns.Server
}

// serve answers on a UDP and a TCP address.
func (z *zone) serve(n *namespace, ap netip.AddrPort) error {
	l, err := n.listen(ap)
	if err != nil {
		return err
	}
	pc, err := n.listenUDP(ap)
	if err != nil {
		return err
	}
	for _, s := range []*dns.Server{{Listener: l, Handler: z}, {PacketConn: pc, Handler: z}} {
		z.servers = append(z.servers, s)
		up := make(chan struct{})
		s.NotifyStartedFunc = func() { close(up) }
		go func() { _ = s.ActivateAndServe() }()
		<-up
	}
	return nil
}

// close ends the server: from now on its port is closed.
func (z *zone) close() {
	for _, s := range z.servers {
		_ = s.Shutdown()
	}
	z.servers = nil
}

// set says what a name has. The first question of a type gets the first reply, the next one the next, and
// the last one is for all that follow.
func (z *zone) set(name string, replies ...reply) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.names[dns.Fqdn(name)] = replies
}

// hush makes the server take questions and say nothing, or talk again.
func (z *zone) hush(silent bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.silent = silent
}

// questions returns how often a name was asked for, for whatever type.
func (z *zone) questions(name string) (sum int) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for q, n := range z.asked {
		if strings.EqualFold(q.Name, dns.Fqdn(name)) {
			sum += n
		}
	}
	return sum
}

// below returns the names at and below a domain that were asked for.
func (z *zone) below(domain string) (names []string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for q := range z.asked {
		if dns.IsSubDomain(dns.Fqdn(domain), q.Name) {
			names = append(names, q.Name)
		}
	}
	return names
}

// ServeDNS implements dns.Handler.
func (z *zone) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	if len(r.Question) != 1 {
		_ = w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeFormatError))
		return
	}
	rep, known, silent := z.next(r.Question[0])
	if silent {
		return
	}
	m := new(dns.Msg).SetReply(r)
	m.RecursionAvailable = true
	if !known {
		rep.rcode = dns.RcodeNameError
	}
	m.Rcode = rep.rcode
	q := r.Question[0]
	for _, a := range rep.addrs {
		h := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: rep.ttl}
		switch {
		case q.Qtype == dns.TypeA && a.Is4():
			m.Answer = append(m.Answer, &dns.A{Hdr: h, A: a.AsSlice()})
		case q.Qtype == dns.TypeAAAA && a.Is6():
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: h, AAAA: a.AsSlice()})
		}
	}
	if len(m.Answer) == 0 && (m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError) {
		h := dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 5}
		m.Ns = append(m.Ns, &dns.SOA{Hdr: h, Ns: ".", Mbox: ".", Minttl: 5})
	}
	_ = w.WriteMsg(m)
}

// next counts a question and returns the reply that is due.
func (z *zone) next(q dns.Question) (rep reply, known, silent bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	q.Name = strings.ToLower(q.Name)
	n := z.asked[q]
	z.asked[q]++
	replies := z.names[q.Name]
	if len(replies) == 0 {
		return reply{}, false, z.silent
	}
	return replies[min(n, len(replies)-1)], true, z.silent
}
