package decision

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// sink keeps what a Folder writes, and what its callers write because it said so.
type sink struct {
	*Folder
	mu      sync.Mutex
	written []Record
}

func newSink() *sink {
	s := &sink{}
	s.Folder = NewFolder(s.add)
	return s
}

func (s *sink) add(r *Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = append(s.written, *r)
}

// admit is what the gateway does.
func (s *sink) admit(r Record) {
	if s.Admit(&r) {
		s.add(&r)
	}
}

func (s *sink) hold(r Record) { s.Hold(&r) }

// take returns what was written since it was called last.
func (s *sink) take() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.written
	s.written = nil
	return w
}

// size returns what a Folder holds in memory.
func (f *Folder) size() (kinds, sources int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.kinds), len(f.sources)
}

// told is how many decisions records stand for.
func told(records []Record) (n int) {
	for _, r := range records {
		n += max(1, r.Repeated, r.Suppressed)
	}
	return n
}

// summary is records as "name×decisions".
func summary(records []Record) string {
	var all []string
	for _, r := range records {
		all = append(all, fmt.Sprintf("%s×%d", r.Name, told([]Record{r})))
	}
	return strings.Join(all, " ")
}

// wait is longer than n ticks and shorter than one more.
func wait(n int) {
	time.Sleep(time.Duration(n)*period + period/2)
	synctest.Wait()
}

func TestAdmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSink()
		want := func(want string) {
			t.Helper()
			if got := summary(s.take()); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		s.admit(denial(client, "a.test"))
		want("a.test×1")
		s.admit(denial(client, "a.test"))
		s.admit(denial(client, "b.test"))
		s.admit(denial(client, "a.test"))
		want("b.test×1")
		wait(1)
		want("") // the second is not over
		wait(1)
		want("a.test×2")
		wait(3)
		want("") // quiet
		s.admit(denial(client, "a.test"))
		want("a.test×1")
		for range 50 { // five seconds
			s.admit(denial(client, "a.test"))
			time.Sleep(period / 10)
		}
		synctest.Wait()
		if got := s.take(); len(got) != 4 {
			t.Errorf("got lines %q in five seconds, want four behind the first one", summary(got))
		}
	})
}

func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSink()
		start := time.Now()
		s.hold(denial(client, "a.test")) // A
		time.Sleep(time.Millisecond)
		s.hold(denial(client, "a.test")) // AAAA
		s.hold(denial(client, "b.test"))
		if got := s.take(); len(got) != 0 {
			t.Errorf("got %q at once", summary(got))
		}
		wait(1)
		got := s.take()
		if summary(got) != "a.test×2 b.test×1" {
			t.Errorf("got %q", summary(got))
		}
		if !got[0].Time.Equal(start) || got[0].Client != client || got[0].Layer != DNS || got[0].Decision.Policy != "default" {
			t.Errorf("got %+v, want the first decision", got[0])
		}
		later := time.Now()
		s.hold(denial(client, "a.test"))
		wait(1)
		if got = s.take(); summary(got) != "a.test×1" || !got[0].Time.Equal(later) {
			t.Errorf("got %q at %v, want one at %v", summary(got), got[0].Time, later)
		}
	})
}

func TestKindsAreApart(t *testing.T) {
	r := denial(client, "a.test")
	for _, tc := range []struct {
		name string
		edit func(*Record)
	}{
		{"client", func(r *Record) { r.Client = netip.MustParseAddr("172.30.0.6") }},
		{"layer", func(r *Record) { r.Layer = TLS }},
		{"name", func(r *Record) { r.Name = "b.test" }},
		{"port", func(r *Record) { r.Port = 443 }},
		{"reason", func(r *Record) { r.Decision.Reason = policy.ReasonDenied }},
		{"verdict", func(r *Record) { r.Decision.Verdict = policy.WouldDeny }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			other := r
			tc.edit(&other)
			s := newSink()
			s.admit(r)
			s.admit(other)
			s.admit(r)
			if got := s.take(); len(got) != 2 {
				t.Errorf("got %q, want two lines", summary(got))
			}
		})
	}
	t.Run("alike in these", func(t *testing.T) {
		other := r
		other.Error, other.BytesIn = "an error", 7
		s := newSink()
		s.admit(r)
		s.admit(other)
		if got := s.take(); len(got) != 1 {
			t.Errorf("got %q, want one line", summary(got))
		}
	})
}

func TestAllowedIsNotFolded(t *testing.T) {
	s := newSink()
	r := denial(client, "a.test")
	r.Decision = policy.Decision{Verdict: policy.Allow}
	for range 2 * burst {
		s.admit(r)
	}
	if got := s.take(); len(got) != 2*burst {
		t.Errorf("got %d lines, want %d", len(got), 2*burst)
	}
}

// A sandbox asks for names that it makes up.
func TestRandomNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seconds, each = 60, 10_000
		s := newSink()
		for second := range seconds {
			for i := range each {
				s.hold(denial(client, fmt.Sprintf("n%d-%d.test", second, i)))
			}
			time.Sleep(period)
			if n, _ := s.size(); n > burst+rate {
				t.Fatalf("got %d names in memory, want at most %d", n, burst+rate)
			}
		}
		wait(1)
		got := s.take()
		if n := told(got); n != seconds*each {
			t.Errorf("got %d decisions told, want %d", n, seconds*each)
		}
		if most := burst + seconds*(rate+1); len(got) > most {
			t.Errorf("got %d lines in %d seconds, want at most %d", len(got), seconds, most)
		}
		// After a pause the client is believed again.
		wait(burst / rate)
		for i := range burst {
			s.hold(denial(client, fmt.Sprintf("again%d.test", i)))
		}
		wait(1)
		if got := s.take(); len(got) != burst || told(got) != burst {
			t.Errorf("got %d lines after a pause, want %d", len(got), burst)
		}
	})
}

// What a client repeats leaves room for what is new, of this client and of the others.
func TestNoiseHidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSink()
		const names, seconds = 90, 60
		noise := func() {
			for i := range names {
				s.admit(denial(client, fmt.Sprintf("noise%d.test", i)))
			}
			time.Sleep(period*9/10 + time.Millisecond) // never at a tick
		}
		for range seconds {
			noise()
		}
		s.take()
		s.admit(denial(client, "new.test"))
		s.admit(denial(netip.MustParseAddr("172.30.0.6"), "new.test"))
		if got := summary(s.take()); got != "new.test×1 new.test×1" {
			t.Errorf("got %q, want the new name of both clients", got)
		}
		seen := map[string]bool{}
		for range seconds {
			noise()
		}
		got := s.take()
		for _, r := range got {
			seen[r.Name] = true
		}
		if most := seconds * (rate + 1); len(got) > most {
			t.Errorf("got %d lines in %d seconds, want at most %d", len(got), seconds, most)
		}
		if len(seen) < names {
			t.Errorf("got lines for %d names, want each of %d in its turn", len(seen), names)
		}
	})
}

// Where a client can forge its address it is as many clients as it likes.
func TestForgedClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seconds, each = 5, 100_000
		s := newSink()
		for second := range seconds {
			for i := range each {
				var a [16]byte
				binary.BigEndian.PutUint64(a[8:], uint64(second*each+i))
				s.admit(denial(netip.AddrFrom16(a), "a.test"))
			}
			if kinds, sources := s.size(); kinds > maxKinds || sources > maxClients+int(layers) {
				t.Fatalf("got %d names and %d clients in memory", kinds, sources)
			}
			time.Sleep(period)
		}
		wait(1)
		got := s.take()
		if n := told(got); n != seconds*each {
			t.Errorf("got %d decisions told, want %d", n, seconds*each)
		}
		if most := seconds * (maxKinds + maxClients + int(layers)); len(got) > most {
			t.Errorf("got %d lines in %d seconds, want at most %d", len(got), seconds, most)
		}
		for _, r := range got {
			if r.Suppressed > 0 && (r.Client.IsValid() || r.Decision.Policy != "") {
				t.Fatalf("got %+v for clients that are not told apart", r)
			}
		}
	})
}

// Names at the limit of memory are counted by client.
func TestManyKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSink()
		const clients = 2 * maxKinds / burst
		for c := range clients {
			for i := range burst {
				s.hold(denial(netip.AddrFrom4([4]byte{10, 0, 0, byte(c)}), fmt.Sprintf("n%d.test", i)))
			}
		}
		if n, _ := s.size(); n != maxKinds {
			t.Errorf("got %d names in memory, want %d", n, maxKinds)
		}
		wait(1)
		got := s.take()
		if n := told(got); n != clients*burst {
			t.Errorf("got %d decisions told, want %d", n, clients*burst)
		}
		if len(got) > maxKinds+clients {
			t.Errorf("got %d lines, want at most %d", len(got), maxKinds+clients)
		}
	})
}

// A name is no part of what the client sent, which may be long.
func TestNameIsCut(t *testing.T) {
	s := newSink()
	hello := strings.Repeat("x", 64<<10)
	s.hold(denial(client, hello))
	s.hold(denial(client, hello[:MaxName+1]))
	s.Flush()
	if got := s.take(); len(got) != 1 || len(got[0].Name) != MaxName || got[0].Repeated != 2 {
		t.Errorf("got %q, want one name of %d octets", summary(got), MaxName)
	}
}

// With nobody denied there is neither a timer nor anything in memory.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSink()
		for i := range 2 * burst {
			s.hold(denial(client, fmt.Sprintf("n%d.test", i)))
		}
		wait(burst/rate + 2)
		if kinds, sources := s.size(); s.ticking || kinds+sources+len(s.order) != 0 {
			t.Errorf("got ticking %v, %d names and %d clients", s.ticking, kinds, sources)
		}
		s.take()
		s.hold(denial(client, "a.test"))
		wait(1)
		if got := summary(s.take()); got != "a.test×1" {
			t.Errorf("got %q after a pause", got)
		}
	})
}

func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSink()
		s.Flush()
		s.admit(denial(client, "a.test"))
		s.admit(denial(client, "a.test"))
		s.hold(denial(client, "b.test"))
		s.Flush()
		if got := summary(s.take()); got != "a.test×1 a.test×1 b.test×1" {
			t.Errorf("got %q", got)
		}
		wait(3)
		if got := s.take(); len(got) != 0 {
			t.Errorf("got %q again", summary(got))
		}
		s.hold(denial(client, "c.test")) // of a question that was still under way
		wait(1)
		if got := summary(s.take()); got != "c.test×1" {
			t.Errorf("got %q after the flush", got)
		}
	})
}

// A log that does not take a line holds up nobody who asks.
func TestLogThatBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		s := &sink{}
		s.Folder = NewFolder(func(r *Record) { <-free; s.add(r) })
		s.hold(denial(client, "a.test"))
		wait(1)
		for range 100 {
			s.hold(denial(client, "a.test"))
			s.hold(denial(client, "b.test"))
		}
		close(free)
		wait(3)
		if n := told(s.take()); n != 201 {
			t.Errorf("got %d decisions told, want 201", n)
		}
	})
}

func TestConcurrent(t *testing.T) {
	const workers, each = 8, 20_000
	s := newSink()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				r := denial(client, fmt.Sprintf("n%d.test", i%(50*(w+1))))
				if w%2 == 0 {
					s.hold(r)
				} else {
					s.admit(r)
				}
				if i%1000 == 0 {
					s.Flush()
				}
			}
		})
	}
	wg.Wait()
	s.Flush()
	if n := told(s.take()); n != workers*each {
		t.Errorf("got %d decisions told, want %d", n, workers*each)
	}
}
