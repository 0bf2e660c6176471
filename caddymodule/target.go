package caddymodule

import (
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// target is the one host that a request names.
type target struct {
	raw  string // as the client sent it
	name policy.Name
	port uint16
}

// authority returns the Host field to send: the canonical name, and the port if it is not that of http.
func (t target) authority() string {
	if t.port == httpPort {
		return t.name.String()
	}
	return t.address()
}

// address returns name:port.
func (t target) address() string { return fmt.Sprintf("%s:%d", t.name, t.port) }

const (
	httpPort  = 80
	httpsPort = 443
)

// badTarget says why a request does not name one host.
type badTarget struct {
	reason policy.Reason // bad_request or bad_name
	err    error
}

func badRequest(format string, args ...any) *badTarget {
	return &badTarget{policy.ReasonBadRequest, fmt.Errorf(format, args...)}
}

// parse reads the authority t.raw.
func (t *target) parse(byDefault uint16) *badTarget {
	var reason policy.Reason
	var err error
	t.name, t.port, reason, err = parseAuthority(t.raw, byDefault)
	if err != nil {
		return &badTarget{reason, err}
	}
	return nil
}

// hostTarget reads the host of a request that reached port without a proxy being meant: that of the Host
// field, or of an absolute target, which wins over it (RFC 9112 §3.2.2). Either must be of that port.
func hostTarget(r *http.Request, port uint16) (target, *badTarget) {
	t := target{raw: r.Host}
	switch {
	case r.Method == http.MethodConnect:
		return t, badRequest("CONNECT is for the forward proxy")
	case r.TLS != nil:
		return t, badRequest("the request came over TLS, and would go on in clear text")
	}
	if err := oneHost(r); err != nil {
		return t, err
	}
	if err := t.parse(httpPort); err != nil {
		return t, err
	}
	if t.port != port {
		return t, badRequest("the host is of port %d, and the request came to port %d", t.port, port)
	}
	return t, nil
}

// proxyTarget reads the host of a request to the forward proxy that is none of CONNECT: an absolute target of
// http (RFC 9112 §3.2.2), or in HTTP/2 the authority.
func proxyTarget(r *http.Request) (target, *badTarget) {
	t := target{raw: r.Host}
	if r.ProtoMajor == 1 && r.URL.Host == "" {
		return t, badRequest("the target is not absolute, accepted are http://name/path and CONNECT name:port")
	}
	if err := oneHost(r); err != nil {
		return t, err
	}
	if err := t.parse(httpPort); err != nil {
		return t, err
	}
	if t.port == httpsPort {
		return t, badRequest("port %d is of https, which goes by CONNECT", t.port)
	}
	return t, nil
}

// oneHost checks what net/http leaves open about the host of a request, in r.Host: that the target is
// origin-form, or absolute and of http.
func oneHost(r *http.Request) *badTarget {
	u := r.URL
	switch {
	case u.Opaque != "":
		return badRequest("target %q names a host without a scheme", r.RequestURI)
	case u.User != nil:
		return badRequest("the target has a user name")
	case u.Scheme == "https", r.ProtoMajor > 1 && r.TLS != nil:
		return badRequest("https goes by CONNECT, which clients do for a proxy of https URLs (HTTPS_PROXY)")
	case u.Scheme != "" && u.Scheme != "http":
		return badRequest("scheme %q, accepted is http", u.Scheme)
	case u.Scheme != "" && u.Host == "":
		return badRequest("the target has no host")
	case u.Scheme == "" && u.Host != "":
		return badRequest("target %q names a host without a scheme", r.RequestURI)
	}
	if bad := sameInHTTP1(r); bad != nil {
		return bad
	}
	if r.Host == "" {
		return badRequest("no host")
	}
	return nil
}

// sameInHTTP1 checks that a request of HTTP/2 is one in HTTP/1.1 too: that its framing does not carry what would be
// another request line there, nor a Host beside :authority that differs (RFC 9113 §8.3.1).
func sameInHTTP1(r *http.Request) *badTarget {
	if r.ProtoMajor > 1 {
		switch {
		case strings.Contains(r.RequestURI, " "):
			return badRequest("target %q has a space", r.RequestURI)
		case !httpguts.ValidHeaderFieldName(r.Method):
			return badRequest("method %q", r.Method)
		}
	}
	for _, host := range r.Header["Host"] { // HTTP/1 has it in r.Host alone
		if host != r.Host {
			return badRequest("host %q beside authority %q", host, r.Host)
		}
	}
	return nil
}

// connectTarget reads the target of CONNECT, name:port; Host does not matter.
func connectTarget(r *http.Request) (target, *badTarget) {
	t := target{raw: r.RequestURI}
	switch {
	case r.Header.Get(":protocol") != "" || r.ProtoMajor == 3 && r.Proto != "HTTP/3.0": // RFC 8441, RFC 9220
		return t, badRequest("extended CONNECT, accepted is CONNECT name:port")
	case r.ProtoMajor == 1 && r.ContentLength != 0:
		// What comes next is of the tunnel for one reader, and a body for another (RFC 9110 §9.3.6).
		return t, badRequest("CONNECT with a body")
	}
	return t, t.parse(0)
}
