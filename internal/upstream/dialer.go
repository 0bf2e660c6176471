// Package upstream finds the server that a name stands for and connects to it:
// it resolves the name, drops the addresses that are below the floor, and dials
// the rest as RFC 8305 says. Only addresses are ever dialled, never a name.
package upstream

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/floor"
	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
)

const (
	// DefaultTimeout is what zero means in Dialer.Timeout.
	DefaultTimeout = 5 * time.Second

	// attemptDelay is the time that one address has before the next is tried
	// beside it (RFC 8305 §5).
	attemptDelay = 250 * time.Millisecond

	// maxAttempts bounds the connections tried for one: at attemptDelay apart
	// not more fit into DefaultTimeout.
	maxAttempts = 20

	// unroutable is how long IPv6 comes second after it turned out that this
	// host has no route for it, as in most containers.
	unroutable = time.Minute
)

// Dialer connects to names. Resolver and Floor are required.
type Dialer struct {
	Resolver *Resolver
	Floor    *floor.Floor

	// Timeout bounds connecting, over all addresses. The time that resolving
	// takes, which has a bound of its own, does not count. Zero means
	// DefaultTimeout.
	Timeout time.Duration

	// ObserveResolve and ObserveDial, if not nil, are told how long resolving
	// a name, from the cache or not, and connecting took, with or without
	// success.
	ObserveResolve func(time.Duration)
	ObserveDial    func(time.Duration)

	noIPv6 atomic.Int64 // until then, in nanoseconds since 1970, IPv6 comes second

	// Tests have these in the place of Floor.Check and filter.connect.
	check   func(ap netip.AddrPort, lifted bool) error
	connect func(ctx context.Context, ap netip.AddrPort) (*net.TCPConn, error)
}

// Dial connects to n on port. The floor is lifted, as far as it can be, from the
// addresses for which lifts returns true; nil lifts none. The connection has
// TCP_NODELAY set and keep-alive probes on.
//
// The error is a *LookupError or a *DialError; Reason and TimedOut say what to
// make of it.
func (d *Dialer) Dial(ctx context.Context, n policy.Name, port uint16, lifts func(netip.Addr) bool) (*net.TCPConn, error) {
	connect := d.connect
	return reach(ctx, d, n, port, lifts, func(ctx context.Context, ap netip.AddrPort, f filter) (*net.TCPConn, error) {
		if connect != nil {
			return connect(ctx, ap)
		}
		return f.connect(ctx, ap)
	})
}

// DialSocket is Dial for what will be a tunnel, at less cost.
func (d *Dialer) DialSocket(ctx context.Context, n policy.Name, port uint16, lifts func(netip.Addr) bool) (*tunnel.Socket, error) {
	return reach(ctx, d, n, port, lifts, func(ctx context.Context, ap netip.AddrPort, f filter) (*tunnel.Socket, error) {
		return f.connectSocket(ctx, ap)
	})
}

// reach resolves n and makes an attempt at each address that may be dialled.
func reach[C io.Closer](ctx context.Context, d *Dialer, n policy.Name, port uint16, lifts func(netip.Addr) bool,
	connect func(context.Context, netip.AddrPort, filter) (C, error)) (conn C, err error) {
	began := time.Now()
	addrs, err := d.Resolver.Lookup(ctx, n)
	observe(d.ObserveResolve, began)
	if err != nil {
		return conn, err
	}
	f := d.filter(d.Floor.Check, lifts)
	above, err := f.above(addrs, port)
	if err != nil {
		return conn, &DialError{n, err}
	}
	order := d.order(above)
	return firstOf(ctx, d, n, order, time.Now(), func(ctx context.Context, i int) (C, error) {
		return connect(ctx, order[i], f)
	})
}

// firstOf makes an attempt at one address of n after the other, and returns the first that succeeds. began is when
// the dialling has.
func firstOf[C io.Closer](ctx context.Context, d *Dialer, n policy.Name, order []netip.AddrPort, began time.Time,
	connect func(ctx context.Context, i int) (C, error)) (conn C, err error) {
	ctx, cancel := context.WithDeadline(ctx, began.Add(cmp.Or(d.Timeout, DefaultTimeout)))
	defer cancel()
	conn, err = race(ctx, len(order), time.Until(began.Add(attemptDelay)), attemptDelay, func(ctx context.Context, i int) (C, error) {
		c, err := connect(ctx, i)
		d.learn(order[i], err)
		return c, err
	}, func(loser C) { loser.Close() })
	observe(d.ObserveDial, began)
	if err != nil {
		return conn, &DialError{n, err}
	}
	return conn, nil
}

// order returns the addresses in the order in which they are tried: the families
// by turns, IPv6 first (RFC 8305 §4), unless it went nowhere just now.
func (d *Dialer) order(addrs []netip.AddrPort) []netip.AddrPort {
	if len(addrs) == 1 {
		return addrs
	}
	var next, other []netip.AddrPort
	for _, a := range addrs {
		if a.Addr().Is6() {
			next = append(next, a)
		} else {
			other = append(other, a)
		}
	}
	if time.Now().UnixNano() < d.noIPv6.Load() {
		next, other = other, next
	}
	var order []netip.AddrPort
	for len(order) < maxAttempts && len(next)+len(other) > 0 {
		if len(next) > 0 {
			order, next = append(order, next[0]), next[1:]
		}
		next, other = other, next
	}
	return order
}

// learn notes what an attempt says about the families.
func (d *Dialer) learn(ap netip.AddrPort, err error) {
	if err != nil && ap.Addr().Is6() && noRoute(err) {
		d.noIPv6.Store(time.Now().Add(unroutable).UnixNano())
	}
}

// noRoute reports whether err says that this host has no way to send to the
// family of an address, or no address of its own in it.
func noRoute(err error) bool {
	return errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
}

// observe tells f, unless it is nil, the time since began.
func observe(f func(time.Duration), began time.Time) {
	if f != nil {
		f(time.Since(began))
	}
}
