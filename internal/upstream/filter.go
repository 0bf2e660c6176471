package upstream

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"github.com/sandboxallow/sandboxallow/internal/floor"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
)

// keepAlive is what a tunnel has once it is old enough for it. Interval and count
// are the system's, which saves two system calls a connection.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: tunnel.KeepAliveIdle, Interval: -1, Count: -1}

// filter is the floor for one connection of one client.
type filter struct {
	check func(ap netip.AddrPort, lifted bool) error
	lifts func(netip.Addr) bool // nil: none
}

// filter is one that asks check: Floor.Check, or Floor.Known for who cannot wait, of which a floor.ErrDue says that
// Check is to be asked.
func (d *Dialer) filter(check func(netip.AddrPort, bool) error, lifts func(netip.Addr) bool) filter {
	if d.check != nil {
		check = d.check
	}
	return filter{check, lifts}
}

// allows returns nil if ap may be dialled. An IPv4-mapped address must be
// unmapped by then, as lifts goes by the address as it is written in a policy.
func (f filter) allows(ap netip.AddrPort) error {
	return f.check(ap, f.lifts != nil && f.lifts(ap.Addr()))
}

// above returns those of addrs that may be dialled, with port. If that is none it
// returns why the first one may not.
func (f filter) above(addrs []netip.Addr, port uint16) ([]netip.AddrPort, error) {
	above := make([]netip.AddrPort, 0, len(addrs))
	var first error
	for _, a := range addrs {
		ap := netip.AddrPortFrom(a.Unmap(), port)
		switch err := f.allows(ap); {
		case err == nil:
			above = append(above, ap)
		case errors.Is(err, floor.ErrDue): // it is not known whether it may
			return nil, err
		case first == nil:
			first = err
		}
	}
	if len(above) == 0 {
		return nil, first
	}
	return above, nil
}

// connect connects to ap. What counts is the address that connect(2) gets, which
// is why the floor is asked again at that very place, whatever was filtered out
// before.
//
// DialTCP, which takes a netip.AddrPort, binds the socket to the address that is
// not given, and so to a port of its own: as many connections as there are
// ephemeral ports, to all servers together, and a system call more each.
func (f filter) connect(ctx context.Context, ap netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{
		KeepAliveConfig: keepAlive,
		Control: func(_, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			return f.allows(netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()))
		},
	}
	c, err := d.DialContext(ctx, "tcp", ap.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// connectSocket is connect for a tunnel. Nothing stands between the floor and connect(2): the address is a value.
func (f filter) connectSocket(ctx context.Context, ap netip.AddrPort) (*tunnel.Socket, error) {
	if err := f.allows(ap); err != nil {
		return nil, err
	}
	return tunnel.Connect(ctx, ap)
}
