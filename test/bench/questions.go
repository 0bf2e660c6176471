package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/miekg/dns"
)

// questions are packed DNS queries and what is to be answered to each. The ID of a query is its index, so
// that a reply leads to what was asked.
type questions struct {
	wire [1 << 16][]byte
	want [1 << 16]header
}

// header is what is looked at in a reply.
type header struct {
	rcode   byte
	answers byte
}

// newQuestions makes queries for a policy of n rules: of each ten, five are for names below a zone, three
// for single names, two for names that are denied. A and AAAA alternate, as stub resolvers ask for both;
// every other pair has an OPT record (glibc and musl send none, Go, c-ares and systemd-resolved do).
func newQuestions(n int) (*questions, error) {
	q := new(questions)
	random := rand.New(rand.NewPCG(1, 2)) // the same in every run
	for id := range q.wire {
		var name string
		q.want[id] = header{dns.RcodeSuccess, 1}
		switch kind := id % 10; {
		case kind < 5:
			name = admitted(2*random.IntN(n/2)+1, random.IntN(1000))
		case kind < 8:
			name = admitted(2*random.IntN(n/2), 0)
		default:
			name = denied(random.Int())
			q.want[id] = header{dns.RcodeNameError, 0}
		}
		m := new(dns.Msg)
		m.SetQuestion(dns.Fqdn(name), [...]uint16{dns.TypeA, dns.TypeAAAA}[id/10%2])
		m.Id = uint16(id)
		if id/20%2 == 1 {
			m.SetEdns0(1232, false)
		}
		var err error
		if q.wire[id], err = m.Pack(); err != nil {
			return nil, fmt.Errorf("packing a question for %s: %w", name, err)
		}
	}
	return q, nil
}

// expect makes every answer that a server gives whatever the name the right one.
func (q *questions) expect(h header) {
	for i := range q.want {
		q.want[i] = h
	}
}

// check reports whether a message is the reply that was due (RFC 1035 §4.1.1).
func (q *questions) check(reply []byte) error {
	if len(reply) < 12 || reply[2]&0x80 == 0 {
		return fmt.Errorf("%d octets that are no reply", len(reply))
	}
	id := binary.BigEndian.Uint16(reply)
	got := header{rcode: reply[3] & 0x0f, answers: reply[7]}
	if got != q.want[id] {
		return fmt.Errorf("reply to question %d: got rcode %d and %d answers, want rcode %d and %d",
			id, got.rcode, got.answers, q.want[id].rcode, q.want[id].answers)
	}
	return nil
}
