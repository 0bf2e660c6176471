package upstream

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
)

// Attempt is a DialSocket that was begun without waiting for anything.
type Attempt struct {
	d      *Dialer
	name   policy.Name
	lifts  func(netip.Addr) bool
	order  []netip.AddrPort
	began  time.Time
	socket *tunnel.Socket // to the first address
	failed error          // why there is no connection to that one
}

// Begin begins to connect a client to n on port. It returns nil if that cannot be done without waiting, or not at all,
// of which DialSocket has the error.
func (d *Dialer) Begin(c *tunnel.Client, n policy.Name, port uint16, lifts func(netip.Addr) bool) *Attempt {
	a := &Attempt{d: d, name: n, lifts: lifts, began: time.Now()}
	addrs := d.Resolver.Known(n)
	if len(addrs) == 0 {
		return nil
	}
	above, err := d.filter(d.Floor.Known, lifts).above(addrs, port)
	if err != nil {
		return nil
	}
	observe(d.ObserveResolve, a.began)
	a.order = d.order(above)
	// Nothing stands between the floor and connect(2): the address is a value.
	a.socket, a.failed = c.Connect(a.order[0])
	return a
}

// Patience is for how long it may go on without other addresses being tried beside it (RFC 8305 §5), by Finish.
func (a *Attempt) Patience() time.Duration { return time.Until(a.began.Add(attemptDelay)) }

// Offer sends the first bytes: tunnel.ErrNotYet while there is no connection, which Finish waits for. Any other error is
// for Finish to get over, or to return.
func (a *Attempt) Offer(b []byte) (n int, err error) {
	if a.failed != nil {
		return 0, a.failed
	}
	n, err = a.socket.Offer(b)
	switch {
	case err == nil:
		observe(a.d.ObserveDial, a.began)
	case !errors.Is(err, tunnel.ErrNotYet):
		a.failed = err
	}
	return n, err
}

// Socket is what is being connected. It is whoever's asks for it after an Offer without error.
func (a *Attempt) Socket() *tunnel.Socket { return a.socket }

// Finish does the rest of what DialSocket would do.
func (a *Attempt) Finish(ctx context.Context) (*tunnel.Socket, error) {
	f := a.d.filter(a.d.Floor.Check, a.lifts)
	return firstOf(ctx, a.d, a.name, a.order, a.began, func(ctx context.Context, i int) (*tunnel.Socket, error) {
		if i == 0 {
			return a.finishFirst(ctx)
		}
		return f.connectSocket(ctx, a.order[i])
	})
}

// Close gives it up.
func (a *Attempt) Close() {
	if a.socket != nil {
		a.socket.Close()
	}
}

func (a *Attempt) finishFirst(ctx context.Context) (*tunnel.Socket, error) {
	if a.failed == nil {
		a.failed = a.socket.Resume(ctx)
	}
	if a.failed == nil {
		return a.socket, nil
	}
	a.Close()
	return nil, a.failed
}
