package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

const exampleA = "example.com. 60 IN A 93.184.215.14"

func TestLookup(t *testing.T) {
	both := zone(exampleA, "example.com. 60 IN AAAA 2606:2800:21f:cb07::1")
	for _, tc := range []struct {
		name    string
		handler dns.HandlerFunc
		want    string
		err     error
		text    string // part of the error's text
	}{
		{"both families, IPv6 first", both, "2606:2800:21f:cb07::1 93.184.215.14", nil, ""},
		{"A only", zone(exampleA), "93.184.215.14", nil, ""},
		{"AAAA only", zone("example.com. 60 IN AAAA 2606:2800:21f:cb07::1"), "2606:2800:21f:cb07::1", nil, ""},
		{"order of the reply", zone("example.com. 60 IN A 5.5.5.5", "example.com. 60 IN A 4.4.4.4", "example.com. 60 IN A 6.6.6.6"), "5.5.5.5 4.4.4.4 6.6.6.6", nil, ""},
		{"NXDOMAIN", zone("other.com. 60 IN A 1.2.3.4"), "", ErrNoAddress, "NXDOMAIN"},
		{"NODATA", zone("example.com. 60 IN TXT x"), "", ErrNoAddress, "no A or AAAA record"},
		{"SERVFAIL", rcode(dns.RcodeServerFailure), "", ErrResolver, "SERVFAIL at 127.0.0.1:"},
		{"REFUSED", rcode(dns.RcodeRefused), "", ErrResolver, "REFUSED at 127.0.0.1:"},
		{"A and a failure", byType(both, rcode(dns.RcodeServerFailure)), "93.184.215.14", nil, ""},
		{"AAAA and a failure", byType(rcode(dns.RcodeServerFailure), both), "2606:2800:21f:cb07::1", nil, ""},
		{"A and silence", byType(both, silence), "93.184.215.14", nil, ""},
		{"A and NXDOMAIN", byType(both, rcode(dns.RcodeNameError)), "93.184.215.14", nil, ""},
		{"NODATA and a failure", byType(zone("example.com. 60 IN TXT x"), rcode(dns.RcodeServerFailure)), "", ErrResolver, "SERVFAIL"},
		{"a referral", func(w dns.ResponseWriter, q *dns.Msg) {
			m := reply(q)
			m.RecursionAvailable = false
			w.WriteMsg(m)
		}, "", ErrResolver, "referral"},
		{"a part of the chain at a time", func(w dns.ResponseWriter, q *dns.Msg) {
			m := reply(q)
			m.Answer = []dns.RR{map[string]dns.RR{
				"example.com. A":    newRR("example.com. 60 IN CNAME one.test."),
				"one.test. A":       newRR("one.test. 60 IN CNAME two.test."),
				"two.test. A":       newRR("two.test. 60 IN A 7.7.7.7"),
				"example.com. AAAA": newRR("example.com. 60 IN CNAME one.test."),
				"one.test. AAAA":    newRR("one.test. 60 IN CNAME two.test."),
				"two.test. AAAA":    newRR("two.test. 60 IN AAAA 2001:4860::7"),
			}[q.Question[0].Name+" "+dns.TypeToString[q.Question[0].Qtype]]}
			w.WriteMsg(m)
		}, "2001:4860::7 7.7.7.7", nil, ""},
		{"a loop, a part at a time", func(w dns.ResponseWriter, q *dns.Msg) {
			m := reply(q)
			m.Answer = []dns.RR{newRR(q.Question[0].Name + " 60 IN CNAME " + q.Question[0].Name)}
			w.WriteMsg(m)
		}, "", ErrResolver, "CNAME"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, _ := resolver(t, startDNS(t, tc.handler))
			got, err := lookup(t, r, "example.com")
			if got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("got %q and %v, want %q and %v", got, err, tc.want, tc.err)
			}
			if tc.err != nil && (!strings.Contains(err.Error(), tc.text) || !strings.HasPrefix(err.Error(), `resolving "example.com": `)) {
				t.Errorf("got text %q, want one with %q", err, tc.text)
			}
			if errors.Is(err, ErrNoAddress) && errors.Is(err, ErrResolver) {
				t.Errorf("%v is both", err)
			}
		})
	}
}

func TestLookupOfNoName(t *testing.T) {
	s := startDNS(t, zone(". 60 IN A 1.2.3.4"))
	r, _ := resolver(t, s)
	if addrs, err := r.Lookup(t.Context(), policy.Name{}); !errors.Is(err, ErrNoAddress) {
		t.Errorf("got %v and %v, want %v", addrs, err, ErrNoAddress)
	}
	if qs := s.questions(); len(qs) > 0 {
		t.Errorf("asked %q", qs)
	}
}

// What is asked is the absolute name and nothing else, without a hint at who
// wants to know.
func TestQuestions(t *testing.T) {
	s := startDNS(t, zone())
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	text := "search corp.internal lan\noptions ndots:5\nnameserver 192.0.2.1\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := newResolver(ResolverConfig{}, conf)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(r.servers); got != "[192.0.2.1:53]" {
		t.Fatalf("servers are %s", got)
	}
	r.servers[0], _ = parseServer(s.addr)

	t.Run("dial-047", func(t *testing.T) {
		if _, err := lookup(t, r, "example.com"); !errors.Is(err, ErrNoAddress) {
			t.Errorf("got %v, want %v", err, ErrNoAddress)
		}
		want := []string{"example.com. A", "example.com. AAAA"}
		if got := s.questions(); !slices.Equal(got, want) {
			t.Errorf("asked %q, want %q", got, want)
		}
	})
	for _, m := range s.asked {
		opt := m.IsEdns0()
		if opt == nil || opt.UDPSize() != ednsSize || len(opt.Option) != 0 || !m.RecursionDesired {
			t.Errorf("asked\n%v", m)
		}
	}
}

func TestServers(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want string // "" for an error
	}{
		{"1.1.1.1", "1.1.1.1:53"},
		{"9.9.9.9:5353", "9.9.9.9:5353"},
		{"2620:fe::fe", "[2620:fe::fe]:53"},
		{"[2620:fe::fe]:5353", "[2620:fe::fe]:5353"},
		{"fe80::1%eth0", "[fe80::1%eth0]:53"},
		{"", ""},
		{"dns.google", ""},
		{"dns.google:53", ""},
		{"1.1.1.1:0", ""},
		{"1.1.1.1:domain", ""},
		{"1.1.1.1:65536", ""},
		{"1.1.1", ""},
		{"tls://1.1.1.1", ""},
	} {
		t.Run(tc.in, func(t *testing.T) {
			r, err := NewResolver(ResolverConfig{Servers: []string{tc.in}})
			if tc.want == "" {
				if err == nil || !strings.Contains(err.Error(), "1.1.1.1:53") {
					t.Errorf("got %v, want an error that shows the accepted form", err)
				}
				return
			}
			if err != nil || r.servers[0].String() != tc.want {
				t.Errorf("got %v and %v, want %v", r, err, tc.want)
			}
		})
	}
	if _, err := NewResolver(ResolverConfig{Servers: []string{"1.1.1.1"}, Parallel: -1}); err == nil {
		t.Error("no error for a negative number in parallel")
	}
	none := filepath.Join(t.TempDir(), "resolv.conf")
	if _, err := newResolver(ResolverConfig{}, none); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v for a missing resolv.conf", err)
	}
	if err := os.WriteFile(none, []byte("# nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newResolver(ResolverConfig{}, none); err == nil || !strings.Contains(err.Error(), "no nameserver in "+none) {
		t.Errorf("got %v for an empty resolv.conf", err)
	}
}

// A server that fails or says nothing gives way to the next, which stays the
// first to be asked.
func TestNextServer(t *testing.T) {
	for _, tc := range []struct {
		name  string
		first dns.HandlerFunc
	}{
		{"fails", rcode(dns.RcodeServerFailure)},
		{"silent", silence},
		{"malformed", func(w dns.ResponseWriter, q *dns.Msg) {
			b, _ := reply(q).Pack()
			w.Write(append(b[:len(b)-1], 0xff, 0xff, 0xff))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bad, good := startDNS(t, tc.first), startDNS(t, zone(exampleA, "two.com. 60 IN A 2.2.2.2"))
			r, _ := resolver(t, bad, good)
			r.limits.repeat = 100 * time.Millisecond
			if got, err := lookup(t, r, "example.com"); got != "93.184.215.14" {
				t.Fatalf("got %q and %v", got, err)
			}
			before := len(bad.questions())
			if got, err := lookup(t, r, "two.com"); got != "2.2.2.2" {
				t.Fatalf("got %q and %v", got, err)
			}
			if after := len(bad.questions()); after != before {
				t.Errorf("asked the bad server %d times more", after-before)
			}
		})
	}
}

func TestAllServersFail(t *testing.T) {
	a, b := startDNS(t, rcode(dns.RcodeServerFailure)), startDNS(t, rcode(dns.RcodeRefused))
	r, _ := resolver(t, a, b)
	_, err := lookup(t, r, "example.com")
	want := fmt.Sprintf(`resolving "example.com": SERVFAIL at %s; REFUSED at %s`, a.addr, b.addr)
	if !errors.Is(err, ErrResolver) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A packet is sent again when it was lost.
func TestLostPacket(t *testing.T) {
	var mu sync.Mutex
	seen := make(map[uint16]int)
	good := zone(exampleA)
	s := startDNS(t, func(w dns.ResponseWriter, q *dns.Msg) {
		mu.Lock()
		seen[q.Question[0].Qtype]++
		lost := seen[q.Question[0].Qtype] == 1
		mu.Unlock()
		if !lost {
			good(w, q)
		}
	})
	r, _ := resolver(t, s)
	r.limits.repeat = 50 * time.Millisecond
	if got, err := lookup(t, r, "example.com"); got != "93.184.215.14" {
		t.Errorf("got %q and %v", got, err)
	}
}

// What does not answer our question in our number from our server is no reply.
func TestForgedReplies(t *testing.T) {
	forged := func(q *dns.Msg) *dns.Msg {
		m := reply(q)
		m.Answer = []dns.RR{newRR(q.Question[0].Name + " 60 IN A 66.66.66.66")}
		return m
	}
	good := zone(exampleA)
	for _, tc := range []struct {
		name  string
		forge func(w dns.ResponseWriter, q *dns.Msg)
	}{
		{"number", func(w dns.ResponseWriter, q *dns.Msg) {
			m := forged(q)
			m.Id++
			w.WriteMsg(m)
		}},
		{"name", func(w dns.ResponseWriter, q *dns.Msg) {
			q = q.Copy()
			q.Question[0].Name = "evil.com."
			w.WriteMsg(forged(q))
		}},
		{"type", func(w dns.ResponseWriter, q *dns.Msg) {
			q = q.Copy()
			q.Question[0].Qtype = dns.TypeTXT
			w.WriteMsg(forged(q))
		}},
		{"class", func(w dns.ResponseWriter, q *dns.Msg) {
			q = q.Copy()
			q.Question[0].Qclass = dns.ClassCHAOS
			w.WriteMsg(forged(q))
		}},
		{"two questions", func(w dns.ResponseWriter, q *dns.Msg) {
			m := forged(q)
			m.Question = append(m.Question, m.Question[0])
			w.WriteMsg(m)
		}},
		{"a query", func(w dns.ResponseWriter, q *dns.Msg) {
			m := forged(q)
			m.Response = false
			w.WriteMsg(m)
		}},
		{"garbage", func(w dns.ResponseWriter, q *dns.Msg) {
			w.Write([]byte{0})
			w.Write([]byte("garbage"))
		}},
		{"from another server", func(w dns.ResponseWriter, q *dns.Msg) {
			c, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			b, _ := forged(q).Pack()
			c.WriteTo(b, w.RemoteAddr())
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := startDNS(t, func(w dns.ResponseWriter, q *dns.Msg) {
				tc.forge(w, q)
				good(w, q)
			})
			r, _ := resolver(t, s)
			if got, err := lookup(t, r, "example.com"); got != "93.184.215.14" {
				t.Errorf("got %q and %v", got, err)
			}
		})
	}
	t.Run("over TCP", func(t *testing.T) {
		s := startDNS(t, func(w dns.ResponseWriter, q *dns.Msg) {
			m := forged(q)
			if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
				m.Truncated = true
			} else {
				m.Question[0].Name = "evil.com."
			}
			w.WriteMsg(m)
		})
		r, _ := resolver(t, s)
		if got, err := lookup(t, r, "example.com"); !errors.Is(err, ErrResolver) {
			t.Errorf("got %q and %v, want %v", got, err, ErrResolver)
		}
	})
}

func TestTTL(t *testing.T) {
	for _, tc := range []struct {
		name    string
		records []string
		fresh   time.Duration
	}{
		{"as given", []string{"example.com. 60 IN A 1.2.3.4"}, time.Minute},
		{"zero", []string{"example.com. 0 IN A 1.2.3.4"}, time.Second},
		{"a day", []string{"example.com. 86400 IN A 1.2.3.4"}, 5 * time.Minute},
		{"top bit set", []string{"example.com. 4294967295 IN A 1.2.3.4"}, time.Second},
		{"shortest of the addresses", []string{"example.com. 60 IN A 1.2.3.4", "example.com. 7 IN A 1.2.3.5"}, 7 * time.Second},
		{"shortest of the families", []string{"example.com. 60 IN A 1.2.3.4", "example.com. 9 IN AAAA 2001:4860::1"}, 9 * time.Second},
		{"shortest of the chain", []string{"example.com. 11 IN CNAME x.test.", "x.test. 60 IN A 1.2.3.4"}, 11 * time.Second},
		{"no such name", []string{"other.com. 60 IN A 1.2.3.4"}, 5 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := startDNS(t, zone(tc.records...))
			r, k := resolver(t, s)
			first, _ := lookup(t, r, "example.com")
			asked := len(s.questions())
			// The clock runs on meanwhile, hence not to the last moment.
			k.forward(tc.fresh - 500*time.Millisecond)
			if again, _ := lookup(t, r, "example.com"); again != first || len(s.questions()) != asked {
				t.Errorf("asked again before the time")
			}
			k.forward(500 * time.Millisecond)
			lookup(t, r, "example.com")
			if len(s.questions()) == asked {
				t.Errorf("not asked again after %v", tc.fresh)
			}
		})
	}
}

// A family that failed gets another chance soon, whatever the TTL of the other.
func TestPartialAnswerIsShort(t *testing.T) {
	s := startDNS(t, byType(zone(exampleA), rcode(dns.RcodeServerFailure)))
	r, k := resolver(t, s)
	if got, err := lookup(t, r, "example.com"); got != "93.184.215.14" {
		t.Fatalf("got %q and %v", got, err)
	}
	s.now(zone(exampleA, "example.com. 60 IN AAAA 2001:4860::1"))
	k.forward(defaults.failure)
	if got, err := lookup(t, r, "example.com"); got != "2001:4860::1 93.184.215.14" {
		t.Errorf("got %q and %v", got, err)
	}
}

func TestFailureIsRemembered(t *testing.T) {
	s := startDNS(t, rcode(dns.RcodeServerFailure))
	r, k := resolver(t, s)
	for range 3 {
		if _, err := lookup(t, r, "example.com"); !errors.Is(err, ErrResolver) {
			t.Fatalf("got %v, want %v", err, ErrResolver)
		}
	}
	if got := len(s.questions()); got != 2 {
		t.Errorf("asked %d times, want 2", got)
	}
	s.now(zone(exampleA))
	k.forward(defaults.failure)
	if got, err := lookup(t, r, "example.com"); got != "93.184.215.14" {
		t.Errorf("got %q and %v", got, err)
	}
}

func TestOneFlightForMany(t *testing.T) {
	const waiters = 200
	release := make(chan struct{})
	good := zone(exampleA)
	s := startDNS(t, func(w dns.ResponseWriter, q *dns.Msg) {
		<-release
		good(w, q)
	})
	r, _ := resolver(t, s)
	r.limits.repeat = time.Minute // no question is repeated
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := r.Lookup(ctx, name(t, "example.com"))
		left <- err
	}()
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			if got, err := lookup(t, r, "example.com"); got != "93.184.215.14" {
				t.Errorf("got %q and %v", got, err)
			}
		})
	}
	until(t, "both questions are asked", func() bool { return len(s.questions()) == 2 })
	// Whoever leaves, be it the first, takes nothing from the others.
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	close(release)
	wg.Wait()
	if got := s.questions(); len(got) != 2 {
		t.Errorf("asked %q", got)
	}
}

func TestStale(t *testing.T) {
	for _, tc := range []struct {
		name string
		then dns.HandlerFunc
		want string // soon after the TTL
	}{
		{"server fails", rcode(dns.RcodeServerFailure), "93.184.215.14"},
		{"server is silent", silence, "93.184.215.14"},
		{"name is gone", rcode(dns.RcodeNameError), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := startDNS(t, zone(exampleA))
			r, k := resolver(t, s)
			r.limits.total, r.limits.patience = 200*time.Millisecond, 50*time.Millisecond
			lookup(t, r, "example.com")
			s.now(tc.then)
			for _, ahead := range []time.Duration{time.Minute, 4 * time.Minute} {
				k.forward(ahead)
				if got, err := lookup(t, r, "example.com"); got != tc.want || (err == nil) != (tc.want != "") {
					t.Errorf("%v later: got %q and %v, want %q", ahead, got, err, tc.want)
				}
				until(t, "the flight is over", func() bool { return r.inFlight() == 0 })
			}
			k.forward(defaults.stale)
			if got, err := lookup(t, r, "example.com"); err == nil {
				t.Errorf("got %q long after", got)
			}
		})
	}
}

// A stale answer does not wait for all that servers are given.
func TestPatience(t *testing.T) {
	s := startDNS(t, zone(exampleA))
	r, k := resolver(t, s)
	lookup(t, r, "example.com")
	s.now(silence)
	k.forward(2 * time.Minute)
	r.limits.patience = 100 * time.Millisecond
	began := time.Now()
	for range 3 { // all of them share the patience of one flight
		if got, err := lookup(t, r, "example.com"); got != "93.184.215.14" {
			t.Errorf("got %q and %v", got, err)
		}
	}
	if d := time.Since(began); d < r.limits.patience || d > r.limits.total/2 {
		t.Errorf("took %v, want about %v", d, r.limits.patience)
	}
	if got := r.inFlight(); got != 1 {
		t.Errorf("%d flights, want 1", got)
	}
}

func TestCacheIsBounded(t *testing.T) {
	s := startDNS(t, func(w dns.ResponseWriter, q *dns.Msg) {
		zone(q.Question[0].Name+" 60 IN A 1.2.3.4")(w, q)
	})
	r, _ := resolver(t, s)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range cachedNames/8 + 50 {
				if got, err := lookup(t, r, fmt.Sprintf("n%d.h%d.example.com", j, i)); got != "1.2.3.4" {
					t.Errorf("got %q and %v", got, err)
				}
			}
		})
	}
	wg.Wait()
	if got := r.cache.Len(); got != cachedNames {
		t.Errorf("%d names in the cache, want %d", got, cachedNames)
	}
	if got := r.inFlight(); got != 0 {
		t.Errorf("%d flights left", got)
	}
}

// A resolver that is down costs a bounded time and bounded goroutines, whatever
// the number of clients, and whether they want one name or one each.
func TestResolverDown(t *testing.T) {
	t.Run("dial-032", func(t *testing.T) {
		if defaults.total > 5*time.Second {
			t.Errorf("a lookup may take %v, want 5s at most", defaults.total)
		}
		for _, tc := range []struct {
			name string
			addr func(t *testing.T) string
			of   func(i int) string
			most time.Duration
		}{
			{"black hole, one name", blackHole, func(int) string { return "example.com" }, 2 * time.Second},
			{"black hole, a name each", blackHole, func(i int) string { return fmt.Sprintf("n%d.example.com", i) }, 2 * time.Second},
			{"unreachable, a name each", closedPort, func(i int) string { return fmt.Sprintf("n%d.example.com", i) }, 2 * time.Second},
		} {
			t.Run(tc.name, func(t *testing.T) {
				const clients = 1000
				r, err := NewResolver(ResolverConfig{Servers: []string{tc.addr(t)}})
				if err != nil {
					t.Fatal(err)
				}
				r.limits.total = time.Second
				base := runtime.NumGoroutine()
				began := time.Now()
				var wg sync.WaitGroup
				for i := range clients {
					n := name(t, tc.of(i))
					wg.Go(func() {
						if _, err := r.Lookup(t.Context(), n); !errors.Is(err, ErrResolver) {
							t.Errorf("got %v, want %v", err, ErrResolver)
						}
					})
				}
				// Of each client itself, of each name, and of each name's turn.
				if got, most := runtime.NumGoroutine()-base, clients+clients+3*DefaultParallel; got > most {
					t.Errorf("%d goroutines, want %d at most", got, most)
				}
				wg.Wait()
				if d := time.Since(began); d > tc.most {
					t.Errorf("took %v, want %v at most", d, tc.most)
				}
				until(t, "goroutines are back to what they were", func() bool {
					return runtime.NumGoroutine() <= base
				})
			})
		}
	})
}

// Clients that come and go pile up nothing beyond a bound.
func TestFlightsAreBounded(t *testing.T) {
	r, err := NewResolver(ResolverConfig{Servers: []string{blackHole(t)}, Parallel: 1})
	if err != nil {
		t.Fatal(err)
	}
	r.limits.total = 2 * time.Second
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	base := runtime.NumGoroutine()
	for i := range 2 * maxFlights {
		r.Lookup(gone, name(t, fmt.Sprintf("n%d.example.com", i)))
	}
	if got := r.inFlight(); got != maxFlights {
		t.Errorf("%d flights, want %d", got, maxFlights)
	}
	if got := runtime.NumGoroutine() - base; got > maxFlights+10 {
		t.Errorf("%d goroutines", got)
	}
	if _, err := r.Lookup(t.Context(), name(t, "one.more")); !errors.Is(err, ErrResolver) || !errors.Is(err, errBusy) {
		t.Errorf("got %v, want %v", err, errBusy)
	}
	until(t, "all flights are over", func() bool { return r.inFlight() == 0 })
	if _, err := r.Lookup(t.Context(), name(t, "one.more")); errors.Is(err, errBusy) {
		t.Errorf("got %v after all is over", err)
	}
}

func TestCachedLookupDoesNotAllocate(t *testing.T) {
	r, _ := resolver(t, startDNS(t, zone(exampleA)))
	n := name(t, "example.com")
	ctx := t.Context()
	if got := testing.AllocsPerRun(1000, func() {
		if _, err := r.Lookup(ctx, n); err != nil {
			t.Fatal(err)
		}
	}); got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}

func BenchmarkLookupCached(b *testing.B) {
	r, _ := resolver(b, startDNS(b, zone(exampleA)))
	n := name(b, "example.com")
	ctx := b.Context()
	if _, err := r.Lookup(ctx, n); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Lookup(ctx, n); err != nil {
			b.Fatal(err)
		}
	}
}

// inFlight is the number of names that are asked for.
func (r *Resolver) inFlight() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.flights)
}

// blackHole is the address of a server that never answers.
func blackHole(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.LocalAddr().String()
}

// closedPort is the address of no server.
func closedPort(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().String()
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
