package caddymodule

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/mholt/caddy-l4/layer4"
	"go.uber.org/zap"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/hello"
	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
	"github.com/sandboxallow/sandboxallow/internal/upstream"
)

func init() {
	caddy.RegisterModule(new(Handler))
}

// Handler reads the server name from a TLS ClientHello, decides on it by the policy for the client's
// address, resolves it, refuses private addresses, and tunnels the connection, which it does not decrypt.
//
// What PostgreSQL has before the ClientHello it answers itself.
//
// It is the end of its route. The route needs no matcher: the handler reads the connection itself, so that
// nothing else decides who gets through.
type Handler struct {
	// The port that rules are checked against and that is dialled. Default: the one the client connected to.
	UpstreamPort uint16 `json:"upstream_port,omitempty"`

	// The name of a policy that must admit the connection too, besides the one for the client's address.
	Policy string `json:"policy,omitempty"`

	// Where `policy` stands in a Caddyfile, for the error if there is no such policy.
	PolicyAt string `json:"policy_at,omitempty"`

	// What the client speaks: `postgres`, where TLS begins after a request for it. Default: TLS from the first
	// octet on.
	Protocol string `json:"protocol,omitempty"`

	app *App
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "layer4.handlers.sandboxallow",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision finds the app.
func (h *Handler) Provision(ctx caddy.Context) error {
	if h.Protocol != "" && h.Protocol != protocolPostgres {
		return fmt.Errorf("protocol is %q, accepted is %s", h.Protocol, protocolPostgres)
	}
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	h.app = app
	if h.Protocol == "" { // which leads to sites
		app.feeders++
	}
	return app.needPolicy(h.Policy, h.PolicyAt)
}

// Handle decides on a connection and, if it is admitted, tunnels it until it ends. What goes wrong is in
// the decision log; there is nothing left for layer4 to report.
func (h *Handler) Handle(cx *layer4.Connection, _ layer4.Handler) error {
	growStack()
	defer func() {
		// A panic here would end the process, and with it everybody's tunnels.
		if p := recover(); p != nil {
			h.app.panicked("panic in connection handler", p, debug.Stack())
		}
	}()
	r := &record{listener: h.Policy, start: time.Now()}
	r.Layer, r.Client, r.Port = decision.TLS, addrOf(cx.RemoteAddr()), h.UpstreamPort
	if r.Port == 0 {
		r.Port = portOf(cx.LocalAddr())
	}
	var p preamble = noPreamble{layer4Client{cx}}
	if h.Protocol == protocolPostgres {
		r.Layer, p = decision.Postgres, &postgresPreamble{layer4Client: layer4Client{cx}, app: h.app}
	}
	if !open.acquire(h.app.MaxTunnels) {
		err := h.app.limitError()
		r.Error = err.Error()
		p.refuse(r, policy.ReasonLimit, nil) // before it is logged: the descriptor is needed
		h.app.denied(r, policy.ReasonLimit, err)
		return nil
	}
	var held place
	goesOn := false
	defer func() {
		if !goesOn {
			held.release()
		}
	}()
	goesOn = h.handle(cx, r, p, held.release)
	return nil
}

// panicked counts and logs a panic that was recovered from.
func (a *App) panicked(message string, p any, stack []byte) {
	a.metrics.panics.Inc()
	a.log.Error(message, zap.Any("panic", p), zap.ByteString("stack", stack))
}

// growStack has the goroutine's stack grown to what dialling needs. In steps, and with many frames to be
// moved each time, that takes some 4 % of the time of a tunnel.
//
//go:noinline
func growStack() byte {
	var space [6 << 10]byte
	return space[len(space)-1]
}

// handle decides on a connection. It reports whether a tunnel goes on, at whose end release is called.
func (h *Handler) handle(cx *layer4.Connection, r *record, p preamble, release func()) (goesOn bool) {
	buf := helloBuffers.Get().(*[]byte)
	defer helloBuffers.Put(buf)
	cx.SetReadDeadline(r.start.Add(time.Duration(h.app.HelloTimeout)))
	name, read, err := p.hello(*buf)
	if errors.Is(err, errSilent) {
		return false // a health check, or a client that changed its mind: nobody was denied
	}
	r.Name = name
	if err != nil {
		reason := helloReason(err)
		h.app.denied(r, reason, err)
		p.refuse(r, reason, read)
		return false
	}
	return h.app.admit(r, p, read, release)
}

// admit decides on the name of a record, as its ClientHello has it, of which read is what was read. It reports whether a
// tunnel goes on, at whose end release is called.
func (a *App) admit(r *record, f front, read []byte, release func()) (goesOn bool) {
	deny := func(reason policy.Reason, err error) {
		a.denied(r, reason, err)
		f.refuse(r, reason, read)
	}
	n, err := policy.ParseName(r.Name)
	if err != nil {
		deny(policy.ReasonBadName, err)
		return false
	}
	r.Name = n.String()

	sel, set := a.decide(r, n)
	if !r.Decision.Verdict.Admits() {
		a.decided(r)
		f.refuse(r, r.Decision.Reason, read)
		return false
	}

	switch b := a.brokering(n, r.Port); {
	case b == brokeredHere && r.Layer != decision.Postgres: // which no site speaks
		read = append(bytes.Clone(read), f.ahead()...)
		client, err := f.conn()
		if err == nil {
			err = a.broker(client, read, n, r, set)
		}
		if err != nil {
			deny(policy.ReasonNotBrokered, err)
		}
		return false
	case b != notBrokered:
		deny(policy.ReasonNotBrokered, errNoSite)
		return false
	}

	up, err := a.dialer.DialSocket(context.Background(), n, r.Port, sel.Lifts)
	if err != nil {
		deny(upstream.Reason(err), err)
		return false
	}
	defer up.Close() // unless it is the tunnel's by then
	r.Upstream = up.RemoteAddr()
	if err := f.upstream(up); err != nil {
		deny(policy.ReasonUpstreamNoTLS, err)
		return false
	}
	a.decided(r)

	// What was read is the first that the upstream gets. There is more of it if a matcher of layer4 has read ahead.
	if !a.passOn(n, r, up, read, f.ahead()) {
		return false
	}
	a.tunnel(n, set, r, f.join, up, release)
	return true
}

// passOn has the upstream get what was read of the client before the tunnel. If it does not, the tunnel is over, which
// is recorded.
func (a *App) passOn(n policy.Name, r *record, up *tunnel.Socket, read ...[]byte) bool {
	for _, b := range read {
		written, err := up.Write(b)
		r.early += int64(written)
		if err != nil {
			r.Error = err.Error()
			a.closed(r.opened(n, nil), r)
			return false
		}
	}
	return true
}

// tunnel runs an admitted tunnel, which join makes and which takes both connections over, keeps it known while it is
// open, and records its end. It returns at once where the tunnel has no more need of this goroutine: an idle one then
// costs the memory of an openTunnel and a record. over is called at the end.
func (a *App) tunnel(n policy.Name, set *policy.Set, r *record, join func(*tunnel.Socket, tunnel.Options) (*tunnel.Tunnel, error),
	up *tunnel.Socket, over func()) {
	t := r.opened(n, nil)
	joined, err := join(up, tunnel.Options{Idle: time.Duration(a.IdleTimeout), Counters: t.counters})
	if err != nil {
		a.decided(r)
		r.Error = err.Error()
		a.closed(t, r)
		over()
		return
	}
	t.cut = joined.Cut
	open.add(t, a, set)
	ended := make(chan struct{})
	joined.Start(func(res tunnel.Result) {
		defer close(ended)
		defer over()
		defer func() {
			if p := recover(); p != nil {
				a.panicked("panic at the end of a tunnel", p, debug.Stack())
			}
		}()
		open.remove(t)
		a.decided(r) // which may be under way elsewhere, with the record as it is
		if res.Err != nil {
			r.Error = res.Err.Error()
		}
		if p, ok := errors.AsType[*tunnel.Panic](res.Err); ok {
			a.panicked("panic in a tunnel", p.Value, p.Stack)
		}
		a.closed(t, r)
	})
	if !joined.Detached() {
		<-ended
	}
}

// closed records the end of a tunnel.
func (a *App) closed(t *openTunnel, r *record) {
	r.BytesIn, r.BytesOut = t.counters.In.Load(), t.counters.Out.Load()
	a.metrics.closed(r.BytesIn, r.BytesOut)
	defer recent.closed(r)
	if reason := policy.Reason(t.revoked.Load()); reason != policy.ReasonNone {
		r.Decision = policy.Decision{Reason: reason, Policy: r.Decision.Policy}
		r.Error = ""
		a.write(msgRevoked, r)
		return
	}
	a.write(msgClosed, r)
}

// decide looks the name up. Where it would not be allowed it waits while a change of the policy is
// settling, and goes by the result: the client may have been told of it by DNS already.
func (a *App) decide(r *record, n policy.Name) (policy.Selection, *policy.Set) {
	set := a.store.Set()
	sel := set.Select(r.Client, r.listener)
	r.Decision = sel.Lookup(n, r.Port)
	if r.Decision.Verdict.Admits() || r.Decision.Reason != policy.ReasonNotAllowed {
		return sel, set
	}
	ctx, cancel := context.WithTimeout(context.Background(), policy.SettleTimeout)
	defer cancel()
	a.store.Settle(ctx)
	if now := a.store.Set(); now != set {
		set = now
		sel = set.Select(r.Client, r.listener)
		r.Decision = sel.Lookup(n, r.Port)
	}
	return sel, set
}

// denied records a denial that is not the policy's.
func (a *App) denied(r *record, reason policy.Reason, err error) {
	r.Decision = policy.Decision{Reason: reason, Policy: r.Decision.Policy, Rule: r.Decision.Rule}
	if r.Decision.Policy == "" {
		r.Decision.Policy = a.store.Set().Select(r.Client, r.listener).Policy()
	}
	r.Error = err.Error()
	a.decided(r)
}

// limitError is the error of a connection or request for which there is no place.
func (a *App) limitError() error {
	return fmt.Errorf("%d connections are held, see max_tunnels", a.MaxTunnels)
}

// helloBuffers are for ClientHellos: most fit at once, those with post-quantum key shares too.
var helloBuffers = sync.Pool{New: func() any {
	b := make([]byte, 4<<10)
	return &b
}}

var (
	errSilent     = errors.New("connection closed before the first byte")
	errHelloEnd   = errors.New("connection closed before the end of the ClientHello")
	errHelloLate  = errors.New("no complete ClientHello in time")
	errHelloBroke = errors.New("connection broke before the end of the ClientHello")
)

// readHello reads until the server name is known, into buf or, if the ClientHello does not fit, into memory
// of its own. It returns the name as sent and all that was read.
func readHello(r io.Reader, buf []byte) (name string, read []byte, err error) {
	n := 0
	for {
		raw, need, err := hello.ServerName(buf[:n])
		if err != nil || need == 0 {
			return string(raw), buf[:n], err
		}
		if n == len(buf) { // not by need, which is what a client only announces
			bigger := make([]byte, min(2*len(buf), hello.MaxSize))
			copy(bigger, buf)
			buf = bigger
		}
		m, err := io.ReadAtLeast(r, buf[n:], min(need, len(buf)-n))
		n += m
		if err != nil {
			return "", nil, readError(err, n)
		}
	}
}

// readError says what an error to read means after n bytes.
func readError(err error, n int) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errHelloLate
	case n == 0:
		return errSilent
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errHelloEnd
	}
	return fmt.Errorf("%w: %w", errHelloBroke, err)
}

func helloReason(err error) policy.Reason {
	var he *hello.Error
	var pe *preambleError
	switch {
	case errors.As(err, &pe):
		return pe.reason
	case errors.Is(err, errHelloLate):
		return policy.ReasonHelloTimeout
	case errors.As(err, &he) && he.Kind == hello.NotTLS:
		return policy.ReasonNotTLS
	case errors.As(err, &he) && he.Kind == hello.TooLarge:
		return policy.ReasonHelloTooLarge
	case errors.As(err, &he) && he.Kind == hello.NoName:
		return policy.ReasonNoName
	}
	return policy.ReasonHelloMalformed
}

// Interface guards
var (
	_ caddy.Provisioner  = (*Handler)(nil)
	_ layer4.NextHandler = (*Handler)(nil)
)
