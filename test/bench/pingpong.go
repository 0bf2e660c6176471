package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

// pingSize is what a short request, or an event of a stream, has in bytes.
const pingSize = 64

// pingPong is what a server adds to a request on a tunnel that is open.
func pingPong(name, against string) measure {
	return measure{
		name: name,
		text: fmt.Sprintf("On one open tunnel the client sends %d bytes and waits until the upstream has sent them back, again and again.",
			pingSize),
		against: against,
		columns: []column{
			{"p50", microseconds, true},
			{"p99", microseconds, false},
			{"CPU per round trip", microseconds, true},
		},
		take: load(pinging).values(func(u use) []float64 {
			return []float64{u.percentile(0.5), u.percentile(0.99), u.cpuPer()}
		}),
	}
}

func pinging(ctx context.Context, s *server, m *meter) error {
	c, err := s.tunnel(connected(0), askEcho)
	if err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, pingSize)
	for ctx.Err() == nil {
		c.SetDeadline(time.Now().Add(tunnelPatience))
		began := time.Now()
		if _, err := c.Write(buf); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
		m.took(time.Since(began))
	}
	return nil
}
