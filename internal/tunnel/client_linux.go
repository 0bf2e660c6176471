package tunnel

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lingerMax is how many bytes of a client that was refused are read, so that it hears why.
const lingerMax = 64 << 10

// ErrNotYet is what a call returns that would have to wait.
var ErrNotYet = errors.New("nothing yet")

// Client is a connection that a Listener has accepted, until it is joined or closed.
//
// Its methods are called where nothing else of it is under way, and must not wait: by the begin of a Listener, by
// what Await and AwaitUpstream call, or in Do.
type Client struct {
	descriptor
	remote netip.AddrPort

	mu    sync.Mutex
	then  func(late bool) // what is awaited
	timer *time.Timer
	nth   int // of what was awaited
}

// RemoteAddr is the address of the client. An IPv4-mapped one is unmapped.
func (c *Client) RemoteAddr() netip.AddrPort { return c.remote }

// Do calls f when nothing else of the client is under way. It is for who was handed the client to go on elsewhere.
func (c *Client) Do(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// Later calls f after this turn of the loop, elsewhere, where it may wait: to write a log, say. What several turns
// leave for later is called in that order. It is not for who has been told that it is late, or calls from Do.
func (c *Client) Later(f func()) { c.l.later = append(c.l.later, f) }

// Buffer is memory to read into, which is good until the end of this turn of the loop, and 16 KiB. Later's exception
// holds for it too.
func (c *Client) Buffer() []byte { return c.l.buf[:] }

// Read reads what there is, which may be nothing yet: ErrNotYet.
func (c *Client) Read(b []byte) (int, error) {
	n, err := read(c.fd, b)
	if err == unix.EAGAIN {
		return 0, ErrNotYet
	}
	if err != nil {
		return 0, os.NewSyscallError("read", err)
	}
	return n, nil
}

// Await calls f once something has happened to the connection since ErrNotYet, or is late, after d.
func (c *Client) Await(d time.Duration, f func(late bool)) error {
	if c.op == unix.EPOLL_CTL_ADD {
		if err := c.watch(c, happens); err != nil {
			return err
		}
	}
	c.await(d, f)
	return nil
}

// AwaitUpstream is Await for a connection that Connect has begun.
func (c *Client) AwaitUpstream(up *Socket, d time.Duration, f func(late bool)) error {
	if err := up.watch(c, happens|space); err != nil {
		return err
	}
	c.await(d, f)
	return nil
}

func (c *Client) await(d time.Duration, f func(late bool)) {
	c.nth++
	c.then = f
	nth := c.nth
	c.timer = time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.nth == nth {
			c.call(true)
		}
	})
}

// turn implements watcher.
func (c *Client) turn(*loop, int, uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.call(false)
}

// call calls what is awaited, if anything is.
func (c *Client) call(late bool) {
	if then := c.then; then != nil {
		c.stop()
		then(late)
	}
}

// stop waits for nothing any more.
func (c *Client) stop() {
	if c.then != nil {
		c.then = nil
		c.timer.Stop()
	}
}

// Connect begins to connect to an upstream, on the same loop. Offer says what has become of it.
func (c *Client) Connect(to netip.AddrPort) (*Socket, error) {
	up, err := c.l.socket(to)
	if err != nil {
		return nil, err
	}
	if err := connectFD(up.fd, to); err != nil && err != unix.EINPROGRESS && err != unix.EINTR {
		up.Close()
		return nil, dialError(to, os.NewSyscallError("connect", err))
	}
	return up, nil
}

// Join takes the client and the upstream over, as the function of that name does.
func (c *Client) Join(up *Socket, o Options) *Tunnel {
	c.stop()
	if c.l != up.l {
		_ = c.leave() // fails for none that is watched
	}
	t := newTunnel(o)
	t.pair = pairOf(t, socket{fd: c.fd, op: c.op}, up)
	return t
}

// Conn makes it a connection of package net. The client is that one's then, or closed if there is an error.
func (c *Client) Conn() (net.Conn, error) {
	c.stop()
	return c.netConn()
}

// Close closes the connection.
func (c *Client) Close() {
	c.stop()
	c.close()
}

// CloseWith writes the last that a client is told, and closes the connection. What the client sends meanwhile is read
// until it closes first, for as long as linger: a connection that is closed with bytes unread is reset, and what was
// written last may be lost with it. closed is called at the end.
func (c *Client) CloseWith(last []byte, linger time.Duration, closed func()) {
	c.stop()
	left := 0
	if len(last) > 0 {
		if n, err := write(c.fd, last); err == nil && n == len(last) && linger > 0 {
			shutdownWrite(c.fd)
			left = lingerMax
		}
	}
	c.linger(time.Now().Add(linger), left, closed)
}

// linger reads up to left bytes, and closes.
func (c *Client) linger(until time.Time, left int, closed func()) {
	for left > 0 {
		n, err := discard(c.fd, left)
		if err == unix.EAGAIN {
			err = c.Await(time.Until(until), func(late bool) {
				if late {
					left = 0
				}
				c.linger(until, left, closed)
			})
			if err == nil {
				return
			}
		}
		if err != nil || n == 0 {
			break
		}
		left -= n
	}
	c.Close()
	closed()
}
