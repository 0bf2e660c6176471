package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	gatewayRules = 1_000
	// gatewayNames is how many names are connected to, in turn.
	gatewayNames = 256
	// tunnelAnswer is in bytes: what a TLS server sends first, its certificates included.
	tunnelAnswer = 4 << 10
	// tunnelPatience is for all of a connection.
	tunnelPatience = 5 * time.Second
)

// connected returns name i of those that tunnels are opened to: by turns single names and names below a zone,
// from all over the policy.
func connected(i int) string {
	i %= gatewayNames
	return admitted(i*gatewayRules/gatewayNames/2*2+i%2, i)
}

// connectedHellos are ClientHellos for all names that tunnels are opened to.
var connectedHellos = sync.OnceValues(func() ([][]byte, error) {
	hellos := make([][]byte, gatewayNames)
	for i := range hellos {
		var err error
		if hellos[i], err = clientHello(connected(i), tunnelAnswer); err != nil {
			return nil, err
		}
	}
	return hellos, nil
})

// deniedHellos are ClientHellos for as many names that no rule admits.
var deniedHellos = sync.OnceValues(func() ([][]byte, error) {
	hellos := make([][]byte, gatewayNames)
	for i := range hellos {
		var err error
		if hellos[i], err = clientHello(denied(i), tunnelAnswer); err != nil {
			return nil, err
		}
	}
	return hellos, nil
})

// newTunnels is the cost of opening a tunnel, with so many clients at once that open one after the other: as
// fast as they can, or all together so many a second if rate is not 0.
func newTunnels(name, against string, clients, rate int) measure {
	speed := "one after the other, which takes all that the machine has"
	if rate > 0 {
		speed = fmt.Sprintf("%d a second together, which leaves the machine time to sleep", rate)
	}
	return measure{
		name: name,
		text: fmt.Sprintf("%d clients open tunnels %s: connect, ClientHello, read the %d bytes that the upstream sends, close. "+
			"The latency is from before connect until the last byte. %d names.", clients, speed, tunnelAnswer, gatewayNames),
		against: against,
		columns: []column{
			{"CPU per tunnel", microseconds, true},
			{"tunnels/s", count, true},
			{"p50", milliseconds, false},
			{"p99", milliseconds, true},
		},
		take: opening(clients, rate).values(func(u use) []float64 {
			return []float64{u.cpuPer(), u.perSecond(), u.percentile(0.5), u.percentile(0.99)}
		}),
	}
}

// opening is the load of newTunnels.
func opening(clients, rate int) load {
	return func(ctx context.Context, s *server, m *meter) error {
		hellos, err := connectedHellos()
		if err != nil {
			return err
		}
		open := func(i int, answer []byte) error {
			return openTunnel(s, connected(i), hellos[i%gatewayNames], answer)
		}
		if s.refuses {
			if hellos, err = deniedHellos(); err != nil {
				return err
			}
			open = func(i int, _ []byte) error { return refused(s, hellos[i%gatewayNames], unrecognizedName) }
		}
		start := time.Now()
		return together(ctx, clients, func(ctx context.Context, i int) error {
			answer := make([]byte, tunnelAnswer)
			for ; ctx.Err() == nil; i += clients {
				if rate > 0 {
					time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(rate))))
				}
				began := time.Now()
				if err := open(i, answer); err != nil {
					return err
				}
				m.took(time.Since(began))
			}
			return nil
		})
	}
}

// openTunnel opens a tunnel, reads the answer of the upstream and closes.
func openTunnel(s *server, name string, hello, answer []byte) error {
	c, err := s.dial(name)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(tunnelPatience))
	if _, err := c.Write(hello); err != nil {
		return err
	}
	if n, err := io.ReadFull(c, answer); err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", n, len(answer), err)
	}
	return nil
}

// Alerts in a record of their own (RFC 8446 §6).
var (
	unrecognizedName = []byte{21, 3, 3, 0, 2, 2, 112}
	internalError    = []byte{21, 3, 3, 0, 2, 2, 80}
)

// refused sends a ClientHello, reads an alert, and closes, as TLS clients do.
func refused(s *server, hello, alert []byte) error {
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(s.addr))
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(tunnelPatience))
	c.Write(hello) // which fails if the alert has come before it
	got := make([]byte, len(alert))
	if n, err := io.ReadFull(c, got); !bytes.Equal(got, alert) {
		return fmt.Errorf("got % x, %v, want the alert % x", got[:n], err, alert)
	}
	return nil
}

// proveGateway waits until a gateway listens and opens a tunnel to every name that will be connected to, and to one
// that is not in the policy: a gateway that lets that one through does not do the job.
func (l *lab) proveGateway(ctx context.Context, s *server) error {
	if err := s.process.awaitTCP(ctx, s.addr.String()); err != nil {
		return err
	}
	hellos, err := connectedHellos()
	if err != nil {
		return err
	}
	answer := make([]byte, tunnelAnswer)
	for i, hello := range hellos {
		if err := openTunnel(s, connected(i), hello, answer); err != nil {
			return fmt.Errorf("tunnel to %s: %w: %s", connected(i), err, s.process.lastWords())
		}
	}

	hello, err := clientHello(denied(0), tunnelAnswer)
	if err != nil {
		return err
	}
	before, err := l.upstream.accepted()
	if err != nil {
		return err
	}
	opened := openTunnel(s, denied(0), hello, answer)
	after, err := l.upstream.accepted()
	if err != nil {
		return err
	}
	if opened == nil || after != before {
		return fmt.Errorf("%s got through, which no rule admits", denied(0))
	}
	return nil
}

// proveResolving is proveGateway for whoever has to ask the zone for the names.
func (l *lab) proveResolving(ctx context.Context, s *server) error {
	asked := l.zone.asked.Load()
	if err := l.proveGateway(ctx, s); err != nil {
		return err
	}
	if l.zone.asked.Load() == asked {
		return errors.New("it did not ask its resolver")
	}
	return nil
}
