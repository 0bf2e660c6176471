//go:build linux

package e2e

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/miekg/dns"
)

// internet is what is beyond the gateway: a DNS server, web servers, and listeners that only count.
type internet struct {
	ns  *namespace
	dns *zone
	web *web

	mu      sync.Mutex
	servers []*server
}

// server is a listener of the lab, which counts who comes.
type server struct {
	ns       *namespace
	addr     netip.AddrPort
	l        net.Listener
	accepted atomic.Int64
}

func newInternet(ns *namespace, ca *authority) (*internet, error) {
	i := &internet{
		ns:  ns,
		dns: &zone{names: make(map[string][]reply), asked: make(map[dns.Question]int)},
		web: newWeb(ca),
	}
	return i, i.dns.serve(ns, netip.AddrPortFrom(resolverAddr, 53))
}

func (i *internet) close() {
	i.dns.close()
	i.web.close()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, s := range i.servers {
		_ = s.l.Close()
	}
}

// host gives a name to a web server on an address, port 443.
func (i *internet) host(name string, a netip.Addr) (*server, error) {
	i.dns.set(name, addrs(a))
	return i.serve(i.ns, netip.AddrPortFrom(a, 443), i.web.take)
}

// hostPlain is host without TLS, port 80.
func (i *internet) hostPlain(name string, a netip.Addr) (*server, error) {
	i.dns.set(name, addrs(a))
	return i.serve(i.ns, netip.AddrPortFrom(a, 80), i.web.takePlain)
}

// serve listens on an address and hands each connection to handle, which closes it. One that is served
// already is left as it is. The namespace is the internet, or the gateway for its loopback addresses.
func (i *internet) serve(n *namespace, ap netip.AddrPort, handle func(net.Conn)) (*server, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, s := range i.servers {
		if s.ns == n && s.addr == ap {
			return s, nil
		}
	}
	l, err := n.listen(ap)
	if err != nil {
		return nil, err
	}
	s := &server{ns: n, addr: ap, l: l}
	i.servers = append(i.servers, s)
	go s.run(handle)
	return s, nil
}

// count listens on an address and closes each connection at once.
func (i *internet) count(n *namespace, ap netip.AddrPort) (*server, error) {
	return i.serve(n, ap, func(c net.Conn) { _ = c.Close() })
}

func (s *server) run(handle func(net.Conn)) {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.accepted.Add(1)
		go handle(c)
	}
}
