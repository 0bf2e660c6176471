package upstream

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// chain is n CNAME records from c0.test. on, and an address at its end.
func chain(n int) []string {
	var rrs []string
	for i := range n {
		rrs = append(rrs, fmt.Sprintf("c%d.test. 60 IN CNAME c%d.test.", i, i+1))
	}
	return append(rrs, fmt.Sprintf("c%d.test. 60 IN A 1.2.3.4", n))
}

func TestReadAnswer(t *testing.T) {
	const soa = "test. 60 IN SOA a. b. 1 2 3 4 60"
	for _, tc := range []struct {
		name   string
		qtype  uint16
		rcode  int
		answer []string
		ns     []string
		want   answer
		err    string // part of its text
	}{
		{name: "address", answer: []string{"c0.test. 60 IN A 1.2.3.4"},
			want: answer{addrs: addrs("1.2.3.4"), ttl: time.Minute}},
		{name: "case does not matter", answer: []string{"C0.TeSt. 60 IN A 1.2.3.4"},
			want: answer{addrs: addrs("1.2.3.4"), ttl: time.Minute}},
		{name: "of another name", answer: []string{"x.test. 60 IN A 1.2.3.4"},
			want: answer{none: nodata}},
		{name: "of a name below", answer: []string{"x.c0.test. 60 IN A 1.2.3.4"},
			want: answer{none: nodata}},
		{name: "of another type", answer: []string{"c0.test. 60 IN AAAA 2001:4860::1"},
			want: answer{none: nodata}},
		{name: "of another class", answer: []string{"c0.test. 60 CH A 1.2.3.4"},
			want: answer{none: nodata}},
		{name: "without data", answer: []string{`c0.test. 60 IN A \# 0`},
			want: answer{none: nodata}},
		{name: "AAAA", qtype: dns.TypeAAAA, answer: []string{"c0.test. 60 IN A 1.2.3.4", "c0.test. 60 IN AAAA 2001:4860::1"},
			want: answer{addrs: addrs("2001:4860::1"), ttl: time.Minute}},
		{name: "in the wrong section", ns: []string{"c0.test. 60 IN A 1.2.3.4"},
			want: answer{none: nodata}},
		{name: "chain", answer: chain(3),
			want: answer{addrs: addrs("1.2.3.4"), ttl: time.Minute, steps: 3}},
		{name: "chain in any order", answer: reversed(chain(3)),
			want: answer{addrs: addrs("1.2.3.4"), ttl: time.Minute, steps: 3}},
		{name: "chain and others", answer: append(chain(1), "x.test. 1 IN A 6.6.6.6", "c0.test. 1 IN CNAME evil.test."),
			want: answer{addrs: addrs("1.2.3.4"), ttl: time.Minute, steps: 1}},
		{name: "longest chain", answer: chain(maxChain),
			want: answer{addrs: addrs("1.2.3.4"), ttl: time.Minute, steps: maxChain}},
		{name: "longer chain", answer: chain(maxChain + 1), err: "CNAME"},
		{name: "dial-028", answer: chain(20), err: "CNAME"},
		{name: "loop", answer: []string{"c0.test. 60 IN CNAME c1.test.", "c1.test. 60 IN CNAME c0.test."}, err: "CNAME"},
		{name: "loop of one", answer: []string{"c0.test. 60 IN CNAME c0.test."}, err: "CNAME"},
		{name: "chain cut short", answer: []string{"c0.test. 60 IN CNAME c1.test."},
			want: answer{next: "c1.test.", ttl: time.Minute, steps: 1}},
		{name: "chain to a name without address", answer: []string{"c0.test. 60 IN CNAME c1.test."}, ns: []string{soa},
			want: answer{none: nodata, steps: 1}},
		{name: "chain to no name", rcode: dns.RcodeNameError, answer: []string{"c0.test. 60 IN CNAME c1.test."}, ns: []string{soa},
			want: answer{none: nxdomain, steps: 1}},
		{name: "no such name", rcode: dns.RcodeNameError, ns: []string{soa},
			want: answer{none: nxdomain}},
		{name: "no such name, but an address", rcode: dns.RcodeNameError, answer: []string{"c0.test. 60 IN A 1.2.3.4"},
			want: answer{none: nxdomain}},
		{name: "SERVFAIL with an address", rcode: dns.RcodeServerFailure, answer: []string{"c0.test. 60 IN A 1.2.3.4"}, err: "SERVFAIL"},
		{name: "unknown error", rcode: 3841, err: "RCODE 3841"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := dns.Question{Name: "c0.test.", Qtype: dns.TypeA, Qclass: dns.ClassINET}
			if tc.qtype != 0 {
				q.Qtype = tc.qtype
			}
			m := reply(&dns.Msg{Question: []dns.Question{q}})
			m.Rcode = tc.rcode
			for _, s := range tc.answer {
				m.Answer = append(m.Answer, newRR(s))
			}
			for _, s := range tc.ns {
				m.Ns = append(m.Ns, newRR(s))
			}
			got, err := readAnswer(m, q)
			if tc.err != "" {
				if err == nil || errors.Is(err, ErrNoAddress) || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %+v and %v, want a failure with %q", got, err, tc.err)
				}
				return
			}
			if err != nil || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", tc.want) {
				t.Errorf("got %+v and %v, want %+v", got, err, tc.want)
			}
		})
	}
}

func TestAddressesAreBounded(t *testing.T) {
	q := dns.Question{Name: "c0.test.", Qtype: dns.TypeA, Qclass: dns.ClassINET}
	m := reply(&dns.Msg{Question: []dns.Question{q}})
	for i := range 4096 {
		m.Answer = append(m.Answer, newRR(fmt.Sprintf("c0.test. 60 IN A 10.0.%d.%d", i>>8, i&255)))
	}
	got, err := readAnswer(m, q)
	if err != nil || len(got.addrs) != maxAddrs {
		t.Errorf("got %d addresses and %v, want %d", len(got.addrs), err, maxAddrs)
	}
}

// FuzzAnswer reads replies as they come from the wire. Invariants: an address
// belongs to a name to which CNAME records lead from the question, what is asked
// next is such a name too, and the work is bounded.
func FuzzAnswer(f *testing.F) {
	for _, rrs := range [][]string{
		chain(0), chain(3), chain(20), reversed(chain(5)),
		{"c0.test. 60 IN CNAME c1.test."},
		{"c0.test. 60 IN CNAME c1.test.", "c1.test. 60 IN CNAME c0.test."},
		{"c0.test. 60 IN A 1.2.3.4", "c0.test. 60 IN AAAA ::ffff:10.0.0.1", "x.test. 60 IN A 6.6.6.6"},
		{`c0.test. 60 IN A \# 0`},
	} {
		for _, rcode := range []int{dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeServerFailure} {
			m := reply(&dns.Msg{Question: []dns.Question{{Name: "c0.test.", Qtype: dns.TypeA, Qclass: dns.ClassINET}}})
			m.Rcode = rcode
			for _, s := range rrs {
				m.Answer = append(m.Answer, newRR(s))
			}
			b, err := m.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b, false)
			f.Add(b, true)
		}
	}
	f.Fuzz(func(t *testing.T, packet []byte, six bool) {
		q := dns.Question{Name: "c0.test.", Qtype: dns.TypeA, Qclass: dns.ClassINET}
		if six {
			q.Qtype = dns.TypeAAAA
		}
		m := new(dns.Msg)
		if m.Unpack(packet) != nil {
			return
		}
		got, err := readAnswer(m, q)
		if err != nil {
			if errors.Is(err, ErrNoAddress) {
				t.Fatalf("the failure %v proves that there is no address", err)
			}
			return
		}
		set := 0
		for _, is := range []bool{len(got.addrs) > 0, got.next != "", got.none != ""} {
			if is {
				set++
			}
		}
		if set != 1 {
			t.Fatalf("%+v is not one of addrs, next and none", got)
		}
		if len(got.addrs) > maxAddrs || got.steps > maxChain || got.ttl < 0 {
			t.Fatalf("%+v is out of bounds", got)
		}
		reached := reachable(m.Answer, q.Name)
		if got.next != "" && !reached[strings.ToLower(got.next)] {
			t.Fatalf("asks on for %q, reachable are %v", got.next, reached)
		}
		for _, a := range got.addrs {
			if a.Is4() == six || !slices.ContainsFunc(m.Answer, func(rr dns.RR) bool { return has(rr, q, a, reached) }) {
				t.Fatalf("%v is none of the question's addresses in\n%v", a, m)
			}
		}
	})
}

// reachable is every name to which CNAME records lead from name, in lower case.
func reachable(rrs []dns.RR, name string) map[string]bool {
	reached := map[string]bool{strings.ToLower(name): true}
	for grown := true; grown; {
		grown = false
		for _, rr := range rrs {
			c, ok := rr.(*dns.CNAME)
			if !ok || !reached[strings.ToLower(c.Hdr.Name)] || reached[strings.ToLower(c.Target)] {
				continue
			}
			reached[strings.ToLower(c.Target)] = true
			grown = true
		}
	}
	return reached
}

// has reports whether rr gives a to one of the names.
func has(rr dns.RR, q dns.Question, a netip.Addr, names map[string]bool) bool {
	h := rr.Header()
	if h.Rrtype != q.Qtype || h.Class != q.Qclass || !names[strings.ToLower(h.Name)] {
		return false
	}
	switch rr := rr.(type) {
	case *dns.A:
		return rr.A.String() == a.String()
	case *dns.AAAA:
		return rr.AAAA.Equal(a.AsSlice())
	}
	return false
}

func addrs(ss ...string) (as []netip.Addr) {
	for _, s := range ss {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

func reversed(ss []string) []string {
	slices.Reverse(ss)
	return ss
}
