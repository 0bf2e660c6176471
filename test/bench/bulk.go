package main

import (
	"context"
	"fmt"
	"net"
	"time"
)

// direction is which end sends.
type direction int

const (
	download direction = iota
	upload
)

// bulk is the cost of a GB through so many tunnels.
func bulk(name, against string, d direction, streams int) measure {
	text := "The upstream sends as fast as it can, clients read and discard"
	if d == upload {
		text = "Clients send as fast as they can, the upstream reads and discards"
	}
	return measure{
		name:    name,
		text:    fmt.Sprintf("%s; tunnels that are open: %d. 1 GB is 10^9 bytes.", text, streams),
		against: against,
		columns: []column{
			{"CPU per GB", seconds, true},
			{"GB/s", decimal, true},
		},
		take: moving(d, streams).values(func(u use) []float64 {
			const giga = 1e9
			return []float64{u.cpuPer() * giga, u.perSecond() / giga}
		}),
	}
}

// moving is the load of bulk.
func moving(d direction, streams int) load {
	return func(ctx context.Context, s *server, m *meter) error {
		ask := uint64(askSink)
		move := func(c net.Conn, buf []byte) (int, error) { return c.Write(buf) }
		if d == download {
			ask = askEcho - 1 // more than can be sent
			move = func(c net.Conn, buf []byte) (int, error) { return c.Read(buf) }
		}
		return together(ctx, streams, func(ctx context.Context, _ int) error {
			c, err := s.tunnel(connected(0), ask)
			if err != nil {
				return err
			}
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			buf := make([]byte, 256<<10)
			for {
				c.SetDeadline(time.Now().Add(tunnelPatience))
				n, err := move(c, buf)
				m.done.Add(int64(n))
				if ctx.Err() != nil {
					return nil
				}
				if err != nil {
					return err
				}
			}
		})
	}
}
