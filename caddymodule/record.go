package caddymodule

import (
	"net/netip"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// record is one decision, and at the end of a tunnel what became of it: the same fields for every layer, in
// the log as in the metrics.
type record struct {
	layer    string
	client   netip.Addr
	listener string // the policy that the listener names, not logged
	name     string // as the client sent it where it is not canonical
	port     uint16
	decision policy.Decision
	detail   string // for people: which address, which error
	upstream netip.AddrPort
	in, out  int64 // bytes from and to the client
	start    time.Time
	duration time.Duration // since start, when it was logged
}

const layerTLS = "tls"

// Messages of the decision log.
const (
	msgAllowed   = "allowed"
	msgWouldDeny = "would be denied"
	msgDenied    = "denied"
	msgClosed    = "closed"
	msgRevoked   = "closed, no longer allowed"
)

// maxLoggedName bounds a name that is none, in octets: a ClientHello has room for 64 KiB of it.
const maxLoggedName = 255

// decided counts the decision and logs it.
func (a *App) decided(r *record) {
	d := r.decision
	a.metrics.decided(r.layer, d)
	switch {
	case d.Verdict == policy.Allow:
		a.write(zapcore.InfoLevel, msgAllowed, r)
	case d.Verdict == policy.WouldDeny:
		a.write(zapcore.InfoLevel, msgWouldDeny, r)
	default:
		a.write(zapcore.WarnLevel, msgDenied, r)
	}
}

func (a *App) write(level zapcore.Level, msg string, r *record) {
	if ce := a.log.Check(level, msg); ce != nil {
		now := *r // as it is now: a log may encode it later
		now.duration = time.Since(r.start)
		ce.Write(zap.Inline(&now))
	}
}

// MarshalLogObject implements zapcore.ObjectMarshaler.
func (r *record) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	d := &r.decision
	name := r.name
	if len(name) > maxLoggedName {
		name = name[:maxLoggedName]
	}
	var up string
	if r.upstream.IsValid() {
		up = r.upstream.String()
	}
	enc.AddString("layer", r.layer)
	enc.AddString("client", r.client.String())
	enc.AddString("policy", d.Policy)
	enc.AddString("name", name)
	enc.AddUint16("port", r.port)
	enc.AddString("verdict", d.Verdict.String())
	enc.AddString("reason", d.Reason.String())
	enc.AddString("rule", d.Rule.String())
	enc.AddString("upstream", up)
	enc.AddInt64("bytes_in", r.in)
	enc.AddInt64("bytes_out", r.out)
	enc.AddFloat64("duration", r.duration.Seconds())
	if r.detail != "" {
		enc.AddString("error", r.detail)
	}
	if d.Verdict == policy.Allow {
		return nil
	}
	if n, err := policy.ParseName(r.name); err == nil {
		if hint := d.Hint(n, r.port); hint != "" {
			enc.AddString("hint", hint)
		}
	}
	return nil
}
