package caddymodule

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
	"github.com/sandboxallow/sandboxallow/internal/upstream"
)

// connect opens the tunnel of an admitted CONNECT. The upstream is connected before the client hears of
// success. What then comes first must be a ClientHello for the very name: a tunnel could lead to any other
// site of the same servers otherwise, or to a proxy that takes CONNECT in turn.
//
// It reports whether the tunnel goes on by itself, at whose end release is called.
func (h *HTTPHandler) connect(w http.ResponseWriter, r *http.Request, rec *record, t target, sel policy.Selection, set *policy.Set, release func()) (goesOn bool) {
	switch h.app.brokering(t.name, t.port) {
	case brokeredHere:
		h.connectToSite(w, r, rec, t, set)
		return false
	case brokeredOnOther:
		if !opaque(rec.Decision, t.port) {
			h.deny(w, r, rec, policy.ReasonNotBrokered, errNoSite)
			return false
		}
	}
	up, err := h.app.dialer.DialSocket(context.WithoutCancel(r.Context()), t.name, t.port, sel.Lifts)
	if err != nil {
		h.deny(w, r, rec, upstream.Reason(err), err)
		return false
	}
	defer up.Close()
	rec.Upstream = up.RemoteAddr()

	client, early, err := takeOver(w, r)
	if err != nil {
		rec.Error = err.Error()
		h.app.decided(rec)
		return false
	}
	defer client.Close()

	first := early
	rec.opaque = opaque(rec.Decision, t.port)
	if !rec.opaque {
		var reason policy.Reason
		if first, reason, err = h.readFirst(client, early, t.name); reason != policy.ReasonNone {
			h.app.denied(rec, reason, err)
			refuse(client, reason)
			return false
		}
	}
	h.app.decided(rec)
	if err != nil {
		rec.Error = err.Error()
		h.app.closed(rec.opened(t.name, nil), rec)
		return false
	}
	if !h.app.passOn(t.name, rec, up, first) {
		return false
	}
	join := func(up *tunnel.Socket, o tunnel.Options) (*tunnel.Tunnel, error) { return tunnel.Join(client, up, o) }
	h.app.tunnel(t.name, set, rec, join, up, release)
	if s, ok := client.(*streamConn); ok && s.broken.Load() {
		panic(http.ErrAbortHandler) // resets the stream
	}
	return true
}

// connectToSite opens the tunnel of an admitted CONNECT to a name that a site brokers. It carries TLS for that name
// even where a rule names the port.
func (h *HTTPHandler) connectToSite(w http.ResponseWriter, r *http.Request, rec *record, t target, set *policy.Set) {
	client, early, err := takeOver(w, r)
	if err != nil {
		rec.Error = err.Error()
		h.app.decided(rec)
		return
	}
	defer client.Close()
	first, reason, err := h.readFirst(client, early, t.name)
	if stream, ok := client.(*streamConn); ok {
		conn, done := h.app.pipe(stream)
		client = conn
		defer func() {
			conn.Close()
			<-done
			if stream.broken.Load() {
				panic(http.ErrAbortHandler) // resets the stream
			}
		}()
	}
	if reason == policy.ReasonNone && err == nil {
		if err = h.app.broker(client, first, t.name, rec, set); err != nil {
			reason = policy.ReasonNotBrokered
		}
	}
	switch {
	case reason != policy.ReasonNone:
		h.app.denied(rec, reason, err)
		refuse(client, reason)
	case err != nil: // nothing came
		rec.Error = err.Error()
		h.app.decided(rec)
	}
}

// opaque reports whether a tunnel may carry what is not TLS: a rule says so by naming the port, which is none
// of those that every name is allowed on (ssh, databases).
func opaque(d policy.Decision, port uint16) bool {
	return d.PortNamed && port != httpPort && port != httpsPort
}

// takeOver tells the client that the tunnel is open, and returns its end and the bytes that came with the
// request.
func takeOver(w http.ResponseWriter, r *http.Request) (client net.Conn, early []byte, err error) {
	rc := http.NewResponseController(w)
	if r.ProtoMajor > 1 {
		w.WriteHeader(http.StatusOK)
		if err := rc.Flush(); err != nil {
			return nil, nil, err
		}
		return newStreamConn(w, rc, r), nil, nil
	}
	client, buffered, err := rc.Hijack()
	if err != nil {
		return nil, nil, err
	}
	early = make([]byte, buffered.Reader.Buffered())
	if _, err = io.ReadFull(buffered.Reader, early); err == nil {
		client.SetDeadline(time.Time{})
		_, err = io.WriteString(client, "HTTP/1.1 200 Connection Established\r\n\r\n")
	}
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return client, early, nil
}

// readFirst reads the ClientHello that a tunnel begins with, which must be for the name that it was opened
// for. It returns what was read. Without a reason the tunnel may go on, with an error to its end.
func (h *HTTPHandler) readFirst(client net.Conn, early []byte, n policy.Name) ([]byte, policy.Reason, error) {
	buf := helloBuffers.Get().(*[]byte)
	defer helloBuffers.Put(buf)
	client.SetReadDeadline(time.Now().Add(time.Duration(h.app.HelloTimeout)))
	rest := bytes.NewReader(early)
	sni, read, err := readHello(io.MultiReader(rest, client), *buf)
	if errors.Is(err, errSilent) {
		return nil, policy.ReasonNone, err
	}
	if err != nil {
		return nil, helloReason(err), err
	}
	got, err := policy.ParseName(sni)
	if err != nil {
		return nil, policy.ReasonBadName, err
	}
	if got != n {
		return nil, policy.ReasonNameMismatch, fmt.Errorf("ClientHello for %s in the tunnel to %s", got, n)
	}
	// More may have come with the request than the ClientHello.
	return append(bytes.Clone(read), early[len(early)-rest.Len():]...), policy.ReasonNone, nil
}
