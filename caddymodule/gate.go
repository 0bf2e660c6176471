package caddymodule

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// requestHeadTimeout is for the head of a request, unless the server has a read_header_timeout.
const requestHeadTimeout = 10 * time.Second

// gate counts the connections of an HTTP server, from accept(2) on, towards the limit of the process. Idle
// ones too: the descriptors that they hold are those that tunnels need.
type gate struct {
	app  *App
	held sync.Map // net.Conn -> *place, until it is closed
}

// place is a connection's part of the limit: two descriptors, for itself and for an upstream.
type place struct {
	once  sync.Once
	ours  atomic.Bool // our handler has it, which releases it if it takes the connection over
	taken atomic.Bool // the connection was taken over (hijacked)
}

func (p *place) release() { p.once.Do(open.release) }

// placeKey is the key of a *place in the context of a connection's requests.
type placeKey struct{}

// guard has the connections of a server counted, and sets for its clients the limits of time that this app
// has, where the server has none of its own. It may be called again for the same server.
func (a *App) guard(srv *caddyhttp.Server) {
	if a.guarded[srv] {
		return
	}
	if a.guarded == nil {
		a.guarded = make(map[*caddyhttp.Server]bool)
	}
	a.guarded[srv] = true
	a.limitTimes(srv)

	g := &gate{app: a}
	srv.RegisterConnContext(g.enter)
	srv.RegisterConnState(g.leave)
}

func (a *App) limitTimes(srv *caddyhttp.Server) {
	setDefault(&srv.ReadHeaderTimeout, caddy.Duration(requestHeadTimeout))
	// Caddy's minute ends uploads and HTTP/2 tunnels that pause.
	setDefault(&srv.ReadIdleTimeout, a.IdleTimeout)
	setDefault(&srv.WriteIdleTimeout, a.IdleTimeout)
}

func setDefault(d *caddy.Duration, value caddy.Duration) {
	if *d == 0 {
		*d = value
	}
}

// enter gives a connection that was just accepted a place, or closes it.
func (g *gate) enter(ctx context.Context, c net.Conn) context.Context {
	if !open.acquire(g.app.MaxTunnels) {
		g.refuse(c)
		return ctx
	}
	closeUnlessHTTP(c)
	p := new(place)
	g.held.Store(c, p)
	return context.WithValue(ctx, placeKey{}, p)
}

// leave takes back the place of a connection that is closed, or that somebody else has taken over: net/http
// does not learn of the end of those.
func (g *gate) leave(c net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	v, ok := g.held.LoadAndDelete(c)
	if !ok {
		return
	}
	p := v.(*place)
	p.taken.Store(state == http.StateHijacked)
	if state == http.StateClosed || !p.ours.Load() {
		p.release()
	}
}

// enterRequest gives a request its place, which leave gives back: the connection's in HTTP/1, one of its own
// where a connection carries many at a time. It reports whether there is one.
func (a *App) enterRequest(r *http.Request) (leave func(), ok bool) {
	if r.ProtoMajor > 1 {
		return open.release, open.acquire(a.MaxTunnels)
	}
	p, ok := r.Context().Value(placeKey{}).(*place)
	if !ok {
		return func() {}, false
	}
	p.ours.Store(true)
	return func() {
		p.ours.Store(false) // the next request may be another handler's
		if p.taken.Load() {
			p.release()
		}
	}, true
}

// refuse tells a client without TLS that there is no place, and closes the connection. It is called by the
// accept loop: what it writes fits the empty buffer of a new socket.
func (g *gate) refuse(c net.Conn) {
	err := g.app.limitError()
	r := record{start: time.Now()}
	r.Layer, r.Client, r.Port = decision.HTTP, addrOf(c.RemoteAddr()), portOf(c.LocalAddr())
	if tcp, ok := c.(*net.TCPConn); ok {
		reason := policy.ReasonLimit
		fmt.Fprintf(tcp, "HTTP/1.1 503 Service Unavailable\r\n%s: %v\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nsandboxallow: %v: %v\n",
			reasonField, reason, reason, err)
		tcp.CloseWrite()
	}
	c.Close()
	g.app.denied(&r, policy.ReasonLimit, err)
}
