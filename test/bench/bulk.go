package main

import (
	"context"
	"fmt"
	"math"
	"time"
)

// bulk is the cost of a GB from the upstream to clients that read and discard.
func bulk(name, against string, streams int) measure {
	return measure{
		name: name,
		text: fmt.Sprintf("The upstream sends as fast as it can, clients read and discard; tunnels that are open: %d. "+
			"1 GB is 10^9 bytes.", streams),
		against: against,
		columns: []column{
			{"CPU per GB", seconds, true},
			{"GB/s", decimal, true},
		},
		load: func(ctx context.Context, s *server, m *meter) error {
			hello, err := clientHello(connected(0), math.MaxInt64)
			if err != nil {
				return err
			}
			return together(ctx, streams, func(ctx context.Context, _ int) error {
				return download(ctx, s, hello, m)
			})
		},
		values: func(u use) []float64 {
			const giga = 1e9
			return []float64{u.cpuPer() * giga, u.perSecond() / giga}
		},
	}
}

// download reads until ctx ends.
func download(ctx context.Context, s *server, hello []byte, m *meter) error {
	c, err := s.dial(connected(0))
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := c.Write(hello); err != nil {
		return err
	}
	buf := make([]byte, 256<<10)
	for {
		c.SetReadDeadline(time.Now().Add(tunnelPatience))
		n, err := c.Read(buf)
		m.done.Add(int64(n))
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
