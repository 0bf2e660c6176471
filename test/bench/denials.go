package main

import "context"

// denials is the cost of a denial beside that of a tunnel, each for so many clients at once.
func denials(name, against string, clients int) measure {
	m := newTunnels(name, against, clients, 0)
	m.text += " A client that is denied reads the alert in place of these, which comes when the gateway has " +
		"looked whether the policy has changed, up to 50 ms later."
	return m
}

// refusing has clients ask a peer for names that no rule admits.
func refusing(p peer) peer {
	start := p.start
	p.start = func(ctx context.Context) (*server, error) {
		s, err := start(ctx)
		if s != nil {
			s.refuses = true
		}
		return s, err
	}
	return p
}
