package main

import (
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/miekg/dns"
)

// zone is the DNS server of the internet that the gateways reach: every name has one address, the upstream's.
type zone struct {
	addr   netip.AddrPort
	addr53 netip.AddrPort // for whoever knows no other port
	err53  error          // why there is none
	to     net.IP
	conns  []net.PacketConn
	asked  atomic.Int64 // questions so far
}

// zoneTTL is in seconds: every gateway has to ask again for each name within a run.
const zoneTTL = 30

func newZone(to netip.Addr) (*zone, error) {
	z := &zone{to: to.AsSlice()}
	var err error
	if z.addr, err = z.listen(netip.AddrPortFrom(loopback, 0)); err != nil {
		return nil, err
	}
	for last := byte(3); last < 16; last++ { // where port 53 is not likely to be taken, but by another bench
		if z.addr53, z.err53 = z.listen(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, last}), 53)); z.err53 == nil {
			break
		}
	}
	return z, nil
}

func (z *zone) listen(at netip.AddrPort) (netip.AddrPort, error) {
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return netip.AddrPort{}, err
	}
	z.conns = append(z.conns, c)
	go (&dns.Server{PacketConn: c, Handler: z}).ActivateAndServe()
	return c.LocalAddr().(*net.UDPAddr).AddrPort(), nil
}

func (z *zone) close() {
	for _, c := range z.conns {
		c.Close()
	}
}

// ServeDNS implements dns.Handler.
func (z *zone) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	z.asked.Add(1)
	m := new(dns.Msg)
	m.SetReply(r)
	m.RecursionAvailable = true
	if len(r.Question) != 1 {
		m.Rcode = dns.RcodeFormatError
		w.WriteMsg(m)
		return
	}
	q := r.Question[0]
	if q.Qtype == dns.TypeA {
		m.Answer = []dns.RR{&dns.A{Hdr: rrHeader(q.Name, dns.TypeA), A: z.to}}
	} else {
		m.Ns = []dns.RR{&dns.SOA{
			Hdr: rrHeader(q.Name, dns.TypeSOA), Ns: "ns.test.", Mbox: "hostmaster.test.",
			Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: zoneTTL,
		}}
	}
	w.WriteMsg(m)
}

func rrHeader(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: zoneTTL}
}
