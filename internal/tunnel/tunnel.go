// Package tunnel joins two connections: what one sends the other receives,
// until both have said all they had to say.
//
// Between two bare TCP connections on Linux the bytes move by splice(2) and
// never enter this process. An idle tunnel costs two goroutines and the two
// sockets: a pipe or a buffer is held only while bytes are under way.
package tunnel

import (
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// What zero means in Options.
const (
	DefaultIdle           = 15 * time.Minute
	DefaultHalfClosedIdle = time.Minute
)

// ErrIdle is the Result.Err of a tunnel that was closed because no byte had
// moved for as long as its Options allow.
var ErrIdle = errors.New("tunnel was idle for too long")

// Options bound the life of a tunnel.
type Options struct {
	// Idle closes the tunnel when no byte has moved in either direction for
	// so long, or up to a quarter longer. Zero means DefaultIdle, less than
	// zero that an idle tunnel is never closed.
	Idle time.Duration

	// HalfClosedIdle takes the place of Idle, if it is shorter, once one
	// direction has ended: a peer that has closed and is never heard of again
	// must not hold the tunnel for all of Idle. Zero means
	// DefaultHalfClosedIdle, less than zero that Idle stays in force.
	HalfClosedIdle time.Duration

	// Counters, if not nil, are counted up while the tunnel runs.
	Counters *Counters
}

// Counters are the bytes that a tunnel has delivered so far. They may be read
// at any time.
type Counters struct {
	In  atomic.Int64 // from the client to the upstream
	Out atomic.Int64 // from the upstream to the client
}

// Result says how a tunnel ended.
type Result struct {
	In  int64 // bytes from the client, delivered to the upstream
	Out int64 // bytes from the upstream, delivered to the client

	// Err is nil when both directions ended with an orderly end of stream.
	// Otherwise it is what ended the tunnel first: ErrIdle, or the error of
	// a connection, with "client" or "upstream" before it, which is
	// net.ErrClosed if somebody else closed that connection.
	Err error
}

// Run copies between client and upstream until both directions have ended, then
// closes both and returns. It clears the deadlines of both first.
//
// The end of the stream in one direction is passed on by CloseWrite and leaves
// the other direction open. A connection that its peer has reset, or that was
// lost, is passed on as a reset. Any other error closes both connections. To end
// a tunnel from outside, close both connections: Run then returns at once.
func Run(client, upstream net.Conn, o Options) Result {
	t := &tunnel{
		client:   side{client, "client"},
		upstream: side{upstream, "upstream"},
		moved:    o.Counters,
	}
	if t.moved == nil {
		t.moved = new(Counters)
	}
	// A deadline for the first bytes is the caller's, and over.
	client.SetDeadline(time.Time{})
	upstream.SetDeadline(time.Time{})
	t.idle.start(t, o)
	defer t.end()

	back := make(chan any, 1)
	go func() {
		// A panic in here would end the process, whereas our caller may
		// recover from one of its own: hand it over.
		defer func() {
			p := recover()
			if p != nil {
				p = fmt.Sprintf("%v\n\n%s", p, debug.Stack())
				t.end()
			}
			back <- p
		}()
		t.carry(t.upstream, t.client, &t.moved.Out)
	}()
	t.carry(t.client, t.upstream, &t.moved.In)
	if p := <-back; p != nil {
		panic(p)
	}
	return t.result()
}

// side is one of the two connections and its name in an error.
type side struct {
	net.Conn
	name string
}

// tunnel is what the two directions share.
type tunnel struct {
	client, upstream side
	moved            *Counters
	idle             idle

	mu    sync.Mutex
	eofs  int   // directions that have ended with the end of the stream
	cause error // what ended the tunnel otherwise
}

// carry copies one direction until it ends, and lets the tunnel know.
func (t *tunnel) carry(src, dst side, moved *atomic.Int64) {
	readErr, writeErr := transfer(src.Conn, dst.Conn, moved)
	switch {
	case readErr != nil:
		t.abort(src, readErr, dst)
	case writeErr != nil:
		t.abort(dst, writeErr, src)
	default:
		t.finish(dst)
	}
}

// finish passes on the end of a stream.
func (t *tunnel) finish(dst side) {
	t.mu.Lock()
	t.eofs++
	last := t.eofs == 2
	t.mu.Unlock()
	if last {
		return // Run closes both, which says the same
	}
	// Without a way to say it, dst is left to find out by itself or to
	// run into the idle limit: closing it would cut off what it has to say.
	if c, ok := dst.Conn.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
	}
	t.idle.halfClosed()
}

// abort ends the tunnel because broken failed.
func (t *tunnel) abort(broken side, err error, other side) {
	if !t.stop(fmt.Errorf("%s: %w", broken.name, err)) {
		return
	}
	// Half an answer must not look like all of it: without this, other
	// would see an orderly end of the stream.
	if c, ok := other.Conn.(interface{ SetLinger(sec int) error }); ok && lost(err) {
		c.SetLinger(0)
	}
	t.end()
}

// stop records why the tunnel is over and reports whether it was not before.
func (t *tunnel) stop(cause error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause != nil || t.eofs == 2 {
		return false
	}
	t.cause = cause
	return true
}

// end lets go of everything. It may be called more than once.
func (t *tunnel) end() {
	t.idle.stop()
	t.client.Close()
	t.upstream.Close()
}

func (t *tunnel) result() Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Result{In: t.moved.In.Load(), Out: t.moved.Out.Load(), Err: t.cause}
}

// lost reports whether err says that the peer of a connection is gone. Linux
// says EPIPE for a reset that arrives after the peer's end of stream.
func lost(err error) bool {
	for _, e := range []error{syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
