package tunnel

import (
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// smallTotal is how many bytes of a stream are read and written before it
	// is spliced. For a few it is cheaper: a short read says by itself that
	// there is no more, and no pipe is needed.
	smallTotal = 128 << 10

	// smallPiece is less than comes at a time where there is much to be moved.
	// After smallPieces such pieces in a row the stream is, or has become, one of
	// requests and answers, and smallTotal counts anew.
	smallPiece  = 4 << 10
	smallPieces = 4

	// fillsMax is how many times a direction is filled in one turn, so that
	// others get theirs. A network has no more to give long before; next to a
	// sender on this host that has, leaving off earlier costs up to half more
	// CPU time per byte.
	fillsMax = 64
)

// sideNames are of the two sockets of a pair: the client's is the first. So it is with the two streams, by where
// they begin.
var sideNames = [2]string{"client", "upstream"}

// pair is the sockets of a tunnel that a loop carries.
type pair struct {
	t *Tunnel
	l *loop

	mu      sync.Mutex
	sockets [2]socket
	streams [2]stream
	closed  bool
	told    bool // done is called, or will be
	started bool
	queued  bool // among those that have a turn again
}

type socket struct {
	fd       int
	op       int  // how the loop comes to watch it
	readable bool // perhaps
	ending   bool // its peer has said all it had to say, or is gone
	full     bool // takes no more bytes for now
	watched  bool // for space
	urgent   bool // its peer has sent urgent data, which a read stops at and splice(2) does not get past
}

// stream is one direction.
type stream struct {
	moved *atomic.Int64
	stock *conduits
	via   *conduit // nil while there is nothing to hold
	small int      // bytes since the last small pieces
	row   int      // small pieces in a row
	ended bool
	gone  error // of a write: where the stream comes from nobody listens any more
}

// newPair takes over what connects to the client, a bare TCP connection, and to the upstream. It returns nil,
// and has taken nothing, if it is none or if there is no descriptor to be had.
func newPair(t *Tunnel, client net.Conn, up *Socket) *pair {
	tcp, ok := client.(*net.TCPConn)
	if !ok {
		return nil
	}
	fd, err := dup(tcp)
	if err != nil {
		return nil
	}
	tcp.Close()
	return pairOf(t, socket{fd: fd, op: unix.EPOLL_CTL_ADD}, up)
}

// pairOf takes over two sockets, for the loop of the upstream's.
func pairOf(t *Tunnel, client socket, up *Socket) *pair {
	p := &pair{t: t, l: up.l}
	p.sockets[0] = client
	p.sockets[1] = socket{fd: up.release(), op: up.op}
	p.streams[0] = stream{moved: &t.moved.In, stock: stock()}
	p.streams[1] = stream{moved: &t.moved.Out, stock: stock()}
	return p
}

// bare returns a second descriptor of a connection of package net, nil if it is not a bare TCP connection or if
// there is none to be had.
func bare(c net.Conn) *Socket {
	tcp, ok := c.(*net.TCPConn)
	l := nextLoop()
	if !ok || l == nil {
		return nil
	}
	fd, err := dup(tcp)
	if err != nil {
		return nil
	}
	return &Socket{descriptor: descriptor{fd: fd, l: l, op: unix.EPOLL_CTL_ADD}}
}

// start hands the pair to its loop.
func (p *pair) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = true
	for i := range p.sockets {
		if p.closed {
			break
		}
		if err := p.l.watch(p.sockets[i].fd, p, p.sockets[i].op, happens); err != nil {
			p.abort(i, err)
		}
	}
	p.tellIfClosed()
}

// turn implements watcher: it lets the tunnel have its turn after an event at one of its sockets.
func (p *pair) turn(l *loop, fd int, events uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if fd < 0 {
		p.queued = false
	}
	p.note(fd, events)
	if p.carry(l.buf[:]) && !p.queued {
		p.queued = true
		l.again = append(l.again, p)
	}
	if p.closed && !p.told {
		p.told = true
		l.later = append(l.later, p.tell)
	}
}

// end closes both sockets.
func (p *pair) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.close()
	p.tellIfClosed()
}

// reset closes both sockets so that their peers see a reset.
func (p *pair) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.resetOnClose(0)
		p.resetOnClose(1)
		p.close()
	}
	p.tellIfClosed()
}

// keepAlive has the upstream probed. The client is from the beginning, by who has accepted it.
func (p *pair) keepAlive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	fd := p.sockets[1].fd
	setOption(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(KeepAliveIdle/time.Second))
	setOption(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
}

// tellIfClosed has done called by a goroutine of its own. The caller holds mu.
func (p *pair) tellIfClosed() {
	if p.closed && p.started && !p.told {
		p.told = true
		go p.tell()
	}
}

func (p *pair) tell() { p.t.done(p.t.result()) }

// The caller of all that follows holds mu.

func (p *pair) resetOnClose(i int) {
	unix.SetsockoptLinger(p.sockets[i].fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

func (p *pair) close() {
	if p.closed {
		return
	}
	p.closed = true
	p.t.idle.stop()
	for i := range p.sockets {
		p.streams[i].release()
		p.l.forget(p.sockets[i].fd)
		closeFD(p.sockets[i].fd)
	}
}

// note takes down what an event says.
func (p *pair) note(fd int, events uint32) {
	for i := range p.sockets {
		s := &p.sockets[i]
		if s.fd != fd {
			continue
		}
		if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			s.ending, s.readable, s.full = true, true, false
		}
		if events&unix.EPOLLPRI != 0 {
			s.ending, s.urgent, s.readable = true, true, true
		}
		if events&unix.EPOLLIN != 0 {
			s.readable = true
		}
		if events&unix.EPOLLOUT != 0 {
			s.full = false
		}
		if events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 && p.streams[i].ended && p.streams[i].gone == nil {
			// Its stream had ended, so no read tells of it; and we have not ended the other, so it is a reset.
			p.abort(i, os.NewSyscallError("read", unix.ECONNRESET))
			return
		}
	}
}

// carry moves what can be moved. It reports whether there is more. A panic ends this tunnel, and only this.
func (p *pair) carry(buf []byte) (more bool) {
	defer p.recoverPanic()
	for from := range p.streams {
		more = p.move(from, buf) || more
	}
	return more
}

// move does so for one direction.
func (p *pair) move(from int, buf []byte) (more bool) {
	st, src, dst := &p.streams[from], &p.sockets[from], &p.sockets[1-from]
	for range fillsMax {
		if !p.drain(from) || p.closed || st.ended {
			return false
		}
		if !src.readable {
			st.release()
			return false
		}
		var n int
		var err error
		if st.small < smallTotal {
			st.release() // a pipe from before
			if n, err = read(src.fd, buf); err == nil && n > 0 {
				st.count(n)
				src.readable = n == len(buf) || src.ending
				p.give(from, dst, buf[:n])
				continue
			}
		} else {
			if st.via == nil {
				if src.urgent {
					st.stock = noPipes
				}
				st.via = st.stock.take()
			}
			if n, err = st.via.fill(src.fd); st.via.buf == nil && unsupported(err) {
				st.release()
				st.stock = noPipes
				continue
			}
			if n > 0 {
				st.count(n)
			}
		}
		switch {
		case err == unix.EAGAIN:
			src.readable = false
		case err != nil:
			p.abort(from, os.NewSyscallError("read", err))
		case n == 0 && st.via != nil && st.via.buf == nil:
			st.release()
			st.stock, st.small = noPipes, 0 // splice(2) says so of urgent data, too: a read knows
		case n == 0:
			p.finish(from)
		}
	}
	return true
}

// count counts a piece.
func (st *stream) count(n int) {
	st.row++
	if n >= smallPiece {
		st.row = 0
	}
	if st.row >= smallPieces {
		st.small = 0
	} else if st.small < smallTotal {
		st.small += n
	}
}

// give writes bytes that were read, and holds those that are not taken.
func (p *pair) give(from int, dst *socket, b []byte) {
	n, err := write(dst.fd, b)
	if err != nil && err != unix.EAGAIN {
		p.lose(from, os.NewSyscallError("write", err))
		return
	}
	st := &p.streams[from]
	n = max(n, 0)
	st.moved.Add(int64(n))
	if n < len(b) {
		st.via = buffered.Get().(*conduit)
		st.via.off, st.via.held = 0, copy(st.via.buf[:], b[n:])
	}
}

// drain writes what is held, and reports whether nothing is.
func (p *pair) drain(from int) (empty bool) {
	st, dst := &p.streams[from], &p.sockets[1-from]
	for st.via != nil && st.via.held > 0 {
		if dst.full {
			return false
		}
		n, err := st.via.drain(dst.fd)
		switch {
		case err == unix.EAGAIN:
			dst.full = true
			if !dst.watched {
				dst.watched = true
				if err := p.l.watch(dst.fd, p, unix.EPOLL_CTL_MOD, happens|space); err != nil {
					p.abort(1-from, err)
				}
			}
			return false
		case err != nil:
			p.lose(from, os.NewSyscallError("write", err))
			return false
		}
		st.moved.Add(int64(n))
	}
	if st.via != nil && st.via.buf != nil && st.stock != noPipes {
		st.release() // a pipe may be free by now
	}
	return true
}

// lose ends the tunnel because a write failed. What an upstream that is gone has said before, such as why it
// takes no more, is passed on first.
func (p *pair) lose(from int, err error) {
	up := &p.streams[1]
	if from == 1 || up.ended || !lost(err) {
		p.abort(1-from, err)
		return
	}
	p.streams[0].ended = true
	p.streams[0].release()
	up.gone = err
	p.sockets[1].readable, p.sockets[1].ending = true, true
}

// finish passes on the end of a stream.
func (p *pair) finish(from int) {
	if err := p.streams[from].gone; err != nil {
		p.abort(from, err) // the write has taken the error that a read would have had
		return
	}
	p.streams[from].ended = true
	p.streams[from].release()
	if p.t.ended() {
		p.close() // says the same
		return
	}
	shutdownWrite(p.sockets[1-from].fd)
	p.t.idle.halfClosed()
}

// abort ends the tunnel because a socket failed. Half an answer must not look
// like all of it, so what was lost on one side is reset on the other.
func (p *pair) abort(broken int, err error) {
	if p.closed {
		return
	}
	p.t.stop(fmt.Errorf("%s: %w", sideNames[broken], err))
	if lost(err) { // whoever has stopped it first, and may be about to close
		p.resetOnClose(1 - broken)
	}
	p.close()
}

// recoverPanic ends the tunnel in which something has panicked, and only that.
func (p *pair) recoverPanic() {
	if v := recover(); v != nil {
		p.t.stop(&Panic{Value: v, Stack: debug.Stack()})
		p.close()
	}
}

// release gives the conduit back.
func (st *stream) release() {
	if st.via != nil {
		st.stock.put(st.via)
		st.via = nil
	}
}
