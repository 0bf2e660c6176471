package tunnel

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// What is left for later is called in order, all of it, by the end of Drain.
func TestDrain(t *testing.T) {
	l := nextLoop()
	var mu sync.Mutex
	var called, want []int
	var fs []func()
	for i := range 1000 {
		want = append(want, i)
		fs = append(fs, func() {
			mu.Lock()
			called = append(called, i)
			mu.Unlock()
		})
		if i%7 == 0 {
			fs = l.calls.add(fs)
		}
	}
	l.calls.add(fs)
	Drain(wait)
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(called, want) {
		t.Errorf("called %d, in order: %v, want %d", len(called), slices.IsSorted(called), len(want))
	}
}

// Drain does not wait for what is stuck.
func TestDrainStuck(t *testing.T) {
	l := nextLoop()
	stuck := make(chan struct{})
	l.calls.add([]func(){func() { <-stuck }})
	defer Drain(wait)
	defer close(stuck)
	began := time.Now()
	Drain(50 * time.Millisecond)
	if took := time.Since(began); took < 50*time.Millisecond || took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

// While too much is left to be called, nobody is accepted; then those who wait are.
func TestBehind(t *testing.T) {
	ln, clients := accepting(t, "127.0.0.1:0")
	stuck := make(chan struct{})
	release := sync.OnceFunc(func() { close(stuck) })
	defer release()
	for _, s := range ln.sockets {
		s.l.calls.add(slices.Concat([]func(){func() { <-stuck }}, slices.Repeat([]func(){func() {}}, callsMax)))
		if !s.l.behind() {
			t.Fatal("a loop is not behind")
		}
	}
	const n = 8
	for range n {
		defer reach(t, ln.Addr().String()).Close()
	}
	select {
	case c := <-clients:
		c.Do(c.Close)
		t.Fatal("accepted")
	case <-time.After(5 * acceptPause):
	}
	release()
	for range n {
		c := <-clients
		c.Do(c.Close)
	}
}
