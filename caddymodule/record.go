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
	ce := a.log.Check(level, msg)
	if ce == nil {
		return
	}
	d := r.decision
	name := r.name
	if len(name) > maxLoggedName {
		name = name[:maxLoggedName]
	}
	var up string
	if r.upstream.IsValid() {
		up = r.upstream.String()
	}
	fields := make([]zap.Field, 0, 15)
	fields = append(fields,
		zap.String("layer", r.layer),
		zap.String("client", r.client.String()),
		zap.String("policy", d.Policy),
		zap.String("name", name),
		zap.Uint16("port", r.port),
		zap.Stringer("verdict", d.Verdict),
		zap.Stringer("reason", d.Reason),
		zap.Stringer("rule", d.Rule),
		zap.String("upstream", up),
		zap.Int64("bytes_in", r.in),
		zap.Int64("bytes_out", r.out),
		zap.Float64("duration", secondsSince(r.start)),
	)
	if r.detail != "" {
		fields = append(fields, zap.String("error", r.detail))
	}
	if n, err := policy.ParseName(r.name); err == nil {
		if hint := d.Hint(n, r.port); hint != "" {
			fields = append(fields, zap.String("hint", hint))
		}
	}
	ce.Write(fields...)
}
