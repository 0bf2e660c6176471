package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestRace runs attempts that take a stated time and then succeed or fail, by a
// clock that only waiting puts forward.
func TestRace(t *testing.T) {
	const delay = 250 * time.Millisecond
	type attempt struct {
		takes time.Duration
		fails bool
	}
	const never = time.Hour
	for _, tc := range []struct {
		name     string
		attempts []attempt
		winner   int // -1: none
		took     time.Duration
		started  []time.Duration
	}{
		{"only one", []attempt{{takes: 3 * time.Second}}, 0, 3 * time.Second, []time.Duration{0}},
		{"only one, which fails", []attempt{{takes: time.Second, fails: true}}, -1, time.Second, []time.Duration{0}},
		{"first is quick", []attempt{{takes: 10 * time.Millisecond}, {}}, 0, 10 * time.Millisecond, []time.Duration{0}},
		{"first is slow, and still wins", []attempt{{takes: 300 * time.Millisecond}, {takes: never}}, 0, 300 * time.Millisecond, []time.Duration{0, delay}},
		{"first is dead", []attempt{{takes: never}, {takes: 20 * time.Millisecond}}, 1, delay + 20*time.Millisecond, []time.Duration{0, delay}},
		{"first fails", []attempt{{takes: time.Millisecond, fails: true}, {takes: time.Millisecond}}, 1, 2 * time.Millisecond, []time.Duration{0, time.Millisecond}},
		{"failure starts the delay anew", []attempt{{takes: 200 * time.Millisecond, fails: true}, {takes: never}, {}},
			2, 200*time.Millisecond + delay, []time.Duration{0, 200 * time.Millisecond, 200*time.Millisecond + delay}},
		{"all fail", []attempt{{fails: true}, {fails: true}, {fails: true}}, -1, 0, []time.Duration{0, 0, 0}},
		{"all are dead", []attempt{{takes: never}, {takes: never}}, -1, 5 * time.Second, []time.Duration{0, delay}},
		{"last is waited for", []attempt{{fails: true}, {takes: 4 * time.Second}}, 1, 4 * time.Second, []time.Duration{0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				began := time.Now()
				var mu sync.Mutex
				started := make([]time.Duration, 0, len(tc.attempts))
				got, err := race(ctx, len(tc.attempts), delay, delay, func(ctx context.Context, i int) (int, error) {
					mu.Lock()
					started = append(started, time.Since(began))
					mu.Unlock()
					select {
					case <-time.After(tc.attempts[i].takes):
					case <-ctx.Done():
						return 0, ctx.Err()
					}
					if tc.attempts[i].fails {
						return 0, fmt.Errorf("attempt %d failed", i)
					}
					return i, nil
				}, func(int) { t.Error("a loser was not cancelled") })
				took := time.Since(began)
				synctest.Wait()
				if tc.winner < 0 && err == nil || tc.winner >= 0 && (err != nil || got != tc.winner) {
					t.Errorf("got %d and %v, want %d", got, err, tc.winner)
				}
				if took != tc.took || !slices.Equal(started, tc.started) {
					t.Errorf("took %v with starts at %v, want %v and %v", took, started, tc.took, tc.started)
				}
			})
		})
	}
}

// The first attempt may have gone on before, and even for too long.
func TestRaceGoesOn(t *testing.T) {
	const delay = 250 * time.Millisecond
	for _, tc := range []struct {
		name       string
		head, left time.Duration
		started    []time.Duration
	}{
		{"for a moment", 200 * time.Millisecond, time.Second, []time.Duration{0, 200 * time.Millisecond, 200*time.Millisecond + delay}},
		{"for its delay", 0, time.Second, []time.Duration{0, 0, delay}},
		{"for longer", -time.Second, time.Second, []time.Duration{0, 0, delay}},
		{"until the end", 0, 0, []time.Duration{0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tc.left)
				defer cancel()
				began := time.Now()
				var mu sync.Mutex
				var started []time.Duration
				_, err := race(ctx, 3, tc.head, delay, func(ctx context.Context, i int) (int, error) {
					mu.Lock()
					started = append(started, time.Since(began))
					mu.Unlock()
					<-ctx.Done()
					return 0, ctx.Err()
				}, func(int) {})
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != tc.left {
					t.Errorf("got %v after %v", err, time.Since(began))
				}
				if !slices.Equal(started, tc.started) {
					t.Errorf("starts at %v, want %v", started, tc.started)
				}
			})
		})
	}
}

// What succeeds too late is given back.
func TestRaceDiscards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var discarded []int
		got, err := race(t.Context(), 3, time.Second, time.Second, func(_ context.Context, i int) (int, error) {
			// Deaf to its context, as a connect that has just succeeded.
			time.Sleep(3500 * time.Millisecond)
			return i, nil
		}, func(i int) {
			mu.Lock()
			defer mu.Unlock()
			discarded = append(discarded, i)
		})
		if got != 0 || err != nil {
			t.Errorf("got %d and %v", got, err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(discarded, []int{1, 2}) {
			t.Errorf("discarded %v, want 1 and 2", discarded)
		}
	})
}

func TestAttemptErrors(t *testing.T) {
	one, two := errors.New("one"), errors.New("two")
	err := error(attemptErrors{one, two})
	if err.Error() != "one; two" || !errors.Is(err, one) || !errors.Is(err, two) {
		t.Errorf("got %v", err)
	}
}

// Attempts that nobody answers do not add up: each connection has one, and all together a few more.
func TestRaceBeside(t *testing.T) {
	var running, most atomic.Int64
	var wg sync.WaitGroup
	const dials = 40
	for range dials {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			_, err := race(ctx, maxAttempts, 10*time.Millisecond, 10*time.Millisecond, func(ctx context.Context, _ int) (int, error) {
				n := running.Add(1)
				for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
				}
				<-ctx.Done()
				running.Add(-1)
				return 0, ctx.Err()
			}, func(int) {})
			if err == nil {
				t.Error("connected to nobody")
			}
		})
	}
	wg.Wait()
	// One that was told to stop may still be stopping when the next begins.
	if n := most.Load(); n > 2*dials+maxBeside {
		t.Errorf("%d attempts at a time, want %d", n, dials+maxBeside)
	}
	if n := beside.Load(); n != 0 {
		t.Errorf("%d are still counted", n)
	}
}
