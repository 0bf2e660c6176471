package upstream

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// families are the address records asked for, in the order of preference.
var families = [...]uint16{dns.TypeAAAA, dns.TypeA}

// resolve asks for both families of an absolute name at once. It returns the
// addresses and for how long they are good, or an error, which is ErrNoAddress
// only if both families say so.
//
// Addresses of one family suffice. The other gets a moment more and is given up
// then; but what is good without it is good for as long as a failure is
// remembered, so that it gets its chance again soon.
func (r *Resolver) resolve(ctx context.Context, name string) ([]netip.Addr, time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	type result struct {
		family int
		answer answer
		err    error
	}
	results := make(chan result, len(families))
	for i, qtype := range families {
		go func() {
			a, err := r.follow(ctx, name, qtype)
			results <- result{i, a, err}
		}()
	}

	var got [len(families)]*result
	var grace <-chan time.Time
	for waiting := len(families); waiting > 0; waiting-- {
		select {
		case res := <-results:
			got[res.family] = &res
			if len(res.answer.addrs) > 0 && waiting > 1 {
				t := time.NewTimer(r.limits.grace)
				defer t.Stop()
				grace = t.C
			}
		case <-grace:
			waiting = 0
		}
	}

	var addrs []netip.Addr
	ttl := r.limits.maxTTL
	var failure error
	none := nodata
	for _, res := range got {
		switch {
		case res == nil:
			ttl = min(ttl, r.limits.failure)
		case res.err != nil:
			ttl = min(ttl, r.limits.failure)
			failure = res.err
		case res.answer.none == nxdomain:
			none = nxdomain
		case res.answer.none == "":
			addrs = append(addrs, res.answer.addrs...)
			ttl = min(ttl, res.answer.ttl)
		}
	}
	switch {
	case len(addrs) > 0:
		return addrs, max(ttl, r.limits.minTTL), nil
	case failure != nil:
		return nil, 0, failure
	default:
		return nil, 0, none
	}
}

// follow asks for one family of a name, and on for the name that a reply ends
// with when it has only part of the chain.
func (r *Resolver) follow(ctx context.Context, name string, qtype uint16) (answer, error) {
	ttl, steps := r.limits.maxTTL, 0
	for {
		a, err := r.ask(ctx, dns.Question{Name: name, Qtype: qtype, Qclass: dns.ClassINET})
		if err != nil {
			return answer{}, err
		}
		if steps += a.steps; steps > maxChain {
			return answer{}, errChain
		}
		if a.ttl = min(a.ttl, ttl); a.next == "" {
			return a, nil
		}
		name, ttl = a.next, a.ttl
	}
}

// ask puts one question to one server after the other until one of them answers.
func (r *Resolver) ask(ctx context.Context, q dns.Question) (answer, error) {
	n := len(r.servers)
	first := int(r.first.Load())
	// With many servers the last must still have time.
	delay := min(r.limits.repeat, r.limits.total/time.Duration(n+1))
	return race(ctx, n, delay, delay, func(ctx context.Context, i int) (a answer, err error) {
		i = (first + i) % n
		m, err := exchange(ctx, r.servers[i], q, r.limits.repeat)
		if err == nil {
			a, err = readAnswer(m, q)
		}
		if err != nil {
			return answer{}, fmt.Errorf("%w at %v", err, r.servers[i])
		}
		r.first.Store(uint32(i))
		return a, nil
	}, func(answer) {})
}
