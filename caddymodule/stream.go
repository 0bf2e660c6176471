package caddymodule

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/sandboxallow/sandboxallow/internal/tunnel"
)

// streamConn is a stream of HTTP/2 or HTTP/3 as the client's end of a tunnel: what the client sends is the
// body of its CONNECT, what it gets is that of the response (RFC 9113 §8.5).
//
// The end of a response is the end of its handler. So the upstream's end of stream ends the tunnel, whereas
// the client's leaves it open for the upstream to finish.
type streamConn struct {
	w  http.ResponseWriter
	rc *http.ResponseController

	interrupt *http.ResponseController // whose deadlines may be set while something is written

	body   io.ReadCloser
	local  net.Addr
	remote net.Addr

	writing atomic.Bool
	closed  atomic.Bool
	ended   atomic.Bool // the upstream has said all it had to say
	broken  atomic.Bool // the stream is to be reset
}

const never = 100 * 365 * 24 * time.Hour

func newStreamConn(w http.ResponseWriter, rc *http.ResponseController, r *http.Request) *streamConn {
	c := &streamConn{w: w, rc: rc, interrupt: rc, body: r.Body, local: localAddrOf(r), remote: &net.TCPAddr{}}
	body, response := caddyhttp.IdleTimeoutsFromContext(r.Context())
	if body != nil {
		body.Override(never, 0) // a tunnel is idle when nothing moves either way
	}
	if response != nil {
		c.interrupt = response.Ctrl // Caddy's own must not be told of a deadline while it writes
	}
	if ap, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		c.remote = net.TCPAddrFromAddrPort(ap)
	}
	return c
}

func (c *streamConn) Read(b []byte) (int, error) {
	n, err := c.body.Read(b)
	switch {
	case err == nil, err == io.EOF, errors.Is(err, os.ErrDeadlineExceeded):
	case c.ended.Load():
		err = io.EOF
	case !c.closed.Load():
		err = fmt.Errorf("%w: %w", syscall.ECONNRESET, err) // the stream was, or the connection is gone
	}
	return n, err
}

func (c *streamConn) Write(b []byte) (int, error) {
	c.writing.Store(true)
	defer c.writing.Store(false)
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	n, err := c.w.Write(b)
	if err == nil {
		err = c.rc.Flush()
	}
	return n, err
}

// CloseWrite ends the tunnel.
func (c *streamConn) CloseWrite() error {
	c.ended.Store(true)
	return c.body.Close()
}

// SetLinger with 0 has the stream reset instead of ended, as it does with a TCP connection.
func (c *streamConn) SetLinger(sec int) error {
	if sec == 0 {
		c.broken.Store(true)
	}
	return nil
}

// Close ends what blocks in Read and Write. The stream itself ends with the handler.
func (c *streamConn) Close() error {
	c.closed.Store(true)
	if c.writing.Load() { // only then: HTTP/2 resets a stream whose deadline to write has passed
		c.broken.Store(true)
		c.interrupt.SetWriteDeadline(time.Unix(1, 0))
	}
	return c.body.Close()
}

func (c *streamConn) LocalAddr() net.Addr  { return c.local }
func (c *streamConn) RemoteAddr() net.Addr { return c.remote }

func (c *streamConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *streamConn) SetReadDeadline(t time.Time) error  { return c.rc.SetReadDeadline(t) }
func (c *streamConn) SetWriteDeadline(t time.Time) error { return c.rc.SetWriteDeadline(t) }

// pipedConn is a stream for a server to read requests from: net/http ends a read that it has begun by a deadline, and
// that would be the end of the stream.
type pipedConn struct {
	net.Conn // the server's end of a pipe
	stream   *streamConn
}

func (c *pipedConn) LocalAddr() net.Addr  { return c.stream.LocalAddr() }
func (c *pipedConn) RemoteAddr() net.Addr { return c.stream.RemoteAddr() }

// SetLinger with 0 has the stream reset instead of ended.
func (c *pipedConn) SetLinger(sec int) error { return c.stream.SetLinger(sec) }

// pipe returns c for a server to read requests from. done is closed once c is, after that.
func (a *App) pipe(c *streamConn) (conn *pipedConn, done <-chan struct{}) {
	servers, ours := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		res := tunnel.Run(c, ours, tunnel.Options{Idle: time.Duration(a.IdleTimeout)})
		if p, ok := errors.AsType[*tunnel.Panic](res.Err); ok {
			a.panicked("panic in a stream", p.Value, p.Stack)
		}
	}()
	return &pipedConn{servers, c}, ended
}

// Interface guards
var (
	_ net.Conn = (*streamConn)(nil)
	_ net.Conn = (*pipedConn)(nil)
)
