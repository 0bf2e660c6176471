package tunnel

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// callsMax is how many calls may wait before a loop accepts no more connections: if nobody takes the log any more
	// there are no new decisions, rather than no memory. What is open goes on.
	callsMax = 4096

	// callsPause is how long calls are gathered. To wake a goroutine for each turn of a loop takes a tenth of the CPU
	// time of a new tunnel.
	callsPause = 3 * time.Millisecond
)

// calls are to be called one after the other, by a goroutine of their own.
type calls struct {
	waiting atomic.Int64
	some    chan struct{} // of one place, taken while there are some

	mu   sync.Mutex
	next []func()
}

// add adds calls. It returns memory for the next ones.
func (c *calls) add(fs []func()) (empty []func()) {
	c.waiting.Add(int64(len(fs)))
	c.mu.Lock()
	if len(c.next) == 0 {
		c.next, empty = fs, c.next
	} else {
		c.next = append(c.next, fs...)
		clear(fs)
		empty = fs[:0]
	}
	c.mu.Unlock()
	select {
	case c.some <- struct{}{}:
	default:
	}
	return empty
}

// run calls them as they come, some at a time.
func (c *calls) run() {
	var now []func()
	for range c.some {
		time.Sleep(callsPause)
		c.mu.Lock()
		now, c.next = c.next, now
		c.mu.Unlock()
		for _, call := range now {
			call()
			c.waiting.Add(-1)
		}
		clear(now)
		now = now[:0]
	}
}

// behind reports whether too much is left to be called.
func (l *loop) behind() bool { return l.calls.waiting.Load() > callsMax }

// Drain waits until what was left for Later has been called, but not for longer than d.
func Drain(d time.Duration) {
	ls := started.Load()
	if ls == nil {
		return
	}
	until := time.Now().Add(d)
	for _, l := range *ls {
		for l.calls.waiting.Load() > 0 && time.Now().Before(until) {
			time.Sleep(callsPause)
		}
	}
}
