package caddymodule

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// decide makes the record of a decision.
func decide(client, name string, v policy.Verdict, reason policy.Reason) *record {
	addr, _ := netip.ParseAddr(client)
	return &record{Record: decision.Record{
		Layer: decision.TLS, Client: addr, Name: name, Port: 443,
		Decision: policy.Decision{Verdict: v, Reason: reason, Policy: "default"},
	}}
}

func denied(client, name string) *record {
	return decide(client, name, policy.Deny, policy.ReasonNotAllowed)
}

// names returns the denials of a past, such as "10.0.0.1: a×2 b×1".
func (p past) names() string {
	var lines []string
	for _, c := range p.clients {
		line := c.addr.String() + ":"
		for _, d := range c.denials {
			line += fmt.Sprintf(" %s×%d", d.name, d.count)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, ", ")
}

func TestJournal(t *testing.T) {
	j := newJournal()
	at := time.Now()
	j.decided(denied("10.0.0.1", "a"), at)
	j.decided(decide("10.0.0.2", "ok", policy.Allow, policy.ReasonNone), at)
	j.decided(denied("10.0.0.1", "b"), at)
	j.decided(decide("10.0.0.1", "a", policy.WouldDeny, policy.ReasonPortNotAllowed), at.Add(time.Second))

	p := j.since(0)
	if got, want := p.names(), "10.0.0.2:, 10.0.0.1: b×1 a×2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(p.notes) != 4 || p.notes[0].name() != "a" || p.notes[3].verdict != policy.WouldDeny || p.gap {
		t.Errorf("notes are %+v", p.notes)
	}
	if want := (totals{verdicts: verdicts{allowed: 1, wouldDeny: 1, denied: 2}}); p.totals != want {
		t.Errorf("totals are %+v, want %+v", p.totals, want)
	}
	a := p.clients[1].denials[1]
	if a.verdict != policy.WouldDeny || a.reason != policy.ReasonPortNotAllowed || !a.at.Equal(at.Add(time.Second)) {
		t.Errorf("the last denial of a is %+v", a)
	}

	t.Run("what has changed", func(t *testing.T) {
		if q := j.since(p.change); len(q.notes) != 0 || len(q.clients) != 0 || q.change != p.change {
			t.Errorf("nothing has, got %+v", q)
		}
		j.decided(denied("10.0.0.1", "b"), at)
		q := j.since(p.change)
		if got, want := q.names(), "10.0.0.1: b×2"; got != want || len(q.notes) != 1 {
			t.Errorf("got %s and %d notes, want %s", got, len(q.notes), want)
		}
	})
	t.Run("the end of a tunnel", func(t *testing.T) {
		before := j.since(0)
		r := decide("10.0.0.2", "ok", policy.Allow, policy.ReasonNone)
		r.BytesIn, r.BytesOut = 3, 5
		j.closed(r, at)
		r = denied("10.0.0.2", "ok") // no longer allowed
		r.BytesIn, r.BytesOut = 10, 20
		j.closed(r, at)
		q := j.since(before.change)
		if q.totals.in != 13 || q.totals.out != 25 || q.totals.denied != before.totals.denied {
			t.Errorf("totals are %+v", q.totals)
		}
		if len(q.notes) != 1 || !q.notes[0].revoked || q.notes[0].outcome() != "closed: not_allowed" || len(q.clients) != 0 {
			t.Errorf("got %+v", q)
		}
	})
}

// Whatever clients do, what is kept of it is bounded, and what is dropped is the oldest.
func TestJournalBounds(t *testing.T) {
	at := time.Now()
	t.Run("decisions", func(t *testing.T) {
		j := newJournal()
		for i := range keptDecisions {
			j.decided(denied("10.0.0.1", fmt.Sprint(i)), at)
		}
		if p := j.since(1); p.gap || len(p.notes) != keptDecisions-1 {
			t.Errorf("a full ring: got %d notes, gap %v", len(p.notes), p.gap)
		}
		j.decided(denied("10.0.0.1", "x"), at)
		j.decided(denied("10.0.0.1", "y"), at)
		if p := j.since(2); p.gap || len(p.notes) != keptDecisions || p.notes[0].name() != "2" {
			t.Errorf("after the second: got %d notes from %q, gap %v", len(p.notes), p.notes[0].name(), p.gap)
		}
		if p := j.since(1); !p.gap {
			t.Error("the second is lost, and no gap is told")
		}
		if p := j.since(0); p.gap {
			t.Error("a page that begins has no gap")
		}
	})
	t.Run("names", func(t *testing.T) {
		j := newJournal()
		for i := range keptNames + 3 {
			j.decided(denied("10.0.0.1", fmt.Sprint(i)), at)
		}
		c := j.since(0).clients[0]
		if len(c.denials) != keptNames || c.denials[0].name != "3" || c.forgotten != 3 || c.denied != keptNames+3 {
			t.Errorf("got %d names from %q, %d forgotten", len(c.denials), c.denials[0].name, c.forgotten)
		}
	})
	t.Run("clients", func(t *testing.T) {
		j := newJournal()
		j.decided(denied("10.1.0.1", "a"), at)
		for i := range keptClients {
			j.decided(denied(fmt.Sprintf("10.0.0.%d", i), "a"), at)
			if i == 0 {
				j.decided(decide("10.1.0.1", "b", policy.Allow, policy.ReasonNone), at) // is no longer the oldest
			}
		}
		p := j.since(0)
		if len(p.clients) != keptClients || p.forgotten != 1 || p.clients[0].addr.String() != "10.1.0.1" {
			t.Errorf("got %d clients from %v, %d forgotten", len(p.clients), p.clients[0].addr, p.forgotten)
		}
	})
	t.Run("names of one client do not displace another's", func(t *testing.T) {
		j := newJournal()
		j.decided(denied("10.0.0.1", "a"), at)
		for i := range 10 * keptNames {
			j.decided(denied("10.0.0.2", fmt.Sprint(i)), at)
		}
		if got := j.since(0).names(); !strings.HasPrefix(got, "10.0.0.1: a×1, ") {
			t.Errorf("got %.40s", got)
		}
	})
	t.Run("length", func(t *testing.T) {
		j := newJournal()
		r := denied("10.0.0.1", strings.Repeat("x", 64<<10))
		r.Error = strings.Repeat("y", 64<<10)
		j.decided(r, at)
		p := j.since(0)
		if n, d := p.notes[0].name(), p.clients[0].denials[0].name; len(n) != decision.MaxName || d != n || len(p.notes[0].detail) != keptDetailSize {
			t.Errorf("got a name of %d and %d octets, and %d of the error", len(n), len(d), len(p.notes[0].detail))
		}
	})
}

// A flood of long names of many clients must not fill the memory, be it by keeping what they are part of.
func TestJournalMemory(t *testing.T) {
	inUse := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := inUse()
	j := newJournal()
	at := time.Now()
	for client := range 2 * keptClients {
		for i := range 2 * keptNames {
			head := fmt.Sprintf("%d-%d-", client, i) + strings.Repeat("x", 16<<10)
			r := denied(fmt.Sprintf("10.0.%d.%d", client/256, client%256), head)
			r.Error = head
			j.decided(r, at)
		}
	}
	const most = 6 << 20
	if used := inUse() - before; used > most {
		t.Errorf("%d KiB are in use, want at most %d", used>>10, most>>10)
	}
	runtime.KeepAlive(j)
}

// What is not new costs no memory, and without a dashboard nothing at all.
func TestJournalAllocations(t *testing.T) {
	allowed, refused := decide("10.0.0.1", "www.example.com", policy.Allow, policy.ReasonNone), denied("10.0.0.1", "evil.test")
	measure := func(name string) {
		t.Helper()
		if n := testing.AllocsPerRun(1000, func() {
			recent.decided(allowed)
			recent.decided(refused)
			recent.closed(allowed)
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	measure("without a dashboard")
	j := recent.use()
	recent.decided(refused)
	measure("with one")
	if p := j.since(0); p.totals.allowed < 1000 {
		t.Errorf("got %+v", p.totals)
	}
	recent.release()
}

// The journal outlives a reload, and ends with the last dashboard.
func TestJournalUse(t *testing.T) {
	first := recent.use()
	recent.decided(denied("10.0.0.1", "a"))
	if second := recent.use(); second != first {
		t.Error("a second dashboard has another journal")
	}
	recent.release()
	if p := recent.journal.Load().since(0); p.names() != "10.0.0.1: a×1" {
		t.Errorf("got %s", p.names())
	}
	recent.release()
	if recent.journal.Load() != nil {
		t.Error("it is kept without a dashboard")
	}
	if again := recent.use(); again == first || again.epoch == first.epoch {
		t.Error("a later one is the same")
	}
	recent.release()
}

func TestJournalRace(t *testing.T) {
	j := newJournal()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for k := range 2000 {
				r := denied(fmt.Sprintf("10.0.0.%d", k%100), fmt.Sprint(i, k%200))
				j.decided(r, time.Now())
				j.closed(r, time.Now())
			}
		})
		wg.Go(func() {
			var last uint64
			for range 50 {
				p := j.since(last)
				if p.change < last {
					t.Errorf("change %d after %d", p.change, last)
				}
				last = p.change
			}
		})
	}
	wg.Wait()
	if p := j.since(0); p.totals.denied != 8000 || p.change != 16000 {
		t.Errorf("got %d denials and %d changes", p.totals.denied, p.change)
	}
}

func BenchmarkJournal(b *testing.B) {
	allowed, refused := decide("10.0.0.1", "www.example.com", policy.Allow, policy.ReasonNone), denied("10.0.0.1", "evil.test")
	b.Run("none", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			recent.decided(allowed)
		}
	})
	recent.use()
	defer recent.release()
	for name, r := range map[string]*record{"allowed": allowed, "denied": refused} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				recent.decided(r)
			}
		})
	}
	b.Run("denied each time another", func(b *testing.B) {
		names := make([]string, 1000)
		for i := range names {
			names[i] = fmt.Sprintf("n%d.example.org", i)
		}
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			r := record{Record: refused.Record}
			r.Name = names[i%len(names)]
			i++
			recent.decided(&r)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				recent.decided(allowed)
			}
		})
	})
}
