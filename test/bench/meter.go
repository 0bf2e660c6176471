package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// meter is what a load counts in: questions, tunnels or bytes, and how long each took if that matters.
type meter struct {
	done atomic.Int64

	mu        sync.Mutex
	timing    bool // within the window
	latencies []time.Duration
}

// took notes how long one unit took, and counts it.
func (m *meter) took(d time.Duration) {
	m.done.Add(1)
	m.mu.Lock()
	if m.timing {
		m.latencies = append(m.latencies, d)
	}
	m.mu.Unlock()
}

// reading is the state of all counters at one instant.
type reading struct {
	at   time.Time
	done int64
	cpu  time.Duration
}

func (m *meter) read(s *server) (reading, error) {
	r := reading{at: time.Now(), done: m.done.Load()}
	if s.process == nil {
		return r, nil
	}
	var err error
	r.cpu, err = s.process.cpu()
	return r, err
}

// use is what was done in a window, and what it took.
type use struct {
	done      float64       // questions, tunnels or bytes
	wall      time.Duration // length of the window
	cpu       time.Duration // user and system, of all processes of the server; 0 if there is none
	latencies []time.Duration
}

// load keeps a server busy until ctx ends, and counts in m what it has done. An error means that it did not do its
// job.
type load func(ctx context.Context, s *server, m *meter) error

// values has a measure take what is to be read off a load.
func (ld load) values(read func(use) []float64) func(context.Context, *server, pace) ([]float64, error) {
	return func(ctx context.Context, s *server, p pace) ([]float64, error) {
		u, err := ld.observe(ctx, s, p)
		if err != nil {
			return nil, err
		}
		return read(u), nil
	}
}

// observe puts a server under load and takes the difference of all counters over a window in its midst:
// neither the begin nor the end of the load is in it.
func (ld load) observe(ctx context.Context, s *server, p pace) (use, error) {
	loaded, cancel := context.WithCancel(ctx)
	defer cancel()
	var counted meter
	ended := make(chan error, 1)
	go func() { ended <- ld(loaded, s, &counted) }()

	u, err := counted.window(s, p, ended)
	if err != nil {
		cancel()
		if <-ended; ctx.Err() != nil {
			return use{}, ctx.Err()
		}
		return use{}, err
	}
	cancel()
	if err := <-ended; err != nil {
		return use{}, err
	}
	return u, nil
}

var errIdle = errors.New("nothing was done")

// window waits until the load is under way, and reads the counters twice. An error from ended is put back.
func (m *meter) window(s *server, p pace, ended chan error) (use, error) {
	wait := func(d time.Duration) error {
		select {
		case <-time.After(d):
			return nil
		case err := <-ended:
			if err == nil {
				err = errors.New("the load ended by itself")
			}
			ended <- err
			return err
		}
	}
	if err := wait(p.warm); err != nil {
		return use{}, err
	}
	m.time(true)
	first, err := m.read(s)
	if err != nil {
		return use{}, err
	}
	if err := wait(p.window); err != nil {
		return use{}, err
	}
	last, err := m.read(s)
	if err != nil {
		return use{}, err
	}
	m.time(false)
	if last.done == first.done {
		return use{}, errIdle
	}
	slices.Sort(m.latencies)
	return use{
		done:      float64(last.done - first.done),
		wall:      last.at.Sub(first.at),
		cpu:       last.cpu - first.cpu,
		latencies: m.latencies,
	}, nil
}

func (m *meter) time(on bool) {
	m.mu.Lock()
	m.timing = on
	m.mu.Unlock()
}
