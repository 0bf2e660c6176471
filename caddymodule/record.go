package caddymodule

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// record is a decision as it is being made.
type record struct {
	decision.Record
	listener string // the policy that the listener names
	early    int64  // octets of the client that the upstream got before the tunnel began
	opaque   bool   // its tunnel may carry what is not TLS for the name
	start    time.Time
	logged   sync.Once
}

// Messages of the decision log, besides those of a decision itself.
const (
	msgClosed  = "closed"
	msgRevoked = "closed, no longer allowed"
)

// newFolder makes what folds denials that clients repeat. Tests have each denial be a line of its own.
var newFolder = decision.NewFolder

// decided counts the decision and logs it, unless it is a denial that the client repeats: those are folded. Called
// again it does nothing, but for waiting until that is done.
func (a *App) decided(r *record) {
	r.logged.Do(func() {
		a.metrics.decided(r.Layer, r.Decision)
		recent.decided(r)
		r.Duration = time.Since(r.start)
		if r.Decision.Verdict == policy.Deny && !a.folder.Admit(&r.Record) {
			return
		}
		a.write(r.Message(), r)
	})
}

// write writes a line of the decision log.
func (a *App) write(msg string, r *record) {
	if ce := a.log.Check(levelOf(&r.Record, msg), msg); ce != nil {
		now := r.Record // as it is now: a log may encode it later
		now.Duration = time.Since(r.start)
		ce.Write(zap.Inline(loggable{&now}))
	}
}

// writeFolded writes the line of denials that have been folded. It has the time of the first of them.
func (a *App) writeFolded(r *decision.Record) {
	msg := r.Message()
	if ce := a.log.Check(levelOf(r, msg), msg); ce != nil {
		if !r.Time.IsZero() {
			ce.Time = r.Time
		}
		now := *r
		ce.Write(zap.Inline(loggable{&now}))
	}
}

func levelOf(r *decision.Record, msg string) zapcore.Level {
	if r.Decision.Verdict == policy.Deny || msg == msgRevoked {
		return zapcore.WarnLevel
	}
	return zapcore.InfoLevel
}

// loggable is a record for zap.
type loggable struct{ *decision.Record }

// MarshalLogObject implements zapcore.ObjectMarshaler.
func (l loggable) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	l.Encode(enc)
	return nil
}
