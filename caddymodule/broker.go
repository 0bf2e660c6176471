package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func init() {
	caddy.RegisterModule(new(Broker))
}

// Broker stands first in a site of a name whose credentials never enter the sandbox. The TLS of clients ends at the
// site, which is reached only through our own handlers, once the policy for the client's address has admitted the
// name. Broker decides on each request again, and removes every credential that the client has sent; what comes
// behind it, `reverse_proxy` with `transport sandboxallow`, sets the one of the operator.
type Broker struct {
	// Names that a wildcard of the site is not for. They are tunnelled as if there were no site: for clients that
	// pin keys, or have a certificate of their own.
	Except []string `json:"except,omitempty"`

	// Request fields that carry credentials, besides those whose names say so.
	RemoveHeader []string `json:"remove_header,omitempty"`

	// Query parameters that carry credentials, besides those whose names say so.
	RemoveQuery []string `json:"remove_query,omitempty"`

	// Fields and parameters that clients may send although their names sound like credentials, or make another request
	// of it.
	Keep []string `json:"keep,omitempty"`

	app         *App
	except      []policy.Name
	credentials credentials
}

// CaddyModule returns the Caddy module information.
func (*Broker) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.sandboxallow_broker",
		New: func() caddy.Module { return new(Broker) },
	}
}

// Provision finds the app and sets up the server.
func (b *Broker) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	b.app = app
	for _, s := range b.Except {
		n, err := policy.ParseName(s)
		if err != nil {
			return fmt.Errorf("except: %w", err)
		}
		b.except = append(b.except, n)
	}
	b.credentials.headers, b.credentials.queries = make(map[string]bool), make(map[string]bool)
	for _, s := range slices.Concat(b.RemoveHeader, b.RemoveQuery, b.Keep) {
		if fold(s) == "" {
			return fmt.Errorf("%q is to be removed or kept, and has no letter or digit", s)
		}
	}
	for _, s := range b.RemoveHeader {
		b.credentials.headers[fold(s)] = true
	}
	for _, s := range b.RemoveQuery {
		b.credentials.queries[fold(s)] = true
	}
	for _, s := range b.Keep {
		name := fold(s)
		if b.credentials.headers[name] || b.credentials.queries[name] {
			return fmt.Errorf("%s is both to be removed and to be kept", s)
		}
		b.credentials.headers[name], b.credentials.queries[name] = false, false
	}
	srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return errors.New("sandboxallow broker must stand in a server of the http app")
	}
	app.setUpBroker(srv)
	return nil
}

// setUpBroker prepares a server with sites that broker. It may be called again for the same server.
func (a *App) setUpBroker(srv *caddyhttp.Server) {
	if a.brokers[srv] {
		return
	}
	if a.brokers == nil {
		a.brokers = make(map[*caddyhttp.Server]bool)
	}
	a.brokers[srv] = true
	a.limitTimes(srv)
	srv.RegisterConnContext(withBrokeredConn)

	// There is no socket that QUIC could come by.
	isQUIC := func(protocol string) bool { return protocol == "h3" }
	srv.Protocols = slices.DeleteFunc(slices.Clone(srv.Protocols), isQUIC)
	for i, ps := range srv.ListenProtocols {
		srv.ListenProtocols[i] = slices.DeleteFunc(slices.Clone(ps), isQUIC)
	}

	// A request for another name than the connection's meets no route, or that of another site: Caddy itself
	// refuses it first.
	strict := true
	srv.StrictSNIHost = &strict
	if srv.Errors == nil {
		srv.Errors = new(caddyhttp.HTTPErrorConfig)
	}
	refusing := caddyhttp.Route{Handlers: []caddyhttp.MiddlewareHandler{misdirected{a}}}
	srv.Errors.Routes = append(caddyhttp.RouteList{refusing}, srv.Errors.Routes...)
}

// misdirected records and answers requests for another name than that of their connection.
type misdirected struct{ app *App }

func (m misdirected) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	err, _ := r.Context().Value(caddyhttp.ErrorCtxKey).(error)
	var he caddyhttp.HandlerError
	c := brokeredConnOf(r)
	if !errors.As(err, &he) || he.StatusCode != http.StatusMisdirectedRequest || c == nil {
		return next.ServeHTTP(w, r)
	}
	rec := c.record(r)
	m.app.denied(rec, policy.ReasonNameMismatch, fmt.Errorf("request for %q in a connection to %s", r.Host, c.name))
	answer(w, r, rec, policy.ReasonNameMismatch, http.StatusMisdirectedRequest, rec.Error)
	return nil
}

func brokeredConnOf(r *http.Request) *brokeredConn {
	c, _ := r.Context().Value(brokerConnKey{}).(*brokeredConn)
	return c
}

// record returns the record of a request in the connection.
func (c *brokeredConn) record(r *http.Request) *record {
	rec := &record{listener: c.listener, start: time.Now()}
	rec.Layer, rec.Client, rec.Name, rec.Port = decision.HTTP, addrOf(c.RemoteAddr()), r.Host, c.port
	return rec
}

// brokerage is a request through a site, as its transport sees it.
type brokerage struct {
	exchange
	handler *Broker
	sent    http.Header // what the client has sent, without credentials
	host    string
	err     error // of the transport
}

// brokerageKey is the key of a *brokerage in the context of a request.
type brokerageKey struct{}

// ServeHTTP decides on a request, takes the credentials of the client out of it and has the rest of the site
// handle it.
func (b *Broker) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	c := brokeredConnOf(r)
	if c == nil {
		rec := &record{start: time.Now()}
		rec.Layer, rec.Client, rec.Name, rec.Port = decision.HTTP, clientOfRequest(r), r.Host, portOf(localAddrOf(r))
		b.app.denyRequest(w, r, rec, policy.ReasonNotBrokered, errors.New("the request did not come through the gateway"))
		return nil
	}
	rec := c.record(r)
	if r.ProtoMajor > 1 { // one of many at a time; the connection's place is for one
		if !open.acquire(b.app.MaxTunnels) {
			b.app.denyRequest(w, r, rec, policy.ReasonLimit, b.app.limitError())
			return nil
		}
		defer open.release()
	}
	n, bad := brokerTarget(r, c.port)
	if bad != nil {
		b.app.denyRequest(w, r, rec, bad.reason, bad.err)
		return nil
	}
	rec.Name = n.String()
	if n != c.name {
		b.app.denied(rec, policy.ReasonNameMismatch, fmt.Errorf("request for %s in a connection to %s", n, c.name))
		answer(w, r, rec, policy.ReasonNameMismatch, http.StatusMisdirectedRequest, rec.Error)
		return nil
	}
	sel, set := b.app.decide(rec, n)
	if !rec.Decision.Verdict.Admits() {
		b.app.decided(rec)
		refuseRequest(w, r, rec, nil)
		return nil
	}
	return b.serve(w, r, rec, target{raw: r.Host, name: n, port: c.port}, sel, set, next)
}

// brokerTarget returns the one name that a request is for, on the port of its connection.
func brokerTarget(r *http.Request, port uint16) (policy.Name, *badTarget) {
	u := r.URL
	switch {
	case r.Method == http.MethodConnect, r.Method == http.MethodTrace:
		return policy.Name{}, badRequest("method %s", r.Method) // TRACE returns what was sent, credentials and all
	case u.Opaque != "", u.User != nil, u.Scheme != "" && u.Scheme != "https", (u.Scheme == "") != (u.Host == ""):
		return policy.Name{}, badRequest("target %q, accepted are /path and https://name/path", r.RequestURI)
	}
	if bad := sameInHTTP1(r); bad != nil {
		return policy.Name{}, bad
	}
	n, on, reason, err := parseAuthority(r.Host, port)
	if err != nil {
		return n, &badTarget{reason, err}
	}
	if on != port {
		return n, badRequest("the host is of port %d, and the request came to port %d", on, port)
	}
	return n, nil
}

// serve has the rest of the site handle an admitted request.
func (b *Broker) serve(w http.ResponseWriter, r *http.Request, rec *record, t target, sel policy.Selection, set *policy.Set, next caddyhttp.Handler) error {
	b.clean(r)
	x := &brokerage{handler: b, host: r.Host, sent: maps.Clone(r.Header)}
	x.exchange = exchange{app: b.app, w: w, rec: rec, target: t, sel: sel, set: set, brokered: true}
	ctx, end := x.begin(r.Context())
	defer end()
	r = r.WithContext(context.WithValue(ctx, brokerageKey{}, x))
	fullDuplex(w, r)
	err := next.ServeHTTP(w, r)
	switch {
	case err != nil && x.err != nil:
		x.failed(w, r)
		err = nil
	case x.open == nil: // the site has answered by itself, or the client has left
		if x.err != nil {
			rec.Error = x.err.Error()
		}
		b.app.decided(rec)
	}
	drain(r)
	return err
}

// clean removes from a request what is not for the upstream: the client's credentials, what would make another
// request of it, and upgrades.
func (b *Broker) clean(r *http.Request) {
	b.credentials.removeFrom(r.Header)
	if query := b.credentials.removeFromQuery(r.URL.RawQuery); query != r.URL.RawQuery {
		r.URL.RawQuery = query
		r.RequestURI = r.URL.RequestURI()
	}
	dropUpgrade(r.Header)
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Broker)(nil)
	_ caddyhttp.MiddlewareHandler = (*Broker)(nil)
)
