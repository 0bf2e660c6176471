package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// The load of a DNS server: so many sockets, each with so many questions that wait for their reply.
const (
	dnsSockets  = 8
	dnsInFlight = 8

	// dnsPatience is how long a reply may take. On a loopback address none is lost unless the server
	// loses it.
	dnsPatience = 2 * time.Second
)

// dnsQuestions is the cost of a question over UDP.
func dnsQuestions(name, against string) measure {
	return measure{
		name: name,
		text: fmt.Sprintf("UDP, closed loop, %d sockets with %d questions in flight each. Of ten names five are below a zone of the "+
			"policy, three are single names of it, two are denied; A and AAAA, half with EDNS. Every reply is checked.",
			dnsSockets, dnsInFlight),
		against: against,
		columns: []column{
			{"CPU per question", microseconds, true},
			{"questions/s", count, true},
		},
		load: func(ctx context.Context, s *server, m *meter) error {
			return together(ctx, dnsSockets, func(ctx context.Context, i int) error {
				return s.asked.ask(ctx, net.UDPAddrFromAddrPort(s.addr), i*len(s.asked.wire)/dnsSockets, m)
			})
		},
		values: func(u use) []float64 { return []float64{u.cpuPer(), u.perSecond()} },
	}
}

// ask keeps a socket busy until ctx ends, then waits for the replies that are due. It begins with the
// question of index next and goes round.
func (q *questions) ask(ctx context.Context, to *net.UDPAddr, next int, m *meter) error {
	c, err := net.DialUDP("udp", nil, to)
	if err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, 64<<10)
	waiting := 0
	for received := 0; ; received++ {
		for ; waiting < dnsInFlight && ctx.Err() == nil; waiting++ {
			if _, err := c.Write(q.wire[next%len(q.wire)]); err != nil {
				return err
			}
			next++
		}
		if waiting == 0 {
			return nil
		}
		if received%256 == 0 { // a deadline for each read would cost more than the read
			c.SetReadDeadline(time.Now().Add(dnsPatience))
		}
		n, err := c.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("%d questions without a reply within %v", waiting, dnsPatience)
		}
		if err != nil {
			return err
		}
		if err := q.check(buf[:n]); err != nil {
			return err
		}
		waiting--
		m.done.Add(1)
	}
}

// awaitDNS waits until a DNS server gives the right answer.
func (s *server) awaitDNS(ctx context.Context) error {
	return s.process.await(ctx, func() error {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(s.addr))
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Second))
		if _, err := c.Write(s.asked.wire[0]); err != nil {
			return err
		}
		buf := make([]byte, 64<<10)
		n, err := c.Read(buf)
		if err != nil {
			return err
		}
		return s.asked.check(buf[:n])
	})
}
