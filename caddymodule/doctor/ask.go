package doctor

import (
	"context"
	"net"
	"net/netip"

	"github.com/miekg/dns"
)

const (
	// nobody is a name that nobody can own (RFC 6761 §6.4). Resolvers answer it without asking others.
	nobody = "sandboxallow-doctor.invalid."
	// somebody is a name that everybody knows, with TXT records (RFC 6761 §6.5). A policy may allow it.
	somebody = "example.com."
	// mname is the source of denials: what the plugin puts into the SOA record of each answer without an
	// address. Unlike the Extended DNS Error it passes every forwarder.
	mname = "sandboxallow.invalid."
)

// ask puts a question over UDP, as the stub resolver of a client does.
func (s *surroundings) ask(ctx context.Context, server netip.AddrPort, name string, qtype uint16) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	c, err := s.dial(ctx, "udp", server.String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.SetEdns0(dns.DefaultMsgSize, false)
	client := dns.Client{Timeout: s.Timeout}
	r, _, err := client.ExchangeWithConnContext(ctx, m, &dns.Conn{Conn: c, UDPSize: dns.DefaultMsgSize})
	return r, err
}

// askTXT asks for a type that is never an address: the plugin answers it without records whether or not the
// policy allows the name, so that the answer tells who made it.
func (s *surroundings) askTXT(ctx context.Context, server netip.AddrPort, name string) (*dns.Msg, error) {
	return s.ask(ctx, server, name, dns.TypeTXT)
}

// ours reports whether the plugin made an answer.
func ours(r *dns.Msg) bool {
	for _, rr := range r.Ns {
		if soa, ok := rr.(*dns.SOA); ok && dns.CanonicalName(soa.Ns) == mname {
			return true
		}
	}
	return false
}

// blocked returns the text of the Extended DNS Error "Blocked", which begins with the reason; "" if there is
// none.
func blocked(r *dns.Msg) string {
	opt := r.IsEdns0()
	if opt == nil {
		return ""
	}
	for _, o := range opt.Option {
		if ede, ok := o.(*dns.EDNS0_EDE); ok && ede.InfoCode == dns.ExtendedErrorCodeBlocked {
			return ede.ExtraText
		}
	}
	return ""
}

// lookUp asks the first name server for the addresses of the name that the policy allows. Without a name, a
// server or an answer there are none.
func (s *surroundings) lookUp(ctx context.Context, qtype uint16) (addrs []netip.Addr) {
	if s.Sandbox.Name == "" || len(s.stub.servers) == 0 {
		return nil
	}
	r, err := s.ask(ctx, netip.AddrPortFrom(s.stub.servers[0], dnsPort), dns.Fqdn(s.Sandbox.Name), qtype)
	if err != nil {
		return nil
	}
	for _, rr := range r.Answer {
		var ip net.IP
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A
		case *dns.AAAA:
			ip = rr.AAAA
		}
		if a, ok := netip.AddrFromSlice(ip); ok {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs
}
