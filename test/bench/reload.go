package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// reloading is newTunnels beside a policy that changes.
func reloading(name, against string, clients, rate int) measure {
	const stretch = 4 // windows in one, so that there are some changes in each
	m := newTunnels(name, against, clients, rate)
	m.text += " A policy that changes is replaced each second by one that differs in a rule, and seen to be in force before the next change."
	steady := m.take
	m.take = func(ctx context.Context, s *server, p pace) ([]float64, error) {
		p.window = max(p.window*stretch, 2*time.Second)
		if !s.changes {
			return steady(ctx, s, p)
		}
		changing, stop := context.WithCancel(ctx)
		defer stop()
		type outcome struct {
			changes int
			err     error
		}
		ended := make(chan outcome, 1)
		go func() {
			n, err := s.changeEachSecond(changing)
			ended <- outcome{n, err}
		}()
		values, err := steady(ctx, s, p)
		stop()
		o := <-ended
		if err := errors.Join(err, o.err); err != nil {
			return nil, err
		}
		if o.changes == 0 {
			return nil, fmt.Errorf("no change has been seen in force within %v", p.window)
		}
		return values, nil
	}
	return m
}

// changeEachSecond admits a name and denies it by turns until ctx ends, and returns how often that was seen in force.
func (s *server) changeEachSecond(ctx context.Context) (changes int, err error) {
	name := denied(1)
	hello, err := clientHello(name, tunnelAnswer)
	if err != nil {
		return 0, err
	}
	answer := make([]byte, tunnelAnswer)
	lines := gatewayLines(s.policy)
	defer func() { err = errors.Join(err, writePolicy(s.policy.Policy, lines...)) }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for admit := true; ; admit = !admit {
		now := lines
		if admit {
			now = append([]string{"allow " + name}, lines...)
		}
		if err := writePolicy(s.policy.Policy, now...); err != nil {
			return changes, err
		}
		err := s.process.await(ctx, func() error {
			if got := openTunnel(s, name, hello, answer) == nil; got != admit {
				return fmt.Errorf("%s: admitted is %v, want %v", name, got, admit)
			}
			return nil
		})
		if ctx.Err() != nil {
			return changes, nil
		}
		if err != nil {
			return changes, err
		}
		changes++
		select {
		case <-tick.C:
		case <-ctx.Done():
			return changes, nil
		}
	}
}

// changing has the policy of our gateway changed while it is measured.
func changing(p peer) peer {
	start := p.start
	p.setUp += "; its policy changes each second"
	p.start = func(ctx context.Context) (*server, error) {
		s, err := start(ctx)
		if s != nil {
			s.changes = true
		}
		return s, err
	}
	return p
}
