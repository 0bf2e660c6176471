package tunnel

import (
	"sync"
	"time"
)

// KeepAliveIdle is how long nothing moves before the upstream is probed: that
// finds out about peers that vanished, and keeps the tunnel in the tables of
// every NAT on the way while a model thinks.
const KeepAliveIdle = time.Minute

// young is how long a Socket goes without probes, which most do not live to see.
// The rest of KeepAliveIdle is for them to begin in time.
const young = KeepAliveIdle / 2

// looks is how many times within its limit an idle tunnel is looked at.
const looks = 4

// idle ends a tunnel in which nothing moves. It looks at the byte counters now
// and then, so that no chunk has to have its time taken: hence the quarter by
// which it may be late.
type idle struct {
	t *Tunnel

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
	limit   time.Duration // 0: none
	half    time.Duration // limit from halfClosed on; 0: none
	seen    int64         // bytes that had moved at the last look
	quiet   int           // looks since then that saw no more
	probed  bool          // keep-alive probes are on
}

// start begins to watch t.
func (i *idle) start(t *Tunnel, o Options) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.t = t
	i.half = limit(o.HalfClosedIdle, DefaultHalfClosedIdle)
	i.arm(limit(o.Idle, DefaultIdle))
	if i.timer == nil && !i.stopped {
		i.timer = time.AfterFunc(young, i.look)
	}
}

// halfClosed goes over to the limit for tunnels with one direction left.
func (i *idle) halfClosed() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.half > 0 && (i.limit == 0 || i.half < i.limit) {
		i.arm(i.half)
	}
}

// stop ends the watch, for good.
func (i *idle) stop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stopped = true
	if i.timer != nil {
		i.timer.Stop()
	}
}

// arm starts counting anew, towards d. The caller holds mu.
func (i *idle) arm(d time.Duration) {
	i.limit, i.quiet = d, 0
	switch {
	case d == 0 || i.stopped:
	case i.timer == nil:
		i.timer = time.AfterFunc(min(i.pause(), young), i.look)
	default:
		i.timer.Reset(i.pause())
	}
}

// pause is the time between two looks. Its floor keeps a silly limit from
// turning into a busy loop.
func (i *idle) pause() time.Duration {
	return max(i.limit/looks, time.Millisecond)
}

// look ends the tunnel if nothing has moved for the whole limit. The first look,
// which is an early one, only has the probes begin.
func (i *idle) look() {
	if i.first() {
		i.t.keepAlive()
		return
	}
	if i.expired() && i.t.stop(ErrIdle) {
		i.t.end()
	}
}

func (i *idle) first() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.probed || i.stopped {
		return false
	}
	i.probed = true
	if i.limit > 0 {
		i.timer.Reset(i.pause())
	}
	return true
}

func (i *idle) expired() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stopped {
		return false
	}
	i.quiet++
	if moved := i.t.moved.In.Load() + i.t.moved.Out.Load(); moved != i.seen {
		i.seen, i.quiet = moved, 0
	}
	if i.quiet >= looks {
		return true
	}
	i.timer.Reset(i.pause())
	return false
}

// limit reads a field of Options: zero is the default, less than zero is none,
// which is 0 in here.
func limit(d, byDefault time.Duration) time.Duration {
	if d == 0 {
		return byDefault
	}
	return max(d, 0)
}
