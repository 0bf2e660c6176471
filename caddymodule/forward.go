package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
	"github.com/sandboxallow/sandboxallow/internal/upstream"
)

// exchange is a request that was admitted, and the response to it.
type exchange struct {
	app    *App
	w      http.ResponseWriter
	rec    *record
	target target
	sel    policy.Selection
	set    *policy.Set
	cancel context.CancelFunc
	done   <-chan struct{} // closed when it was cancelled

	transport *http.Transport
	brokered  bool // through a site

	open     *openTunnel // nil until an upstream is connected
	counters tunnel.Counters
	failure  error // what ended it early

	mu    sync.Mutex
	ended bool // the client's end may not be touched any more
}

// exchangeKey is the key of an *exchange in the context of the request to the upstream.
type exchangeKey struct{}

// abandoned reports whether nobody waits any more for what ctx is of.
func abandoned(ctx context.Context) bool {
	x, ok := ctx.Value(exchangeKey{}).(*exchange)
	if !ok {
		return false
	}
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// forward sends an admitted request to the host that it names, and the response back.
func (h *HTTPHandler) forward(w http.ResponseWriter, r *http.Request, rec *record, t target, sel policy.Selection, set *policy.Set) {
	x := &exchange{app: h.app, w: w, rec: rec, target: t, sel: sel, set: set}
	ctx, end := x.begin(r.Context())
	defer end()
	defer x.breakOff(r)
	dropUpgrade(r.Header)
	forwarder.ServeHTTP(w, r.WithContext(ctx))
}

// begin returns the context of the request to the upstream, and what is to be called when all of it is over.
func (x *exchange) begin(ctx context.Context) (of context.Context, end func()) {
	ctx, x.cancel = context.WithCancel(ctx)
	x.done = ctx.Done()
	ctx = context.WithValue(ctx, exchangeKey{}, x)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: x.gotConn})
	x.app.upstreams.inUse.Add(1)
	return ctx, func() {
		defer x.cancel()
		defer x.app.upstreams.inUse.Add(-1)
		x.end()
	}
}

// gotConn is called when the upstream is connected, or a connection that waited is taken: once more if that
// turned out to be closed.
func (x *exchange) gotConn(info httptrace.GotConnInfo) {
	first := x.open == nil
	if !first {
		open.remove(x.open)
	}
	x.rec.Upstream = addrPortOf(info.Conn.RemoteAddr())
	x.open = x.rec.opened(x.target.name, x.cut)
	x.open.counters = &x.counters
	x.open.brokered = x.brokered
	if first {
		x.app.decided(x.rec)
	}
	open.add(x.open, x.app, x.set)
}

// cut breaks off what waits for the upstream, and what waits for more of the client's body.
func (x *exchange) cut() {
	x.cancel()
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.ended {
		http.NewResponseController(x.w).SetReadDeadline(time.Unix(1, 0))
	}
}

// breakOff has a response of which half is sent not look like all of it. That is net/http's job, but for clients
// of HTTP/1.0, to whom the end of the connection is the end of the response.
func (x *exchange) breakOff(r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if !r.ProtoAtLeast(1, 1) {
		if c, _, err := http.NewResponseController(x.w).Hijack(); err == nil {
			resetAll(c)
		}
	}
	panic(p)
}

// end records the end of an exchange that an upstream has had a part in.
func (x *exchange) end() {
	x.mu.Lock()
	x.ended = true
	x.mu.Unlock()
	if x.transport != nil && x.app.store.Set() != x.set {
		x.transport.CloseIdleConnections() // nobody comes for them any more
	}
	if x.open == nil {
		return
	}
	open.remove(x.open)
	if x.failure != nil {
		x.rec.Error = x.failure.Error()
	}
	x.app.closed(x.open, x.rec)
}

// forwarder forwards as a proxy does (RFC 9110 §7.6), and adds nothing: the upstream gets what the client has
// sent, as if nobody stood between them.
var forwarder = &httputil.ReverseProxy{
	Rewrite:        rewrite,
	Transport:      carrier{},
	FlushInterval:  -1, // at once: model streams
	ModifyResponse: inspect,
	ErrorHandler:   failed,
	BufferPool:     new(copyBuffers),
	ErrorLog:       log.New(io.Discard, "", 0), // what failed is in the decision log
}

// carrier has a request carried by the transport of the policies that have admitted it.
type carrier struct{}

func (carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r)
	x.transport = x.app.upstreams.by(carriage{sel: x.sel})
	return x.transport.RoundTrip(r)
}

// rewrite makes the request that goes to the upstream. httputil has removed the fields of the connection.
func rewrite(p *httputil.ProxyRequest) {
	x := exchangeOf(p.In)
	out := p.Out
	out.URL.Scheme, out.URL.Host = "http", x.target.address()
	out.URL.RawQuery = p.In.URL.RawQuery // which httputil cleans
	if path := pathOf(p.In); path != out.URL.EscapedPath() && !strings.HasPrefix(path, "//") {
		out.URL.Opaque = path // net/url would write it anew: /a%2Fb|c as /a/b%7Cc
	}
	out.Host = x.target.authority()
	delete(out.Header, "Host") // HTTP/2 can have one beside :authority

	for _, field := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		v, ok := p.In.Header[field]
		if ok && !httpguts.HeaderValuesContainsToken(p.In.Header["Connection"], field) { // what the client says of itself
			out.Header[field] = v
		}
	}
	out.Trailer = p.In.Trailer // net/http fills it when the body ends
	if out.Body != nil {
		out.Body = &requestBody{out.Body, &x.counters}
	}
}

// pathOf returns the path of a request as the client has written it.
func pathOf(r *http.Request) string {
	path := r.RequestURI
	if !strings.HasPrefix(path, "/") { // absolute
		_, path, _ = strings.Cut(path, "://")
		path = path[max(strings.IndexAny(path+"/", "/?"), 0):]
	}
	path, _, _ = strings.Cut(path, "?")
	return path
}

func isWebSocket(h http.Header) bool { return strings.EqualFold(h.Get("Upgrade"), "websocket") }

// dropUpgrade removes from a request the wish for any protocol but WebSocket: after another, h2c for one, requests
// would name hosts that nobody checks.
func dropUpgrade(h http.Header) {
	if !isWebSocket(h) {
		h.Del("Upgrade")
		h.Del("Http2-Settings")
	}
}

// inspect looks at a response before the client gets it.
func inspect(resp *http.Response) error {
	x := exchangeOf(resp.Request)
	h := x.w.Header()
	h["Content-Type"] = nil // net/http would guess one where the upstream sends none
	if x.counters.In.Load() == 0 && expectsContinue(resp.Request) {
		h.Set("Connection", "close")
	}
	if resp.StatusCode < 100 {
		return fmt.Errorf("the upstream answers with status %03d", resp.StatusCode)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = &responseBody{resp.Body, x}
		return nil
	}
	conn, err := x.upgraded(resp)
	if err != nil {
		return err
	}
	resp.Body = conn
	return nil
}

// upgraded returns the connection that a response of 101 turns its own into.
func (x *exchange) upgraded(resp *http.Response) (*upgradedConn, error) {
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || !isWebSocket(resp.Request.Header) {
		resp.Body.Close()
		return nil, errors.New("the upstream switches to a protocol that was not asked for")
	}
	return &upgradedConn{conn, &x.counters}, nil
}

// failed answers for an upstream that does not.
func failed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r)
	reason := upstream.Reason(err)
	switch {
	case x.open == nil && r.Context().Err() != nil: // the client left before there was an upstream
		x.rec.Error = err.Error()
		x.app.decided(x.rec)
		return
	case x.open == nil:
		x.app.denied(x.rec, reason, err)
	default: // decided already
		x.failure = err
		if revoked := policy.Reason(x.open.revoked.Load()); revoked != policy.ReasonNone {
			reason = revoked
			w.Header().Set("Connection", "close") // what is left of the body is not read
		}
	}
	text := x.rec.excuse(reason)
	if x.open != nil && reason == policy.ReasonDialError {
		text = fmt.Sprintf("%s:%d was connected to, and has not answered", x.rec.Name, x.rec.Port)
	}
	answer(w, r, x.rec, reason, statusFor(reason, upstream.TimedOut(err)), text)
}

// requestBody counts what the upstream is sent.
type requestBody struct {
	io.ReadCloser
	counters *tunnel.Counters
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.counters.In.Add(int64(n))
	return n, err
}

// responseBody counts what the client is sent, and keeps the error that breaks it off.
type responseBody struct {
	io.ReadCloser
	x *exchange
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.x.counters.Out.Add(int64(n))
	if err != nil && err != io.EOF {
		b.x.failure = err
	}
	return n, err
}

// upgradedConn counts what a WebSocket carries.
type upgradedConn struct {
	io.ReadWriteCloser
	counters *tunnel.Counters
}

func (c *upgradedConn) Read(p []byte) (int, error) {
	n, err := c.ReadWriteCloser.Read(p)
	c.counters.Out.Add(int64(n))
	return n, err
}

func (c *upgradedConn) Write(p []byte) (int, error) {
	n, err := c.ReadWriteCloser.Write(p)
	c.counters.In.Add(int64(n))
	return n, err
}

// copyBuffers lends the buffers that responses are copied through.
type copyBuffers struct{ pool sync.Pool }

const copyBufferSize = 32 << 10

func (b *copyBuffers) Get() []byte {
	if p, ok := b.pool.Get().(*[copyBufferSize]byte); ok {
		return p[:]
	}
	return make([]byte, copyBufferSize)
}

func (b *copyBuffers) Put(p []byte) { b.pool.Put((*[copyBufferSize]byte)(p)) }
