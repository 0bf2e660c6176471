package upstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// fakeDNS is a recursive server on loopback, over UDP and TCP.
type fakeDNS struct {
	addr    string
	handler atomic.Pointer[dns.HandlerFunc]

	mu    sync.Mutex
	asked []*dns.Msg
}

// startDNS starts a server that answers by handler.
func startDNS(t testing.TB, handler dns.HandlerFunc) *fakeDNS {
	t.Helper()
	s := new(fakeDNS)
	s.handler.Store(&handler)
	udp, tcp := listenBoth(t)
	s.addr = udp.LocalAddr().String()
	for _, srv := range []*dns.Server{{PacketConn: udp}, {Listener: tcp}} {
		srv.Handler = s
		started := make(chan struct{})
		srv.NotifyStartedFunc = func() { close(started) }
		go srv.ActivateAndServe()
		<-started
		t.Cleanup(func() { srv.Shutdown() })
	}
	return s
}

// listenBoth finds a port that is free for UDP and TCP.
func listenBoth(t testing.TB) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 100 {
		udp, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		tcp, err := net.Listen("tcp", udp.LocalAddr().String())
		if err == nil {
			return udp, tcp
		}
		udp.Close()
	}
	t.Fatal("no port is free for both UDP and TCP")
	return nil, nil
}

func (s *fakeDNS) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	s.mu.Lock()
	s.asked = append(s.asked, q.Copy())
	s.mu.Unlock()
	(*s.handler.Load())(w, q)
}

// now changes what the server answers.
func (s *fakeDNS) now(handler dns.HandlerFunc) { s.handler.Store(&handler) }

// questions are those asked so far, such as "example.com. A", sorted.
func (s *fakeDNS) questions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var qs []string
	for _, m := range s.asked {
		qs = append(qs, m.Question[0].Name+" "+dns.TypeToString[m.Question[0].Qtype])
	}
	slices.Sort(qs)
	return qs
}

// zone answers from records in the form of a zone file. It gives a whole CNAME
// chain, says NODATA with a SOA for types that are not there and NXDOMAIN for
// other names.
func zone(records ...string) dns.HandlerFunc {
	var rrs []dns.RR
	for _, s := range records {
		rrs = append(rrs, newRR(s))
	}
	return func(w dns.ResponseWriter, q *dns.Msg) {
		m := reply(q)
		name := q.Question[0].Name
		exists := false
		for range 40 {
			next := ""
			for _, rr := range rrs {
				h := rr.Header()
				if h.Name != name {
					continue
				}
				exists = true
				if c, ok := rr.(*dns.CNAME); ok {
					next = c.Target
				} else if h.Rrtype != q.Question[0].Qtype {
					continue
				}
				m.Answer = append(m.Answer, rr)
			}
			if next == "" {
				break
			}
			name, exists = next, false
		}
		if !exists {
			m.Rcode = dns.RcodeNameError
		}
		if len(m.Answer) == 0 || m.Answer[len(m.Answer)-1].Header().Rrtype == dns.TypeCNAME {
			m.Ns = []dns.RR{newRR(". 60 IN SOA a. b. 1 2 3 4 60")}
		}
		w.WriteMsg(m)
	}
}

// rcode answers everything with an error.
func rcode(code int) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		m := reply(q)
		m.Rcode = code
		w.WriteMsg(m)
	}
}

// silence answers nothing.
func silence(dns.ResponseWriter, *dns.Msg) {}

// byType answers A and AAAA questions differently.
func byType(a, aaaa dns.HandlerFunc) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		if q.Question[0].Qtype == dns.TypeA {
			a(w, q)
		} else {
			aaaa(w, q)
		}
	}
}

func reply(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = true
	m.Compress = true
	return m
}

func newRR(s string) dns.RR {
	rr, err := dns.NewRR(s)
	if err != nil {
		panic(err)
	}
	return rr
}

// resolver returns one that asks servers, and whose clock is set by the second
// result.
func resolver(t testing.TB, servers ...*fakeDNS) (*Resolver, *clock) {
	t.Helper()
	var c ResolverConfig
	for _, s := range servers {
		c.Servers = append(c.Servers, s.addr)
	}
	r, err := NewResolver(c)
	if err != nil {
		t.Fatal(err)
	}
	k := new(clock)
	r.now = k.now
	return r, k
}

// clock is a clock that can be put forward.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) forward(d time.Duration) { c.ahead.Add(int64(d)) }

func name(t testing.TB, s string) policy.Name {
	t.Helper()
	n, err := policy.ParseName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// lookup is Lookup with the addresses as text.
func lookup(t testing.TB, r *Resolver, s string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	addrs, err := r.Lookup(ctx, name(t, s))
	return join(addrs), err
}

func join(addrs []netip.Addr) string { return strings.Trim(fmt.Sprint(addrs), "[]") }
