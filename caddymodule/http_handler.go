package caddymodule

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"
	"golang.org/x/net/http/httpguts"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/upstream"
)

func init() {
	caddy.RegisterModule(new(HTTPHandler))
}

// HTTPHandler decides on each HTTP request by the host that it names and the policy for the client's address,
// resolves the name, refuses private addresses, and forwards the request. Two ways lead here: a client that
// DNS has sent, whose requests name their host in the Host field, and, as a forward proxy, a client that means
// a proxy, with CONNECT and absolute targets.
//
// It is the end of its route.
type HTTPHandler struct {
	// Be a forward proxy: take CONNECT name:port and absolute http:// targets, and nothing else.
	ForwardProxy bool `json:"forward_proxy,omitempty"`

	// The port that rules are checked against, that is dialled, and that the Host field means. Default: the
	// one the client connected to. Not for a forward proxy, whose clients say the port.
	UpstreamPort uint16 `json:"upstream_port,omitempty"`

	// The name of a policy that must admit the request too, besides the one for the client's address.
	Policy string `json:"policy,omitempty"`

	// Where `policy` stands in a Caddyfile, for the error if there is no such policy.
	PolicyAt string `json:"policy_at,omitempty"`

	// The accounts that may use a forward proxy (Proxy-Authorization), as for Caddy's own basic
	// authentication. Default: no account is needed.
	BasicAuth *caddyauth.HTTPBasicAuth `json:"basic_auth,omitempty"`

	app *App
}

// CaddyModule returns the Caddy module information.
func (*HTTPHandler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.sandboxallow",
		New: func() caddy.Module { return new(HTTPHandler) },
	}
}

// Provision finds the app and has the connections of its server counted.
func (h *HTTPHandler) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	h.app = app
	if h.ForwardProxy {
		app.feeders++
	}
	if err := app.needPolicy(h.Policy, h.PolicyAt); err != nil {
		return err
	}
	if h.BasicAuth != nil {
		if err := h.BasicAuth.Provision(ctx); err != nil {
			return fmt.Errorf("basic_auth: %w", err)
		}
	}
	srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return errors.New("sandboxallow must stand in a server of the http app")
	}
	app.guard(srv)
	return nil
}

// Validate refuses options that contradict each other.
func (h *HTTPHandler) Validate() error {
	switch {
	case h.ForwardProxy && h.UpstreamPort != 0:
		return errors.New("upstream_port is not for a forward proxy, whose clients say the port")
	case !h.ForwardProxy && h.BasicAuth != nil:
		return errors.New("basic_auth is for a forward proxy: clients that know of no proxy have no password for it")
	}
	return nil
}

// ServeHTTP decides on a request and forwards it, or answers why not. What goes wrong is in the decision log;
// there is nothing left for Caddy to report.
func (h *HTTPHandler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	defer h.countPanic()
	w.Header().Del("Server")  // of whom we are not
	w.Header().Del("Alt-Svc") // which is about the proxy
	fullDuplex(w, r)
	h.serve(w, r)
	drain(r)
	return nil
}

func (h *HTTPHandler) serve(w http.ResponseWriter, r *http.Request) {
	rec := &record{listener: h.Policy, start: time.Now()}
	rec.Layer, rec.Client = decision.HTTP, clientOfRequest(r)
	if h.ForwardProxy {
		rec.Layer = decision.Proxy
	}
	leave, ok := h.app.enterRequest(r)
	if !ok {
		h.deny(w, r, rec, policy.ReasonLimit, h.app.limitError())
		return
	}
	leave = sync.OnceFunc(leave)
	goesOn := false
	defer func() {
		if !goesOn {
			leave()
		}
	}()
	if h.welcome(w, r) {
		return
	}
	t, bad := h.target(r)
	rec.Name, rec.Port = t.raw, t.port
	if !h.authenticated(w, r) {
		h.deny(w, r, rec, policy.ReasonAuthRequired, errors.New("no account with this password in Proxy-Authorization"))
		return
	}
	if bad != nil {
		h.deny(w, r, rec, bad.reason, bad.err)
		return
	}
	rec.Name = t.name.String()

	sel, set := h.app.decide(rec, t.name)
	if !rec.Decision.Verdict.Admits() {
		h.app.decided(rec)
		refuseRequest(w, r, rec, nil)
		return
	}
	switch {
	case r.Method == http.MethodConnect:
		goesOn = h.connect(w, r, rec, t, sel, set, leave)
	case h.app.brokering(t.name, t.port) != notBrokered: // its credentials are not for clear text
		h.deny(w, r, rec, policy.ReasonPlaintextRefused, errors.New("use https: a site brokers the name, which is reached over TLS alone"))
	default:
		h.forward(w, r, rec, t, sel, set)
	}
}

// fullDuplex lets a response begin while the request still comes. Without it net/http first reads what is left
// of the body, up to 256 KiB: that takes it from the upstream, and waits for a client that waits for leave to
// send it.
func fullDuplex(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		http.NewResponseController(w).EnableFullDuplex()
	}
}

// drain reads what is left of a body, as net/http would have: it cannot read the next request from the same
// connection when it finds the end of a body itself with full duplex on.
func drain(r *http.Request) {
	if r.ProtoMajor == 1 && r.ContentLength != 0 && !expectsContinue(r) {
		io.CopyN(io.Discard, r.Body, maxDrained)
	}
}

// maxDrained is how many octets of a body are read that nobody wants, before the connection is closed instead.
const maxDrained = 256 << 10

// expectsContinue reports whether a client waits for leave to send the body (Expect: 100-continue). If it gets
// a response instead, the connection has to end with it: nobody knows whether the body comes next.
func expectsContinue(r *http.Request) bool {
	return r.ContentLength != 0 && httpguts.HeaderValuesContainsToken(r.Header["Expect"], "100-continue")
}

// countPanic counts a panic, which net/http recovers from. http.ErrAbortHandler is none, but how a response is
// broken off.
func (h *HTTPHandler) countPanic() {
	switch p := recover(); p {
	case nil:
	case http.ErrAbortHandler:
		panic(p)
	default:
		h.app.panicked("panic in request handler", p, debug.Stack())
		panic(http.ErrAbortHandler)
	}
}

// target returns the one host that a request names.
func (h *HTTPHandler) target(r *http.Request) (target, *badTarget) {
	switch {
	case h.ForwardProxy && r.Method == http.MethodConnect:
		return connectTarget(r)
	case h.ForwardProxy:
		return proxyTarget(r)
	}
	port := h.UpstreamPort
	if port == 0 {
		port = portOf(localAddrOf(r))
	}
	return hostTarget(r, port)
}

// authenticated checks the account that a client of a forward proxy gives.
func (h *HTTPHandler) authenticated(w http.ResponseWriter, r *http.Request) bool {
	if h.BasicAuth == nil {
		return true
	}
	// Caddy's provider reads and asks for what servers do (RFC 9110 §11.6, §11.7).
	asServer := &http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	_, ok, err := h.BasicAuth.Authenticate(w, asServer)
	if challenge := w.Header()["Www-Authenticate"]; challenge != nil {
		w.Header().Del("Www-Authenticate")
		w.Header()["Proxy-Authenticate"] = challenge
	}
	return ok && err == nil
}

// deny records a denial that is not the policy's and tells the client.
func (h *HTTPHandler) deny(w http.ResponseWriter, r *http.Request, rec *record, reason policy.Reason, err error) {
	h.app.denyRequest(w, r, rec, reason, err)
}

// denyRequest records a denial that is not the policy's and tells the client.
func (a *App) denyRequest(w http.ResponseWriter, r *http.Request, rec *record, reason policy.Reason, err error) {
	a.denied(rec, reason, err)
	refuseRequest(w, r, rec, err)
}

// refuseRequest tells the client of a denial.
func refuseRequest(w http.ResponseWriter, r *http.Request, rec *record, err error) {
	reason := rec.Decision.Reason
	answer(w, r, rec, reason, statusFor(reason, err != nil && upstream.TimedOut(err)), rec.excuse(reason))
}

// excuse is what a client is told about a denial, besides its reason: what it has asked for, and no more of
// the policy than it can find out.
func (r *record) excuse(reason policy.Reason) string {
	switch reason {
	case policy.ReasonBadRequest, policy.ReasonBadName, policy.ReasonAuthRequired, policy.ReasonLimit,
		policy.ReasonPlaintextRefused:
		return r.Error
	case policy.ReasonNoName:
		return "the ClientHello names no server"
	case policy.ReasonNotAllowed:
		return fmt.Sprintf("%s is not in the list of names that this sandbox may reach", r.Name)
	case policy.ReasonDenied:
		return fmt.Sprintf("%s is denied to this sandbox", r.Name)
	case policy.ReasonPortNotAllowed:
		return fmt.Sprintf("%s is allowed to this sandbox, but not on port %d", r.Name, r.Port)
	case policy.ReasonNoPolicy:
		return fmt.Sprintf("no policy is for the address %v", r.Client)
	case policy.ReasonPrivateAddress:
		return fmt.Sprintf("%s has no address but such that may not be reached", r.Name)
	case policy.ReasonNoAddress:
		return fmt.Sprintf("%s does not exist or has no address", r.Name)
	case policy.ReasonResolverError:
		return fmt.Sprintf("%s could not be resolved", r.Name)
	case policy.ReasonUpstreamNoTLS:
		return fmt.Sprintf("%s:%d does not take up TLS", r.Name, r.Port)
	case policy.ReasonNotBrokered:
		return fmt.Sprintf("no site brokers %s", r.Name)
	}
	return fmt.Sprintf("%s:%d could not be connected to", r.Name, r.Port)
}

// clientOfRequest returns the address that selects the policy, the zero value where the client has none. It is
// the connection's: what a field says of another one is the client's word.
func clientOfRequest(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
}

func localAddrOf(r *http.Request) net.Addr {
	a, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return a
}

// Interface guards
var (
	_ caddy.Provisioner           = (*HTTPHandler)(nil)
	_ caddy.Validator             = (*HTTPHandler)(nil)
	_ caddyhttp.MiddlewareHandler = (*HTTPHandler)(nil)
)
