package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// questions are what a DNS server is asked, by turns, and what is to be answered.
type questions []question

type question struct {
	name string
	want header
}

// header is what is looked at in a reply.
type header struct {
	rcode   int
	answers int
}

const (
	dnsQuestions = 20_000 // that are asked by turns
	dnsProof     = 300    // of them that are checked one by one before anything is measured
)

// newQuestions makes questions for n rules: of each ten, five are for names below a zone, three for single names,
// two for names that are denied.
func newQuestions(n int) questions {
	q := make(questions, dnsQuestions)
	random := rand.New(rand.NewPCG(1, 2)) // the same in every run
	for i := range q {
		switch kind := i % 10; {
		case kind < 5:
			q[i] = question{admitted(2*random.IntN(n/2)+1, random.IntN(1000)), header{dns.RcodeSuccess, 1}}
		case kind < 8:
			q[i] = question{admitted(2*random.IntN(n/2), 0), header{dns.RcodeSuccess, 1}}
		default:
			q[i] = question{denied(random.Int()), header{dns.RcodeNameError, 0}}
		}
	}
	return q
}

// expectAll makes what a server answers whatever the name the right answer.
func (q questions) expectAll(h header) {
	for i := range q {
		q[i].want = h
	}
}

// expectDenied makes something else the right answer for names that are denied.
func (q questions) expectDenied(h header) {
	for i := range q {
		if q[i].want.rcode != dns.RcodeSuccess {
			q[i].want = h
		}
	}
}

// ask asks the first n one by one, by UDP, and checks what comes. A late reply to an earlier try would come to another
// socket.
func (q questions) ask(to netip.AddrPort, n int) error {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, 4<<10)
	for i, q := range q[:n] {
		m := new(dns.Msg)
		m.SetQuestion(dns.Fqdn(q.name), dns.TypeA)
		m.SetEdns0(1232, false)
		m.Id = uint16(i)
		wire, err := m.Pack()
		if err != nil {
			return fmt.Errorf("a question for %s: %w", q.name, err)
		}
		c.SetDeadline(time.Now().Add(dnsPatience))
		if _, err := c.Write(wire); err != nil {
			return err
		}
		length, err := c.Read(buf)
		if err != nil {
			return err
		}
		reply := new(dns.Msg)
		if err := reply.Unpack(buf[:length]); err != nil || reply.Id != m.Id {
			return fmt.Errorf("%s: got no reply to the question: %v", q.name, err)
		}
		if got := (header{reply.Rcode, len(reply.Answer)}); got != q.want {
			return fmt.Errorf("%s: got %s and %d answers, want %s and %d", q.name,
				dns.RcodeToString[got.rcode], got.answers, dns.RcodeToString[q.want.rcode], q.want.answers)
		}
	}
	return nil
}

// proveDNS waits until a server answers, and asks it some of the questions for so many rules. expect says what else
// than ours is the right answer. The questions are then those of the load.
func proveDNS(rules int, expect func(questions)) func(context.Context, *server) error {
	return func(ctx context.Context, s *server) error {
		q := newQuestions(rules)
		if expect != nil {
			expect(q)
		}
		if err := s.process.await(ctx, func() error { return q.ask(s.addr, 1) }); err != nil {
			return err
		}
		if err := q.ask(s.addr, dnsProof); err != nil {
			return err
		}
		return s.askLater(q)
	}
}

// askLater writes the questions as dnsperf reads them, and notes what share of each answer is to come.
func (s *server) askLater(q questions) error {
	s.questions = s.process.path("questions")
	s.answers = make(map[string]float64)
	for _, q := range q {
		s.answers[dns.RcodeToString[q.want.rcode]] += 1 / float64(dnsQuestions)
	}
	return writeLines(s.questions, func(w *bufio.Writer) error {
		for _, q := range q {
			fmt.Fprintln(w, q.name, "A")
		}
		return nil
	})
}
