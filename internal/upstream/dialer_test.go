package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/sandboxallow/sandboxallow/internal/floor"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// internet stands in for the addresses that a test may not really connect to.
// Live ones lead to a listener on loopback.
type internet struct {
	hosts map[string]func(ctx context.Context) error // nil error: live

	ln     net.Listener
	mu     sync.Mutex
	dialed []string
}

func live(context.Context) error      { return nil }
func refuses(context.Context) error   { return syscall.ECONNREFUSED }
func noRouteTo(context.Context) error { return syscall.ENETUNREACH }
func drops(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func newInternet(t testing.TB, hosts map[string]func(context.Context) error) *internet {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return &internet{hosts: hosts, ln: ln}
}

func (n *internet) connect(ctx context.Context, ap netip.AddrPort) (*net.TCPConn, error) {
	n.mu.Lock()
	n.dialed = append(n.dialed, ap.String())
	n.mu.Unlock()
	host := n.hosts[ap.Addr().String()]
	if host == nil {
		return nil, fmt.Errorf("no host %v", ap)
	}
	if err := host(ctx); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(ap), Err: err}
	}
	c, err := net.Dial("tcp", n.ln.Addr().String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func (n *internet) attempts() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.dialed)
}

// dialer has the real floor and the stand-in internet.
func dialer(t testing.TB, n *internet, servers ...*fakeDNS) (*Dialer, *clock) {
	t.Helper()
	r, k := resolver(t, servers...)
	return &Dialer{Resolver: r, Floor: floor.New(nil), connect: n.connect}, k
}

// dial connects to example.com:443 and closes the connection.
func dial(t testing.TB, d *Dialer) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := d.Dial(ctx, name(t, "example.com"), 443, nil)
	if err == nil {
		c.Close()
	} else if c != nil {
		t.Errorf("a connection beside the error %v", err)
	}
	return err
}

// ways are those in which a Dialer connects: for whoever needs a net.Conn, and for tunnels.
var ways = []struct {
	name string
	dial func(ctx context.Context, d *Dialer, n policy.Name, port uint16, lifts func(netip.Addr) bool) (io.Closer, netip.AddrPort, error)
}{
	{"connection", func(ctx context.Context, d *Dialer, n policy.Name, port uint16, lifts func(netip.Addr) bool) (io.Closer, netip.AddrPort, error) {
		c, err := d.Dial(ctx, n, port, lifts)
		if err != nil {
			return nil, netip.AddrPort{}, err
		}
		return c, netip.MustParseAddrPort(c.RemoteAddr().String()), nil
	}},
	{"socket", func(ctx context.Context, d *Dialer, n policy.Name, port uint16, lifts func(netip.Addr) bool) (io.Closer, netip.AddrPort, error) {
		s, err := d.DialSocket(ctx, n, port, lifts)
		if err != nil {
			return nil, netip.AddrPort{}, err
		}
		return s, s.RemoteAddr(), nil
	}},
}

func TestDial(t *testing.T) {
	type hosts = map[string]func(context.Context) error
	const slow = 2 * time.Second // of a busy machine, where nothing is waited for
	for _, tc := range []struct {
		name    string
		handler dns.HandlerFunc
		hosts   hosts
		dialed  []string // in this order, and no others
		reason  policy.Reason
		timeout bool
		within  time.Duration
	}{
		{
			name:    "dial-025",
			handler: zone(exampleA, "example.com. 60 IN AAAA fd00::1"),
			hosts:   hosts{"93.184.215.14": live, "fd00::1": live},
			dialed:  []string{"93.184.215.14:443"},
			within:  slow,
		},
		{
			name:    "dial-027",
			handler: zone("example.com. 60 IN CNAME x.cdn.test.", "x.cdn.test. 60 IN A 93.184.215.14"),
			hosts:   hosts{"93.184.215.14": live},
			dialed:  []string{"93.184.215.14:443"},
			within:  slow,
		},
		{
			name:    "dial-028/loop",
			handler: zone("example.com. 60 IN CNAME b.test.", "b.test. 60 IN CNAME example.com."),
			reason:  policy.ReasonResolverError,
			within:  slow,
		},
		{
			name:    "dial-028/chain",
			handler: zone(append(chain(19), "example.com. 60 IN CNAME c0.test.")...),
			reason:  policy.ReasonResolverError,
			within:  slow,
		},
		{
			name:    "dial-031",
			handler: rcode(dns.RcodeServerFailure),
			reason:  policy.ReasonResolverError,
			within:  slow,
		},
		{
			name:    "dial-032",
			handler: silence,
			reason:  policy.ReasonResolverError,
			within:  defaults.total + slow,
		},
		{
			name: "dial-033",
			handler: func(w dns.ResponseWriter, q *dns.Msg) {
				time.Sleep(2500 * time.Millisecond)
				zone(exampleA)(w, q)
			},
			hosts:  hosts{"93.184.215.14": live},
			dialed: []string{"93.184.215.14:443"},
			within: defaults.total + slow,
		},
		{
			name:    "dial-037",
			handler: zone(exampleA, "example.com. 60 IN A 93.184.216.34"),
			hosts:   hosts{"93.184.215.14": drops, "93.184.216.34": live},
			dialed:  []string{"93.184.215.14:443", "93.184.216.34:443"},
			within:  slow,
		},
		{
			name:    "dial-038",
			handler: zone(exampleA, "example.com. 60 IN A 93.184.216.34"),
			hosts:   hosts{"93.184.215.14": refuses, "93.184.216.34": live},
			dialed:  []string{"93.184.215.14:443", "93.184.216.34:443"},
			within:  slow,
		},
		{
			name:    "dial-039/dropped",
			handler: zone(exampleA, "example.com. 60 IN AAAA 2606:4700::1111"),
			hosts:   hosts{"2606:4700::1111": drops, "93.184.215.14": live},
			dialed:  []string{"[2606:4700::1111]:443", "93.184.215.14:443"},
			within:  slow,
		},
		{
			name:    "dial-039/no route",
			handler: zone(exampleA, "example.com. 60 IN AAAA 2606:4700::1111"),
			hosts:   hosts{"2606:4700::1111": noRouteTo, "93.184.215.14": live},
			dialed:  []string{"[2606:4700::1111]:443", "93.184.215.14:443"},
			within:  slow,
		},
		{
			name: "families by turns",
			handler: zone("example.com. 60 IN A 8.0.0.1", "example.com. 60 IN A 8.0.0.2", "example.com. 60 IN A 8.0.0.3",
				"example.com. 60 IN AAAA 2600::1", "example.com. 60 IN AAAA 2600::2"),
			hosts:  hosts{"8.0.0.1": refuses, "8.0.0.2": refuses, "8.0.0.3": refuses, "2600::1": refuses, "2600::2": refuses},
			dialed: []string{"[2600::1]:443", "8.0.0.1:443", "[2600::2]:443", "8.0.0.2:443", "8.0.0.3:443"},
			reason: policy.ReasonDialError,
			within: slow,
		},
		{
			name:    "private only",
			handler: zone("example.com. 60 IN A 10.0.0.1", "example.com. 60 IN A 169.254.169.254", "example.com. 60 IN AAAA fd00::1"),
			hosts:   hosts{"10.0.0.1": live, "169.254.169.254": live, "fd00::1": live},
			reason:  policy.ReasonPrivateAddress,
			within:  slow,
		},
		{
			name:    "private in the guise of IPv6",
			handler: zone("example.com. 60 IN AAAA ::ffff:10.0.0.1", "example.com. 60 IN AAAA 64:ff9b::a00:1"),
			hosts:   hosts{"10.0.0.1": live, "::ffff:10.0.0.1": live, "64:ff9b::a00:1": live},
			reason:  policy.ReasonPrivateAddress,
			within:  slow,
		},
		{
			name:    "public in the guise of IPv6",
			handler: zone("example.com. 60 IN AAAA ::ffff:93.184.215.14"),
			hosts:   hosts{"93.184.215.14": live},
			dialed:  []string{"93.184.215.14:443"},
			within:  slow,
		},
		{
			name:    "no such name",
			handler: zone("example.net. 60 IN A 93.184.215.14"),
			reason:  policy.ReasonNoAddress,
			within:  slow,
		},
		{
			name:    "only one, which refuses",
			handler: zone(exampleA),
			hosts:   hosts{"93.184.215.14": refuses},
			dialed:  []string{"93.184.215.14:443"},
			reason:  policy.ReasonDialError,
			within:  slow,
		},
		{
			name:    "only one, which drops",
			handler: zone(exampleA),
			hosts:   hosts{"93.184.215.14": drops},
			dialed:  []string{"93.184.215.14:443"},
			reason:  policy.ReasonDialError,
			timeout: true,
			within:  DefaultTimeout + slow,
		},
		{
			name:    "one refuses, one drops",
			handler: zone(exampleA, "example.com. 60 IN A 93.184.216.34"),
			hosts:   hosts{"93.184.215.14": refuses, "93.184.216.34": drops},
			dialed:  []string{"93.184.215.14:443", "93.184.216.34:443"},
			reason:  policy.ReasonDialError,
			timeout: true,
			within:  DefaultTimeout + slow,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newInternet(t, tc.hosts)
			d, _ := dialer(t, n, startDNS(t, tc.handler))
			began := time.Now()
			err := dial(t, d)
			if took := time.Since(began); took > tc.within {
				t.Errorf("took %v, want %v at most", took, tc.within)
			}
			if got := Reason(err); got != tc.reason || TimedOut(err) != tc.timeout {
				t.Errorf("got %v: reason %q, timed out %v, want %q and %v", err, got, TimedOut(err), tc.reason, tc.timeout)
			}
			if got := n.attempts(); !slices.Equal(got, tc.dialed) {
				t.Errorf("dialled %q, want %q", got, tc.dialed)
			}
		})
	}
}

// The name is resolved once, and what was checked is what is dialled.
func TestRebinding(t *testing.T) {
	t.Run("dial-029", func(t *testing.T) {
		var mu sync.Mutex
		seen := make(map[uint16]int)
		s := startDNS(t, func(w dns.ResponseWriter, q *dns.Msg) {
			mu.Lock()
			seen[q.Question[0].Qtype]++
			first := seen[q.Question[0].Qtype] == 1
			mu.Unlock()
			if first {
				zone("example.com. 0 IN A 93.184.215.14")(w, q)
			} else {
				zone("example.com. 0 IN A 127.0.0.1")(w, q)
			}
		})
		n := newInternet(t, map[string]func(context.Context) error{"93.184.215.14": live, "127.0.0.1": live})
		d, k := dialer(t, n, s)
		if err := dial(t, d); err != nil {
			t.Error(err)
		}
		if got := s.questions(); len(got) != 2 {
			t.Errorf("asked %q, want one A and one AAAA", got)
		}
		k.forward(time.Minute)
		if err := dial(t, d); Reason(err) != policy.ReasonPrivateAddress {
			t.Errorf("got %v, want %v", err, policy.ReasonPrivateAddress)
		}
		if got, want := n.attempts(), []string{"93.184.215.14:443"}; !slices.Equal(got, want) {
			t.Errorf("dialled %q, want %q", got, want)
		}
	})
}

// Whatever the first look said, the floor is asked again with the socket in
// hand, and nothing is sent if it says no then.
func TestFloorAtConnect(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			ln := listen(t, "127.0.0.1:0")
			port := ln.port
			r, _ := resolver(t, startDNS(t, zone("example.com. 60 IN A 127.0.0.1")))
			var mu sync.Mutex
			var asked []netip.AddrPort
			d := &Dialer{Resolver: r, check: func(ap netip.AddrPort, lifted bool) error {
				mu.Lock()
				defer mu.Unlock()
				if asked = append(asked, ap); len(asked) == 1 {
					return nil
				}
				return &floor.Error{Addr: ap.Addr(), Name: "another by now"}
			}}
			_, _, err := w.dial(t.Context(), d, name(t, "example.com"), port, nil)
			if Reason(err) != policy.ReasonPrivateAddress {
				t.Errorf("got %v, want %v", err, policy.ReasonPrivateAddress)
			}
			ap := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
			if !slices.Equal(asked, []netip.AddrPort{ap, ap}) {
				t.Errorf("the floor was asked for %v", asked)
			}
			if ln.accepted(t) {
				t.Error("connected all the same")
			}
		})
	}
}

// The answer is the gateway itself: no recursion, but a clear refusal.
func TestOwnAddress(t *testing.T) {
	t.Run("dns-078", func(t *testing.T) {
		ln := listen(t, "127.0.0.1:0")
		r, _ := resolver(t, startDNS(t, zone("example.com. 60 IN A 127.0.0.1")))
		d := &Dialer{Resolver: r, Floor: floor.New(nil)}
		for i, lifts := range []func(netip.Addr) bool{nil, func(netip.Addr) bool { return true }, nil, func(netip.Addr) bool { return true }} {
			_, _, err := ways[i/2].dial(t.Context(), d, name(t, "example.com"), ln.port, lifts)
			if Reason(err) != policy.ReasonPrivateAddress {
				t.Errorf("got %v, want %v", err, policy.ReasonPrivateAddress)
			}
			var private *floor.Error
			if !errors.As(err, &private) || private.Addr.String() != "127.0.0.1" {
				t.Errorf("the error %v does not tell the address", err)
			}
		}
		if ln.accepted(t) {
			t.Error("connected all the same")
		}
	})
}

func TestLifts(t *testing.T) {
	n := newInternet(t, map[string]func(context.Context) error{"10.20.0.5": live})
	d, _ := dialer(t, n, startDNS(t, zone("example.com. 60 IN A 10.20.0.4", "example.com. 60 IN AAAA ::ffff:10.20.0.5", "example.com. 60 IN A 169.254.169.254")))
	c, err := d.Dial(t.Context(), name(t, "example.com"), 5432, func(a netip.Addr) bool {
		return a == netip.MustParseAddr("10.20.0.5") || a == netip.MustParseAddr("169.254.169.254")
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if got, want := n.attempts(), []string{"10.20.0.5:5432"}; !slices.Equal(got, want) {
		t.Errorf("dialled %q, want %q", got, want)
	}
}

func TestTruncatedReply(t *testing.T) {
	t.Run("dial-036", func(t *testing.T) {
		var records []string
		hosts := make(map[string]func(context.Context) error)
		for i := range 60 {
			records = append(records, fmt.Sprintf("example.com. 60 IN A 8.8.1.%d", i))
			hosts[fmt.Sprintf("8.8.1.%d", i)] = live
		}
		all := zone(records...)
		s := startDNS(t, func(w dns.ResponseWriter, q *dns.Msg) {
			if _, tcp := w.RemoteAddr().(*net.TCPAddr); tcp {
				all(w, q)
				return
			}
			m := reply(q)
			m.Truncated = true
			// What is in a truncated reply is not to be used.
			m.Answer = []dns.RR{newRR("example.com. 60 IN A 10.0.0.1")}
			w.WriteMsg(m)
		})
		n := newInternet(t, hosts)
		d, _ := dialer(t, n, s)
		if err := dial(t, d); err != nil {
			t.Error(err)
		}
		if addrs, err := d.Resolver.Lookup(t.Context(), name(t, "example.com")); len(addrs) != 60 {
			t.Errorf("got %d addresses and %v, want 60", len(addrs), err)
		}
	})
}

func TestManyAddresses(t *testing.T) {
	// 4,000 addresses, all private but the last: it is beyond what is kept.
	t.Run("dial-050", func(t *testing.T) {
		s := startDNS(t, func(w dns.ResponseWriter, q *dns.Msg) {
			m := reply(q)
			if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
				m.Truncated = true
			} else if q.Question[0].Qtype == dns.TypeA {
				for i := range 4000 {
					m.Answer = append(m.Answer, newRR(fmt.Sprintf("example.com. 60 IN A 10.0.%d.%d", i>>8, i&255)))
				}
				m.Answer = append(m.Answer, newRR(exampleA))
			}
			if err := w.WriteMsg(m); err != nil {
				t.Error(err)
			}
		})
		n := newInternet(t, map[string]func(context.Context) error{"93.184.215.14": live})
		d, _ := dialer(t, n, s)
		if err := dial(t, d); Reason(err) != policy.ReasonPrivateAddress {
			t.Errorf("got %v, want %v", err, policy.ReasonPrivateAddress)
		}
		if addrs, _ := d.Resolver.Lookup(t.Context(), name(t, "example.com")); len(addrs) != maxAddrs {
			t.Errorf("%d addresses are kept, want %d", len(addrs), maxAddrs)
		}
	})
	t.Run("attempts are bounded", func(t *testing.T) {
		var records []string
		hosts := make(map[string]func(context.Context) error)
		for i := range maxAddrs {
			records = append(records, fmt.Sprintf("example.com. 60 IN A 8.8.1.%d", i))
			hosts[fmt.Sprintf("8.8.1.%d", i)] = refuses
		}
		n := newInternet(t, hosts)
		d, _ := dialer(t, n, startDNS(t, zone(records...)))
		if err := dial(t, d); Reason(err) != policy.ReasonDialError || TimedOut(err) {
			t.Errorf("got %v, want %v", err, policy.ReasonDialError)
		}
		if got := len(n.attempts()); got != maxAttempts {
			t.Errorf("%d attempts, want %d", got, maxAttempts)
		}
	})
}

// Answers that are different each time: what is dialled is of the newest one,
// and nothing piles up.
func TestRotatingAnswers(t *testing.T) {
	for _, tc := range []struct {
		name  string
		of, n int
		ttl   time.Duration
	}{
		{"dial-040", 8, 8, time.Second},
		{"dial-051", 400, 8, 5 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr := func(i int) string { return fmt.Sprintf("8.8.%d.%d", i%tc.of>>8, i%tc.of&255) }
			hosts := make(map[string]func(context.Context) error)
			for i := range tc.of {
				hosts[addr(i)] = live
			}
			var mu sync.Mutex
			turn := 0
			s := startDNS(t, func(w dns.ResponseWriter, q *dns.Msg) {
				if q.Question[0].Qtype != dns.TypeA {
					zone("example.com. 60 IN TXT x")(w, q)
					return
				}
				mu.Lock()
				from := turn
				turn++
				mu.Unlock()
				m := reply(q)
				for i := range tc.n {
					m.Answer = append(m.Answer, newRR(fmt.Sprintf("example.com. %d IN A %s", tc.ttl/time.Second, addr(from+i))))
				}
				w.WriteMsg(m)
			})
			n := newInternet(t, hosts)
			d, k := dialer(t, n, s)
			var want []string
			for i := range 50 {
				if err := dial(t, d); err != nil {
					t.Fatal(err)
				}
				want = append(want, addr(i)+":443")
				k.forward(tc.ttl)
			}
			if got := n.attempts(); !slices.Equal(got, want) {
				t.Errorf("dialled %q, want %q", got, want)
			}
			if addrs, _ := d.Resolver.Lookup(t.Context(), name(t, "example.com")); len(addrs) != tc.n || d.Resolver.cache.Len() != 1 {
				t.Errorf("%d addresses of %d names are kept", len(addrs), d.Resolver.cache.Len())
			}
		})
	}
}

// A name is never left to the resolver of the system: it would make an address
// of most of these, by itself or by /etc/hosts.
func TestNoNameIsDialled(t *testing.T) {
	for _, tc := range []struct {
		name  string
		hosts []string
	}{
		{"dial-045", []string{"１２７.０.０.１", "①⑥⑨.②⑤④.①⑥⑨.②⑤④", "127。0。0。1"}},
		{"dial-046", []string{"169.254.169.254.", "localhost.", "metadata.google.internal."}},
		{"other spellings", []string{"127.1", "2130706433", "0x7f000001", "0177.0.0.1", "::1", "[::1]", "localhost", "ip6-localhost"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newInternet(t, nil)
			d, _ := dialer(t, n, startDNS(t, zone()))
			for _, host := range tc.hosts {
				h, err := policy.ParseName(host)
				if err != nil {
					h = policy.Name{} // which a careless caller might go on with
				}
				_, err = d.Dial(t.Context(), h, 443, nil)
				if Reason(err) != policy.ReasonNoAddress {
					t.Errorf("%q: got %v, want %v", host, err, policy.ReasonNoAddress)
				}
			}
			if got := n.attempts(); len(got) > 0 {
				t.Errorf("dialled %q", got)
			}
		})
	}
}

// A host without IPv6 does not try it for every connection anew.
func TestNoIPv6(t *testing.T) {
	n := newInternet(t, map[string]func(context.Context) error{"2606:4700::1111": noRouteTo, "93.184.215.14": live})
	d, _ := dialer(t, n, startDNS(t, zone(exampleA, "example.com. 60 IN AAAA 2606:4700::1111")))
	for range 3 {
		if err := dial(t, d); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"[2606:4700::1111]:443", "93.184.215.14:443", "93.184.215.14:443", "93.184.215.14:443"}
	if got := n.attempts(); !slices.Equal(got, want) {
		t.Errorf("dialled %q, want %q", got, want)
	}
	d.noIPv6.Store(time.Now().UnixNano())
	if err := dial(t, d); err != nil {
		t.Fatal(err)
	}
	if got := n.attempts(); got[len(got)-2] != want[0] {
		t.Errorf("dialled %q, want IPv6 to be tried again in the end", got)
	}
}

// The slower of two connections is closed.
func TestLoserIsClosed(t *testing.T) {
	n := newInternet(t, map[string]func(context.Context) error{
		// Deaf to its context: it succeeds when the other has won.
		"93.184.215.14": func(context.Context) error { time.Sleep(attemptDelay + 200*time.Millisecond); return nil },
		"93.184.216.34": live,
	})
	d, _ := dialer(t, n, startDNS(t, zone(exampleA, "example.com. 60 IN A 93.184.216.34")))
	winner, err := d.Dial(t.Context(), name(t, "example.com"), 443, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer winner.Close()
	n.ln.(*net.TCPListener).SetDeadline(time.Now().Add(20 * time.Second))
	for range 2 {
		c, err := n.ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.RemoteAddr().String() == winner.LocalAddr().String() {
			continue
		}
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the loser is not closed: %v", err)
		}
	}
}

func TestContextEnds(t *testing.T) {
	n := newInternet(t, map[string]func(context.Context) error{"93.184.215.14": drops})
	d, _ := dialer(t, n, startDNS(t, zone(exampleA)))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		until(t, "it is dialled", func() bool { return len(n.attempts()) == 1 })
		cancel()
	}()
	if _, err := d.Dial(ctx, name(t, "example.com"), 443, nil); !errors.Is(err, context.Canceled) || TimedOut(err) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestObserve(t *testing.T) {
	var resolved, dialed int
	n := newInternet(t, map[string]func(context.Context) error{"93.184.215.14": refuses})
	d, _ := dialer(t, n, startDNS(t, zone(exampleA)))
	d.ObserveResolve = func(d time.Duration) { resolved++ }
	d.ObserveDial = func(d time.Duration) { dialed++ }
	dial(t, d)
	dial(t, d)
	if resolved != 2 || dialed != 2 {
		t.Errorf("observed %d lookups and %d dials, want 2 of each", resolved, dialed)
	}
}

// BenchmarkDial connects to a listener on loopback, by a cached name.
func BenchmarkDial(b *testing.B) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				c.Read(make([]byte, 1)) // until it is reset
			}()
		}
	}()
	r, _ := resolver(b, startDNS(b, zone("example.com. 60 IN A 127.0.0.1")))
	d := &Dialer{Resolver: r, check: func(netip.AddrPort, bool) error { return nil }}
	n := name(b, "example.com")
	port := netip.MustParseAddrPort(ln.Addr().String()).Port()
	b.ReportAllocs()
	for b.Loop() {
		c, err := d.Dial(b.Context(), n, port, nil)
		if err != nil {
			b.Fatal(err)
		}
		reset(c)
	}
}

// reset closes a connection so that its port is free again at once.
func reset(c net.Conn) {
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// listener is one that should not be connected to, or should.
type listener struct {
	*net.TCPListener
	port uint16
}

func listen(t testing.TB, addr string) listener {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return listener{ln.(*net.TCPListener), netip.MustParseAddrPort(ln.Addr().String()).Port()}
}

// accepted reports whether a connection has arrived. A connection of this test's
// own tells that whatever came before it would be there too.
func (l listener) accepted(t testing.TB) bool {
	t.Helper()
	mark, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer mark.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.RemoteAddr().String() != mark.LocalAddr().String()
}
