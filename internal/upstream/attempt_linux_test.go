package upstream

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/sandboxallow/sandboxallow/internal/floor"
	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
)

// accept returns a client as a Listener has it.
func accept(t *testing.T) *tunnel.Client {
	t.Helper()
	ln, err := tunnel.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	clients := make(chan *tunnel.Client, 1)
	if err := ln.Serve(func(c *tunnel.Client) { clients <- c }); err != nil {
		t.Fatal(err)
	}
	peer, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := <-clients
	t.Cleanup(func() { c.Do(c.Close); peer.Close() })
	return c
}

// begin begins to connect a client to example.com. Its addresses are known to the resolver, unless asking fails.
func begin(t *testing.T, d *Dialer, port uint16, lifts func(netip.Addr) bool) (a *Attempt) {
	t.Helper()
	d.Resolver.Lookup(t.Context(), name(t, "example.com"))
	c := accept(t)
	c.Do(func() { a = d.Begin(c, name(t, "example.com"), port, lifts) })
	return a
}

// finish is Finish within a time in which it must return.
func finish(t *testing.T, a *Attempt) (*tunnel.Socket, error) {
	t.Helper()
	type outcome struct {
		s   *tunnel.Socket
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		s, err := a.Finish(t.Context())
		done <- outcome{s, err}
	}()
	select {
	case o := <-done:
		if o.err == nil {
			t.Cleanup(func() { o.s.Close() })
		}
		return o.s, o.err
	case <-time.After(20 * time.Second):
		t.Fatal("Finish does not return")
		return nil, nil
	}
}

// offer offers until there is a connection, or will be none.
func offer(t *testing.T, a *Attempt, b string) (int, error) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		n, err := a.Offer([]byte(b))
		if err != tunnel.ErrNotYet {
			return n, err
		}
		if time.Now().After(deadline) {
			t.Fatal("neither connected nor refused after 10 s")
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func TestBegin(t *testing.T) {
	live := listen(t, "127.0.0.3:0")
	r, _ := resolver(t, startDNS(t, zone("example.com. 60 IN A 127.0.0.3")))
	var resolved, dialled int
	d := &Dialer{Resolver: r, check: allowAll}
	if a := begin(t, d, live.port, nil); a == nil {
		t.Fatal("not begun")
	}
	d.ObserveResolve = func(time.Duration) { resolved++ }
	d.ObserveDial = func(time.Duration) { dialled++ }
	c := accept(t)
	var a *Attempt
	c.Do(func() { a = d.Begin(c, name(t, "example.com"), live.port, nil) })
	if a == nil || resolved != 1 || dialled != 0 {
		t.Fatalf("%v, resolved %d times, dialled %d times", a, resolved, dialled)
	}
	if n, err := offer(t, a, "hello"); n != 5 || err != nil || dialled != 1 {
		t.Errorf("sent %d octets, %v, dialled %d times", n, err, dialled)
	}
	defer a.Socket().Close()
	if to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), live.port); a.Socket().RemoteAddr() != to {
		t.Errorf("connected to %v, want %v", a.Socket().RemoteAddr(), to)
	}
	if p := a.Patience(); p > attemptDelay {
		t.Errorf("patience for %v, want %v at most", p, attemptDelay)
	}
}

// What Begin does not do without waiting, or not at all.
func TestBeginNot(t *testing.T) {
	begins := func(t *testing.T, d *Dialer, port uint16, lifts func(netip.Addr) bool) bool {
		t.Helper()
		c := accept(t)
		var a *Attempt
		c.Do(func() { a = d.Begin(c, name(t, "example.com"), port, lifts) })
		if a != nil && a.Socket() != nil {
			a.Socket().Close()
		}
		return a != nil
	}
	live := listen(t, "127.0.0.3:0")
	t.Run("unknown", func(t *testing.T) {
		srv := startDNS(t, zone("example.com. 60 IN A 127.0.0.3"))
		r, k := resolver(t, srv)
		d := &Dialer{Resolver: r, check: allowAll}
		if begins(t, d, live.port, nil) {
			t.Error("begun to connect to a name that nobody has asked for")
		}
		if q := srv.questions(); len(q) > 0 {
			t.Errorf("asked for %q", q)
		}
		if _, err := r.Lookup(t.Context(), name(t, "example.com")); err != nil {
			t.Fatal(err)
		}
		if !begins(t, d, live.port, nil) {
			t.Error("not begun for a name that is known")
		}
		k.forward(time.Minute)
		if begins(t, d, live.port, nil) {
			t.Error("begun with an answer past its TTL")
		}
	})
	for _, tc := range []struct {
		name    string
		handler dns.HandlerFunc
	}{
		{"no such name", rcode(dns.RcodeNameError)},
		{"no address", zone("example.com. 60 IN TXT x")},
		{"failed", rcode(dns.RcodeServerFailure)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, _ := resolver(t, startDNS(t, tc.handler))
			if _, err := r.Lookup(t.Context(), name(t, "example.com")); err == nil {
				t.Fatal("resolved")
			}
			if begins(t, &Dialer{Resolver: r, check: allowAll}, live.port, nil) {
				t.Error("begun")
			}
		})
	}
	// An answer that stands in for a failure is not all that there is to ask for.
	t.Run("stale", func(t *testing.T) {
		srv := startDNS(t, zone("example.com. 60 IN A 127.0.0.3"))
		r, k := resolver(t, srv)
		d := &Dialer{Resolver: r, check: allowAll}
		for range 2 {
			if _, err := r.Lookup(t.Context(), name(t, "example.com")); err != nil {
				t.Fatal(err)
			}
			k.forward(time.Minute)
			srv.now(rcode(dns.RcodeServerFailure))
		}
		if begins(t, d, live.port, nil) {
			t.Error("begun with an answer past its TTL")
		}
	})
}

// What is below the floor is never connected to: DialSocket has the error.
func TestBeginFloor(t *testing.T) {
	ln := listen(t, "127.0.0.1:0")
	all := func(netip.Addr) bool { return true }
	for _, tc := range []struct {
		name  string
		addr  string
		lifts func(netip.Addr) bool
	}{
		{"loopback", "127.0.0.1", nil},
		{"this process, lifted", "127.0.0.1", all},
		{"mapped", "::ffff:127.0.0.1", nil},
		{"private", "10.0.0.1", nil},
		{"lifts another", "10.0.0.1", func(a netip.Addr) bool { return a == netip.MustParseAddr("10.0.0.2") }},
		{"metadata, lifted", "169.254.169.254", all},
		{"NAT64 of loopback", "64:ff9b::7f00:1", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			kind := "A"
			if netip.MustParseAddr(tc.addr).Is6() {
				kind = "AAAA"
			}
			r, _ := resolver(t, startDNS(t, zone("example.com. 60 IN "+kind+" "+tc.addr)))
			resolved := 0
			d := &Dialer{Resolver: r, Floor: floor.New(nil), ObserveResolve: func(time.Duration) { resolved++ }}
			before := descriptors(t)
			if a := begin(t, d, ln.port, tc.lifts); a != nil {
				t.Fatalf("begun to connect to %v", a.order)
			}
			if n := descriptors(t) - before; n > 2 { // the client has two
				t.Errorf("%d descriptors more", n)
			}
			if _, err := d.DialSocket(t.Context(), name(t, "example.com"), ln.port, tc.lifts); Reason(err) != policy.ReasonPrivateAddress {
				t.Errorf("DialSocket has %v", err)
			}
			if resolved != 1 {
				t.Errorf("resolving was observed %d times", resolved)
			}
		})
	}
	if ln.accepted(t) {
		t.Error("connected all the same")
	}
	// The address before it, and after it, is not connected to either.
	t.Run("mixed", func(t *testing.T) {
		live := listen(t, "127.0.0.3:0")
		below, err := net.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), live.port).String())
		if err != nil {
			t.Fatal(err)
		}
		defer below.Close()
		r, _ := resolver(t, startDNS(t, zone("example.com. 60 IN A 127.0.0.2", "example.com. 60 IN A 127.0.0.3", "example.com. 60 IN AAAA ::1")))
		d := &Dialer{Resolver: r, check: func(ap netip.AddrPort, _ bool) error {
			if ap.Addr() != netip.MustParseAddr("127.0.0.3") {
				return &floor.Error{Addr: ap.Addr()}
			}
			return nil
		}}
		a := begin(t, d, live.port, nil)
		if a == nil || len(a.order) != 1 {
			t.Fatalf("got %+v", a)
		}
		s, err := finish(t, a)
		if err != nil || s.RemoteAddr().Addr().String() != "127.0.0.3" {
			t.Errorf("connected to %v, %v", s.RemoteAddr(), err)
		}
		if (listener{below.(*net.TCPListener), live.port}).accepted(t) {
			t.Error("an address below the floor is connected to")
		}
	})
}

// Families by turns, IPv6 first, until that turns out to go nowhere.
func TestBeginOrder(t *testing.T) {
	live := listen(t, "127.0.0.3:0")
	// TCP has no route to a multicast address, on whatever host.
	r, _ := resolver(t, startDNS(t, zone("example.com. 60 IN A 127.0.0.3", "example.com. 60 IN AAAA ff0e::1")))
	d := &Dialer{Resolver: r, check: allowAll}
	order := func(a *Attempt) (addrs []string) {
		for _, ap := range a.order {
			addrs = append(addrs, ap.Addr().String())
		}
		return addrs
	}
	a := begin(t, d, live.port, nil)
	if got, want := order(a), []string{"ff0e::1", "127.0.0.3"}; !slices.Equal(got, want) {
		t.Fatalf("order %q, want %q", got, want)
	}
	if n, err := offer(t, a, "hello"); n != 0 || !errors.Is(err, syscall.ENETUNREACH) {
		t.Fatalf("offered %d octets, %v", n, err)
	}
	began := time.Now()
	s, err := finish(t, a)
	if err != nil || s.RemoteAddr().Addr().String() != "127.0.0.3" || time.Since(began) > attemptDelay {
		t.Fatalf("connected to %v after %v, %v", s, time.Since(began), err)
	}
	a = begin(t, d, live.port, nil)
	if got, want := order(a), []string{"127.0.0.3", "ff0e::1"}; !slices.Equal(got, want) {
		t.Errorf("then the order is %q, want %q", got, want)
	}
	if n, err := offer(t, a, "hello"); n != 5 || err != nil {
		t.Errorf("offered %d octets, %v", n, err)
	}
	a.Socket().Close()
}

// The second address has its turn as if there had been no Begin, and the first goes on.
func TestFinish(t *testing.T) {
	live := listen(t, "127.0.0.3:0")
	first := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), live.port)
	full(t, first)
	two := func(t *testing.T, one, other string) *Dialer {
		r, _ := resolver(t, startDNS(t, zone("example.com. 60 IN A "+one, "example.com. 60 IN A "+other)))
		return &Dialer{Resolver: r, check: allowAll}
	}
	t.Run("dial-037", func(t *testing.T) { // the first never answers
		a := begin(t, two(t, "127.0.0.2", "127.0.0.3"), live.port, nil)
		if n, err := a.Offer([]byte("x")); n != 0 || err != tunnel.ErrNotYet {
			t.Fatalf("offered %d octets, %v", n, err)
		}
		time.Sleep(a.Patience())
		s, err := finish(t, a)
		if err != nil || s.RemoteAddr().Addr().String() != "127.0.0.3" {
			t.Fatalf("connected to %v, %v", s, err)
		}
		if took := time.Since(a.began); took < attemptDelay || took > attemptDelay+attemptDelay/2 {
			t.Errorf("took %v, want %v", took, attemptDelay)
		}
	})
	t.Run("dial-038", func(t *testing.T) { // the first refuses
		a := begin(t, two(t, "127.0.0.4", "127.0.0.3"), live.port, nil)
		if n, err := offer(t, a, "x"); n != 0 || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("offered %d octets, %v", n, err)
		}
		s, err := finish(t, a)
		if err != nil || s.RemoteAddr().Addr().String() != "127.0.0.3" {
			t.Fatalf("connected to %v, %v", s, err)
		}
		if took := time.Since(a.began); took > attemptDelay {
			t.Errorf("took %v", took)
		}
	})
	t.Run("all refuse", func(t *testing.T) {
		before := descriptors(t)
		a := begin(t, two(t, "127.0.0.4", "127.0.0.5"), live.port, nil)
		held := descriptors(t) - before - 1
		if _, err := offer(t, a, "x"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatal(err)
		}
		_, err := finish(t, a)
		if Reason(err) != policy.ReasonDialError || TimedOut(err) {
			t.Errorf("got %v", err)
		}
		if n := descriptors(t) - before; n > held {
			t.Errorf("%d descriptors are left, want %d", n, held)
		}
	})
	// A dial_timeout shorter than what the first address has for itself.
	for _, tc := range []struct{ name, other string }{{"one", "127.0.0.2"}, {"two", "127.0.0.3"}} {
		t.Run("past its time/"+tc.name, func(t *testing.T) {
			d := two(t, "127.0.0.2", tc.other)
			d.Timeout = time.Millisecond
			a := begin(t, d, live.port, nil)
			before := descriptors(t)
			time.Sleep(2 * time.Millisecond)
			if _, err := finish(t, a); !TimedOut(err) {
				t.Errorf("got %v, want a time-out", err)
			}
			if n := descriptors(t) - before; n > -1 {
				t.Errorf("the socket is left open")
			}
		})
	}
}

// The attempt that was begun is the one that succeeds, late.
func TestFinishGoesOn(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 2}}); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(sa.(*unix.SockaddrInet4).Port)
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), port)
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	crowd(t, addr)
	full(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), port))
	for _, addrs := range [][]string{
		{"example.com. 60 IN A 127.0.0.2"},
		{"example.com. 60 IN A 127.0.0.2", "example.com. 60 IN A 127.0.0.3"},
	} {
		r, _ := resolver(t, startDNS(t, zone(addrs...)))
		a := begin(t, &Dialer{Resolver: r, check: allowAll}, port, nil)
		if n, err := a.Offer([]byte("x")); n != 0 || err != tunnel.ErrNotYet {
			t.Fatalf("offered %d octets, %v", n, err)
		}
		time.Sleep(a.Patience())
		got := a.Socket()
		for range 10 { // the system sends its SYN again a second later
			c, _, err := unix.Accept(fd)
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(c)
			if !pending(fd) {
				break
			}
		}
		s, err := finish(t, a)
		if err != nil || s != got {
			t.Fatalf("got %v, %v, want the socket that was begun with", s, err)
		}
		if n, err := s.Write([]byte("hello")); n != 5 || err != nil {
			t.Errorf("wrote %d octets, %v", n, err)
		}
		crowd(t, addr)
	}
}

// pending reports whether there is a connection to accept.
func pending(fd int) bool {
	n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return n > 0
}
