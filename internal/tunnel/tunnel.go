// Package tunnel joins two connections: what one sends the other receives,
// until both have said all they had to say.
//
// Between two bare TCP connections on Linux the bytes move by splice(2) and
// never enter this process, but for the first of them. A few loops carry all
// such tunnels, of which an idle one costs no more than the two sockets: a pipe
// or a buffer is held only while bytes are under way.
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

// writeTimeout bounds what is written before the tunnel begins: nothing else would end that, neither the idle
// limit nor who cuts tunnels.
const writeTimeout = 5 * time.Second

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

// Tunnel is two connections that are joined, or about to be.
type Tunnel struct {
	client, upstream side
	options          Options
	moved            *Counters
	idle             idle
	done             func(Result)
	pair             *pair // the sockets, where a loop carries them

	mu    sync.Mutex
	eofs  int   // directions that have ended with the end of the stream
	cause error // what ended the tunnel otherwise
}

// New takes two connections over: nobody else may use them again, though closing them does no harm. Their
// deadlines do not hold any more. Start must follow.
func New(client, upstream net.Conn, o Options) *Tunnel {
	t := newTunnel(o)
	if s := bare(upstream); s != nil {
		if t.pair = newPair(t, client, s); t.pair != nil {
			upstream.Close()
			return t
		}
		s.Close()
	}
	t.join(client, upstream)
	return t
}

// Join is New for an upstream that Connect connected to.
func Join(client net.Conn, upstream *Socket, o Options) (*Tunnel, error) {
	t := newTunnel(o)
	if t.pair = newPair(t, client, upstream); t.pair != nil {
		return t, nil
	}
	c, err := upstream.conn()
	if err != nil {
		return nil, err
	}
	t.join(client, c)
	return t, nil
}

func newTunnel(o Options) *Tunnel {
	t := &Tunnel{options: o, moved: o.Counters}
	if t.moved == nil {
		t.moved = new(Counters)
	}
	return t
}

// join has goroutines carry the tunnel. A deadline for the first bytes was the caller's, and is over.
func (t *Tunnel) join(client, upstream net.Conn) {
	client.SetDeadline(time.Time{})
	upstream.SetDeadline(time.Time{})
	t.client, t.upstream = side{client, "client"}, side{upstream, "upstream"}
}

// Start copies between both connections until both directions have ended, then closes them and calls done,
// from another goroutine. It returns at once.
//
// The end of the stream in one direction is passed on by CloseWrite and leaves the other direction open. A
// connection that its peer has reset, or that was lost, is passed on as a reset. Any other error closes both
// connections.
func (t *Tunnel) Start(done func(Result)) {
	t.done = done
	t.idle.start(t, t.options)
	if t.pair != nil {
		t.pair.start()
		return
	}
	go t.run()
}

// Detached reports whether the tunnel holds sockets of its own. If not, whoever made the connections and closes
// what they stand on must not do so before the end.
func (t *Tunnel) Detached() bool { return t.pair != nil }

// Run is New and Start, and waits for the end.
func Run(client, upstream net.Conn, o Options) Result {
	over := make(chan Result, 1)
	New(client, upstream, o).Start(func(r Result) { over <- r })
	return <-over
}

// Cut ends the tunnel with a reset of both connections, so that half an answer does not look like all of it.
// It may be called at any time, also before Start.
func (t *Tunnel) Cut() {
	if !t.stop(net.ErrClosed) {
		return
	}
	if t.pair != nil {
		t.pair.reset()
		return
	}
	for _, s := range []side{t.client, t.upstream} {
		s.resetOnClose()
	}
	t.end()
}

// run carries both directions by a goroutine each.
func (t *Tunnel) run() {
	back := make(chan struct{})
	go func() {
		defer close(back)
		defer t.recoverPanic()
		t.carry(t.upstream, t.client, &t.moved.Out)
	}()
	func() {
		defer t.recoverPanic()
		t.carry(t.client, t.upstream, &t.moved.In)
	}()
	<-back
	t.end()
	t.done(t.result())
}

// recoverPanic ends the tunnel in which something has panicked, which must not end the process.
func (t *Tunnel) recoverPanic() {
	if p := recover(); p != nil {
		t.stop(&Panic{Value: p, Stack: debug.Stack()})
		t.end()
	}
}

// Panic is the Result.Err of a tunnel that a panic has ended.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// side is one of the two connections and its name in an error.
type side struct {
	net.Conn
	name string
}

// resetOnClose has the connection reset when it is closed, if it can be.
func (s side) resetOnClose() {
	if c, ok := s.Conn.(interface{ SetLinger(sec int) error }); ok {
		c.SetLinger(0)
	}
}

// carry copies one direction until it ends, and lets the tunnel know.
func (t *Tunnel) carry(src, dst side, moved *atomic.Int64) {
	readErr, writeErr := copyThrough(src.Conn, dst.Conn, moved)
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
func (t *Tunnel) finish(dst side) {
	if t.ended() {
		return // both are closed, which says the same
	}
	// Without a way to say it, dst is left to find out by itself or to
	// run into the idle limit: closing it would cut off what it has to say.
	if c, ok := dst.Conn.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
	}
	t.idle.halfClosed()
}

// keepAlive turns the probes on that a connection of package net has had from its beginning.
func (t *Tunnel) keepAlive() {
	if t.pair != nil {
		t.pair.keepAlive()
	}
}

// ended counts a stream that has ended and reports whether it was the last.
func (t *Tunnel) ended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.eofs++
	return t.eofs == 2
}

// abort ends the tunnel because broken failed.
func (t *Tunnel) abort(broken side, err error, other side) {
	if !t.stop(fmt.Errorf("%s: %w", broken.name, err)) {
		return
	}
	// Half an answer must not look like all of it: without this, other
	// would see an orderly end of the stream.
	if lost(err) {
		other.resetOnClose()
	}
	t.end()
}

// stop records why the tunnel is over and reports whether it was not before.
func (t *Tunnel) stop(cause error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause != nil || t.eofs == 2 {
		return false
	}
	t.cause = cause
	return true
}

// end lets go of everything. It may be called more than once.
func (t *Tunnel) end() {
	t.idle.stop()
	if t.pair != nil {
		t.pair.end()
		return
	}
	t.client.Close()
	t.upstream.Close()
}

func (t *Tunnel) result() Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Result{In: t.moved.In.Load(), Out: t.moved.Out.Load(), Err: t.cause}
}

// lost reports whether err says that the peer of a connection is gone. Linux
// says EPIPE for a reset that arrives after the peer's end of stream.
func lost(err error) bool {
	for _, e := range []error{syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT, syscall.ECONNABORTED,
		syscall.EHOSTUNREACH, syscall.ENETUNREACH} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
