package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	idleFew  = 1_500
	idleMany = 10_000

	// openers open tunnels at a time, which is a crowd that comes at once, but not one that fills a backlog.
	openers = 64
	// settling is how long tunnels are left alone before they are counted: what is given back only later, or only
	// when memory is short, is memory that they cost.
	settling = time.Second
)

// idleRoom is how many of idleMany tunnels there are where a process may have so many descriptors: two are needed for
// each, and what a gateway sets aside. With descriptorLimit it is all of them.
func idleRoom(descriptors int) int {
	if descriptors >= descriptorLimit {
		return idleMany
	}
	return idleMany * descriptors / descriptorLimit / 100 * 100
}

// idling is what a server holds for tunnels on which no byte moves.
func idling(name, against string, tunnels, descriptors int) measure {
	return measure{
		name: name,
		text: fmt.Sprintf("%d tunnels are opened, %d at a time, and left alone after the ClientHello and one byte of answer. Difference "+
			"between before and %v later, all processes of the server, which is started anew for each round and may have %d descriptors.",
			tunnels, openers, settling, descriptors),
		against: against,
		columns: []column{
			{"RSS per tunnel", kibibytes, true},
			{"descriptors per tunnel", decimal, false},
		},
		take: func(ctx context.Context, s *server, p pace) ([]float64, error) {
			before, err := s.process.memory()
			if err != nil {
				return nil, err
			}
			conns, err := s.crowd(ctx, tunnels)
			defer closeAll(conns)
			if err != nil {
				return nil, fmt.Errorf("after %d tunnels: %w", len(conns), err)
			}
			if err := sleep(ctx, settling); err != nil {
				return nil, err
			}
			after, err := s.process.memory()
			if err != nil {
				return nil, err
			}
			if err := stillOpen(conns); err != nil {
				return nil, err
			}
			n := float64(tunnels)
			return []float64{(after.rss - before.rss) / n, (after.descriptors - before.descriptors) / n}, nil
		},
	}
}

// crowd opens n tunnels and returns those that are open, with the first error if they are fewer.
func (s *server) crowd(ctx context.Context, n int) ([]net.Conn, error) {
	hello, err := clientHello(connected(0), 1)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	conns := make([]net.Conn, 0, n)
	err = together(ctx, openers, func(ctx context.Context, i int) error {
		for ; i < n && ctx.Err() == nil; i += openers {
			c, err := s.hold(hello)
			if err != nil {
				return err
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
		return nil
	})
	return conns, errors.Join(err, ctx.Err())
}

// hold opens a tunnel and returns it once the upstream has answered.
func (s *server) hold(hello []byte) (net.Conn, error) {
	c, err := s.dial(connected(0))
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(tunnelPatience))
	c.Write(hello) // if that fails there is an alert to read
	if err := readOne(c); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// errRefused is what a tunnel ends with that is not opened.
var errRefused = errors.New("refused")

// readOne reads the answer to a ClientHello that asks for one byte: a zero, where an alert begins with 21.
func readOne(c net.Conn) error {
	got := make([]byte, len(internalError))
	n, err := io.ReadAtLeast(c, got, 1)
	switch {
	case err != nil:
		return err
	case got[0] != 0:
		return fmt.Errorf("%w: % x", errRefused, got[:n])
	}
	return nil
}

// stillOpen is an error if a tunnel has been closed.
func stillOpen(conns []net.Conn) error {
	closed := 0
	for _, c := range conns {
		c.SetReadDeadline(time.Unix(1, 0))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	if closed > 0 {
		return fmt.Errorf("%d of %d tunnels have been closed", closed, len(conns))
	}
	return nil
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		c.Close()
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// aboveTheCap fills our gateway and goes on: those above the cap are refused, the listener lives on, and all is back
// when the tunnels close.
func aboveTheCap(name string, descriptors int) measure {
	const more = 500
	return measure{
		name: name,
		text: fmt.Sprintf("Tunnels are opened until they are refused, with max_tunnels as it is by default under %d descriptors, then %d "+
			"more one by one. Then all are closed and as many opened again. A refusal is the alert internal_error and `limit` in the "+
			"decision log; anything else fails. Wanted are %s under %s descriptors, and under fewer in proportion.",
			descriptors, more, count(idleMany), count(descriptorLimit)),
		columns: []column{
			{"open", count, false},
			{"refused above", count, false},
			{"open again", count, false},
			{"of what is wanted", decimal, false},
		},
		take: func(ctx context.Context, s *server, p pace) ([]float64, error) {
			conns, err := s.crowd(ctx, descriptors/2)
			defer func() { closeAll(conns) }()
			if !errors.Is(err, errRefused) {
				return nil, fmt.Errorf("got %v, want a refusal: %d tunnels are open under %d descriptors", err, len(conns), descriptors)
			}
			hello, err := clientHello(connected(0), 1)
			if err != nil {
				return nil, err
			}
			// The first refusal has ended the crowd before all places were taken.
			rest, err := s.fill(ctx, hello)
			conns = append(conns, rest...)
			if err != nil {
				return nil, err
			}
			for i := range more {
				if err := refused(s, hello, internalError); err != nil {
					return nil, fmt.Errorf("%d beyond the cap of %d: %w", i+1, len(conns), err)
				}
			}
			if log, err := os.ReadFile(s.process.path("decisions.log")); err != nil || !bytes.Contains(log, []byte(`"reason":"limit"`)) {
				return nil, fmt.Errorf("no refusal with reason limit in the decision log: %v", err)
			}
			if err := stillOpen(conns); err != nil {
				return nil, err
			}
			open := len(conns)
			closeAll(conns)
			conns = nil
			if err := s.process.await(ctx, func() error {
				conns, err = s.crowd(ctx, open)
				if err != nil { // places are given back one by one
					closeAll(conns)
					conns = nil
				}
				return err
			}); err != nil {
				return nil, fmt.Errorf("not all %d come back: %w", open, err)
			}
			again := float64(len(conns))
			return []float64{float64(open), more, again, again / float64(idleRoom(descriptors))}, nil
		},
	}
}

// fill opens tunnels one by one until one is refused.
func (s *server) fill(ctx context.Context, hello []byte) (conns []net.Conn, err error) {
	for ctx.Err() == nil {
		c, err := s.hold(hello)
		if errors.Is(err, errRefused) {
			return conns, nil
		}
		if err != nil {
			return conns, err
		}
		conns = append(conns, c)
	}
	return conns, ctx.Err()
}
