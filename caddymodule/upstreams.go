package caddymodule

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// upstreams are the connections that requests are forwarded on, and those that wait for the next one.
//
// Each selection of policies has connections of its own: one that a `private` line has lifted must not serve a
// client whose policy has no such line. A selection is of one set of policies, so a change of the policy
// begins with none.
type upstreams struct {
	dial    func(ctx context.Context, n policy.Name, port uint16, lifts func(netip.Addr) bool) (*net.TCPConn, error)
	idle    time.Duration // a request in which no byte moves for so long is ended
	waiting int64         // how many may wait for the next request

	panicked func(p any) // is told of a panic of dial, which runs in goroutines of net/http's

	held  atomic.Int64 // connections, in use or not
	inUse atomic.Int64 // requests

	mu  sync.Mutex
	bys map[carriage]*http.Transport
}

// carriage is what requests must have in common to share connections.
type carriage struct {
	sel policy.Selection
	tls *tls.Config // of a site that brokers; nil for clear text
}

const (
	keptAlive        = 90 * time.Second // how long a connection waits for the next request
	keptAliveAHost   = 32
	maxResponseHead  = 256 << 10 // octets
	handshakeTimeout = 10 * time.Second
)

// by returns what carries the requests of a carriage.
func (u *upstreams) by(c carriage) *http.Transport {
	u.mu.Lock()
	defer u.mu.Unlock()
	t := u.bys[c]
	if t == nil {
		if t = u.newTransport(c.sel); c.tls != nil {
			withTLS(t, c.tls)
		}
		if u.bys == nil {
			u.bys = make(map[carriage]*http.Transport)
		}
		u.bys[c] = t
	}
	return t
}

// withTLS has a transport speak HTTP/1.1 or 2 over TLS alone, with a server that has a certificate for the name that
// is dialled.
func withTLS(t *http.Transport, config *tls.Config) {
	t.DialTLSContext = nil
	t.TLSClientConfig = config.Clone() // to which net/http adds protocols
	t.TLSHandshakeTimeout = handshakeTimeout
	t.ForceAttemptHTTP2 = true
}

// newTransport returns a transport that speaks HTTP/1.1 in clear text, and reaches nothing but what the dialler
// of the app connects to: no proxy of the environment, no TLS, no other network.
func (u *upstreams) newTransport(sel policy.Selection) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			n, port, _, err := parseAuthority(address, 0) // it was made of these by target.address
			if err != nil {
				return nil, err
			}
			return u.connect(ctx, n, port, sel)
		},
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("no TLS here")
		},
		DisableCompression:     true, // what the client gets is what the upstream sends
		MaxIdleConnsPerHost:    keptAliveAHost,
		MaxIdleConns:           int(u.waiting),
		IdleConnTimeout:        keptAlive,
		MaxResponseHeaderBytes: maxResponseHead,
		ExpectContinueTimeout:  time.Second,
	}
}

func (u *upstreams) connect(ctx context.Context, n policy.Name, port uint16, sel policy.Selection) (net.Conn, error) {
	if u.held.Add(1) > u.inUse.Load()+u.waiting {
		u.closeIdle() // the descriptors of those that wait are needed
	}
	c, err := u.dialSafely(ctx, n, port, sel)
	if err != nil {
		u.held.Add(-1)
		return nil, err
	}
	conn := &upstreamConn{Conn: c, idle: u.idle, done: func() { u.held.Add(-1) }}
	if abandoned(ctx) { // net/http would keep it for the next request, of policies that may be gone
		conn.Close()
		return nil, context.Canceled
	}
	return conn, nil
}

// dialSafely dials. A panic in net/http's goroutine would end the process.
func (u *upstreams) dialSafely(ctx context.Context, n policy.Name, port uint16, sel policy.Selection) (c *net.TCPConn, err error) {
	defer func() {
		if p := recover(); p != nil {
			u.panicked(p)
			err = errors.New("panic while dialling")
		}
	}()
	return u.dial(ctx, n, port, sel.Lifts)
}

// closeIdle closes the connections that wait for a request.
func (u *upstreams) closeIdle() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range u.bys {
		t.CloseIdleConnections()
	}
}

// forget lets go of what earlier sets of policies have connected.
func (u *upstreams) forget() {
	u.closeIdle()
	u.mu.Lock()
	clear(u.bys)
	u.mu.Unlock()
}

// upstreamConn is a connection that fails once no byte has moved either way for as long as idle. It hides the
// ReadFrom of a TCP connection, which would move bytes unseen.
type upstreamConn struct {
	net.Conn
	idle time.Duration
	once sync.Once
	done func()
}

func (c *upstreamConn) Read(b []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.idle)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *upstreamConn) Write(b []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.idle)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *upstreamConn) Close() error {
	c.once.Do(c.done)
	return c.Conn.Close()
}
