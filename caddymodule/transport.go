package caddymodule

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/caddyserver/caddy/v2/modules/caddytls"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func init() {
	caddy.RegisterModule(new(Transport))
}

// Transport carries requests of sites with `sandboxallow broker` to the server of the name that they were judged for:
// dialled as a tunnel's is, by the policy of the client, with TLS and a certificate for that very name. There is no
// proxy of the environment, no HTTP/3 and no PROXY protocol. What the operator has set in a request does not come
// back in the response, nor does it get into a log.
type Transport struct {
	// Names, as `name` or `name:port`, that a site may reach besides the one that it was asked for.
	Hosts []string `json:"hosts,omitempty"`

	// The certificate authorities that servers are verified by. Default: those of the system.
	TrustPoolRaw json.RawMessage `json:"trust_pool,omitempty" caddy:"namespace=tls.ca_pool.source inline_key=provider"`

	app   *App
	hosts []target
	tls   *tls.Config

	// Fields that get what is in a file or in the environment, whatever their names are, and what their values look
	// like where nothing is missing: none where that is not known.
	secretFields map[string][]*regexp.Regexp
	last         atomic.Pointer[knownValue] // of a secret
}

// CaddyModule returns the Caddy module information.
func (*Transport) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.transport.sandboxallow",
		New: func() caddy.Module { return new(Transport) },
	}
}

// Provision finds the app and loads the certificate authorities.
func (t *Transport) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	t.app = app
	for _, s := range t.Hosts {
		h := target{raw: s}
		if bad := h.parse(httpsPort); bad != nil {
			return fmt.Errorf("hosts: %w", bad.err)
		}
		t.hosts = append(t.hosts, h)
	}
	t.tls = &tls.Config{MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(0)}
	if t.TrustPoolRaw == nil {
		return nil
	}
	mod, err := ctx.LoadModule(t, "TrustPoolRaw")
	if err != nil {
		return fmt.Errorf("trust_pool: %w", err)
	}
	t.tls.RootCAs = mod.(caddytls.CA).CertPool()
	return nil
}

// TLSEnabled implements reverseproxy.TLSTransport: an upstream of http:// is refused.
func (*Transport) TLSEnabled() bool { return true }

// EnableTLS implements reverseproxy.TLSTransport.
func (*Transport) EnableTLS(*reverseproxy.TLSConfig) error { return nil }

// errNotJudged is that of requests which no policy has admitted.
var errNotJudged = errors.New("the request did not come through `sandboxallow broker`, which must stand before reverse_proxy")

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	set := r.Header // by the site: Caddy logs the request with the fields that it has when this returns
	r.Header = make(http.Header)
	x, ok := r.Context().Value(brokerageKey{}).(*brokerage)
	if !ok || x.app != t.app {
		return nil, errNotJudged
	}
	r.Header = x.sent
	resp, err := t.roundTrip(r, set, x)
	if err != nil && x.open != nil && x.open.revoked.Load() != 0 {
		err = fmt.Errorf("no longer allowed: %v", err) // to Caddy a cancelled request is one that the client gave up
	}
	x.err = err
	return resp, err
}

func (t *Transport) roundTrip(r *http.Request, set http.Header, x *brokerage) (*http.Response, error) {
	to := target{raw: r.URL.Host}
	if bad := to.parse(httpsPort); bad != nil {
		return nil, &unsent{bad.err, "the site names no upstream"}
	}
	if same := to.name == x.target.name && to.port == x.target.port; !same && !t.mayReach(to) {
		return nil, &unsent{
			fmt.Errorf("upstream %s of the site of %s, accepted are that one and the hosts of `transport sandboxallow`", to.address(), x.target.address()),
			"the site leads to another name",
		}
	}
	secrets, err := t.secrets(set, x)
	if err != nil {
		return nil, err
	}
	out := t.outgoing(r, set, x, to)
	out = out.WithContext(httptrace.WithClientTrace(out.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			x.clean(http.Header(h), secrets)
			return nil
		},
	}))
	x.transport = t.app.upstreams.by(carriage{sel: x.sel, tls: t.tls})
	resp, err := x.transport.RoundTrip(out)
	if err != nil {
		return nil, secrets.maskError(err)
	}
	return resp, x.incoming(resp, secrets)
}

func (t *Transport) mayReach(to target) bool {
	return slices.ContainsFunc(t.hosts, func(h target) bool { return h.name == to.name && h.port == to.port })
}

// unsent is the error of a request that was admitted, and cannot be sent on.
type unsent struct {
	err  error
	text string // for the client
}

func (e *unsent) Error() string { return e.err.Error() }

// ofTheGateway are fields that Caddy adds, or the client, about who stands between it and the server; and those by
// which the server might hide what the response says.
var ofTheGateway = []string{
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Via", "Early-Data",
	"Sec-WebSocket-Extensions", "Sec-Websocket-Extensions", "Grpc-Accept-Encoding",
}

// outgoing returns the request to send.
func (t *Transport) outgoing(r *http.Request, set http.Header, x *brokerage, to target) *http.Request {
	out := new(http.Request)
	*out = *r
	u := *r.URL
	u.Scheme, u.Host = "https", to.address()
	out.URL = &u
	if out.Host == "" || out.Host == x.host {
		out.Host = to.name.String()
		if to.port != httpsPort {
			out.Host = to.address()
		}
	}
	out.Header = set.Clone()
	for _, name := range ofTheGateway {
		delete(out.Header, name)
	}
	out.Header["Accept-Encoding"] = []string{"identity"}
	// Some servers send a body all the same. On a connection that waits net/http would log how it begins.
	out.Close = out.Method == http.MethodHead
	if out.Body != nil {
		x.handler.credentials.removeFrom(out.Trailer)
		body := &trailedBody{out.Body, out.Trailer, &x.handler.credentials}
		out.Body = &requestBody{body, &x.counters}
	}
	return out
}

// trailedBody is the body of a request that a trailer may follow, in which credentials would come too.
type trailedBody struct {
	io.ReadCloser
	trailer     http.Header
	credentials *credentials
}

func (b *trailedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.credentials.removeFrom(b.trailer)
	}
	return n, err
}

// findSecrets notes which fields get what is in a file or in the environment.
func (t *Transport) findSecrets(h *headers.Handler) {
	if h == nil || h.Request == nil {
		return
	}
	given := make(map[string][]string)
	for name, values := range h.Request.Add {
		name = http.CanonicalHeaderKey(name)
		given[name] = append(given[name], values...)
	}
	for name, values := range h.Request.Set {
		name = http.CanonicalHeaderKey(name)
		given[name] = append(given[name], strings.Join(values, ",")) // as Caddy does
	}
	t.secretFields = make(map[string][]*regexp.Regexp)
	for name, values := range given {
		if !slices.ContainsFunc(values, fromOutside) {
			continue
		}
		for _, v := range values {
			t.secretFields[name] = append(t.secretFields[name], patternOf(v))
		}
	}
	for name, replacements := range h.Request.Replace {
		name = http.CanonicalHeaderKey(name)
		_, filled := t.secretFields[name]
		if filled || slices.ContainsFunc(replacements, func(r headers.Replacement) bool { return fromOutside(r.Replace) }) {
			t.secretFields[name] = nil
		}
		if name == "*" {
			for name := range t.secretFields {
				t.secretFields[name] = nil
			}
		}
	}
}

// fromOutside reports whether a value of the configuration gets what is in a file or in the environment.
func fromOutside(value string) bool {
	return strings.Contains(value, "{file.") || strings.Contains(value, "{env.")
}

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

// patternOf returns what a value of the configuration looks like once its placeholders are filled. The groups are what
// comes out of files and of the environment: something.
func patternOf(value string) *regexp.Regexp {
	pattern, end := `(?s)^\s*`, 0
	value = strings.TrimSpace(value)
	for _, at := range placeholder.FindAllStringIndex(value, -1) {
		pattern += regexp.QuoteMeta(value[end:at[0]])
		if end = at[1]; fromOutside(value[at[0]:end]) {
			pattern += `(\S.*)`
		} else {
			pattern += `.*`
		}
	}
	return regexp.MustCompile(pattern + regexp.QuoteMeta(value[end:]) + `\s*$`)
}

// secrets returns what the operator has set in a request to prove who it is from.
func (t *Transport) secrets(set http.Header, x *brokerage) (*secrets, error) {
	s := new(secrets)
	for name, values := range set {
		patterns, filled := t.secretFields[name]
		credential := filled || x.handler.credentials.inHeader(name)
		if !credential && (slices.Equal(values, x.sent[name]) || isPublic(name)) { // the client's, as most are
			continue
		}
		complete := len(patterns) == 0
		for _, v := range values {
			clients := count(values, v) <= count(x.sent[name], v)
			switch {
			case len(patterns) > 0:
				i := slices.IndexFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(v) })
				switch {
				case i >= 0:
					complete = true
					for _, secret := range patterns[i].FindStringSubmatch(v)[1:] {
						if isScheme(secret) {
							return nil, withoutSecret(name)
						}
						s.addKnown(strings.TrimSpace(secret), &t.last)
					}
				case !clients:
					return nil, withoutSecret(name)
				}
			case clients:
			case !credential:
				s.add(v)
			default:
				scheme, secret, ok := strings.Cut(v, " ")
				if !ok || !isScheme(scheme) {
					secret = v
				}
				secret = strings.TrimSpace(secret)
				if secret == "" || isScheme(secret) {
					return nil, withoutSecret(name)
				}
				s.addKnown(secret, &t.last)
			}
		}
		if !complete {
			return nil, withoutSecret(name)
		}
	}
	return s, nil
}

func count(values []string, v string) int {
	n := 0
	for _, value := range values {
		if value == v {
			n++
		}
	}
	return n
}

func withoutSecret(name string) error {
	return &unsent{
		fmt.Errorf("the field %s is without its secret: is the file missing or empty?", name),
		"the gateway lacks the credential for this name",
	}
}

// isPublic reports whether what the operator sets in a field is no secret unless it comes out of a file: it tells of the
// client or of what it wants, and responses say the same.
func isPublic(name string) bool {
	name = fold(name)
	kind, _, _ := strings.Cut(name, "-")
	return slices.Contains(publicFields, name) || slices.Contains(publicKinds, kind) ||
		strings.HasSuffix(name, "-version") || strings.HasSuffix(name, "-beta")
}

var (
	publicFields = []string{
		"baggage", "connection", "early-data", "expect", "forwarded", "from", "host", "incremental", "keep-alive", "origin", "pragma",
		"priority", "range", "referer", "te", "traceparent", "tracestate", "trailer", "transfer-encoding", "upgrade", "user-agent",
		"via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-requested-with",
	}
	publicKinds = []string{"accept", "cache", "content", "if", "sec"}
)

// schemes are what stands before a credential (RFC 9110 §11.4), and what is left where a secret is missing.
var schemes = []string{"apikey", "basic", "bearer", "token"}

func isScheme(s string) bool { return slices.Contains(schemes, strings.ToLower(strings.TrimSpace(s))) }

// incoming prepares a response for the client.
func (x *brokerage) incoming(resp *http.Response, s *secrets) error {
	h := resp.Header
	x.clean(h, s)
	if r := resp.Request; r.ProtoMajor == 1 && x.counters.In.Load() == 0 && expectsContinue(r) {
		x.w.Header().Set("Connection", "close")
	}
	resp.Status = s.mask(resp.Status)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		conversation := strings.HasPrefix(h.Get("Content-Type"), "application/grpc")
		body := s.maskBody(resp.Body, !conversation, func() { s.maskHeader(resp.Trailer) })
		resp.Body = &responseBody{body, &x.exchange}
		return nil
	}
	conn, err := x.upgraded(resp)
	if err != nil {
		return err
	}
	resp.Body = &maskedConn{conn, s.maskBody(conn, false, func() {})}
	return nil
}

// clean removes from the head of a response, or of one that comes before it, what is not for the client.
func (x *brokerage) clean(h http.Header, s *secrets) {
	h.Del("Alt-Svc") // which is about the server
	if !x.handler.credentials.kept("cookie") {
		h.Del("Set-Cookie") // of a session that the operator's credential has begun
	}
	s.maskHeader(h)
}

// maskedConn is a WebSocket to an upstream.
type maskedConn struct {
	*upgradedConn
	masked io.Reader
}

func (c *maskedConn) Read(p []byte) (int, error) { return c.masked.Read(p) }

// failed answers for a transport that has brought no response.
func (x *brokerage) failed(w http.ResponseWriter, r *http.Request) {
	var no *unsent
	if !errors.As(x.err, &no) {
		failed(w, r, x.err)
		return
	}
	x.app.denied(x.rec, policy.ReasonNotBrokered, no)
	answer(w, r, x.rec, policy.ReasonNotBrokered, http.StatusBadGateway, no.text)
}

// UnmarshalCaddyfile sets up the transport. Syntax:
//
//	transport sandboxallow {
//		hosts          <name[:port]>...
//		tls_trust_pool <module> {
//			...
//		}
//	}
func (t *Transport) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the transport's name
	if d.NextArg() {
		return d.ArgErr()
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		switch option := d.Val(); option {
		case "hosts":
			hosts := d.RemainingArgs()
			if len(hosts) == 0 {
				return d.ArgErr()
			}
			t.Hosts = append(t.Hosts, hosts...)
		case "tls_trust_pool":
			if t.TrustPoolRaw != nil {
				return d.Err("tls_trust_pool is given twice")
			}
			if !d.NextArg() {
				return d.ArgErr()
			}
			provider := d.Val()
			mod, err := caddyfile.UnmarshalModule(d, "tls.ca_pool.source."+provider)
			if err != nil {
				return err
			}
			t.TrustPoolRaw = caddyconfig.JSONModuleObject(mod, "provider", provider, nil)
		default:
			return d.Errf("unknown option %q, accepted are hosts and tls_trust_pool", option)
		}
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner         = (*Transport)(nil)
	_ http.RoundTripper         = (*Transport)(nil)
	_ reverseproxy.TLSTransport = (*Transport)(nil)
	_ caddyfile.Unmarshaler     = (*Transport)(nil)
)
