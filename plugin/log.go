package sandboxallow

import (
	"log/slog"
	"net/netip"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// verbosity is which decisions are logged. The zero value logs what is denied, and what a policy in mode
// learn would deny.
type verbosity uint8

const (
	logDenied verbosity = iota
	logAll
	logOff
)

// record logs a decision, one that does not allow within a second.
func (s *SandboxAllow) record(client netip.Addr, qname string, n policy.Name, d policy.Decision) {
	allowed := d.Verdict == policy.Allow
	if s.verbosity == logOff || allowed && s.verbosity != logAll {
		return
	}
	r := decision.Record{Layer: decision.DNS, Client: client, Name: n.String(), Decision: d}
	if n.IsZero() {
		r.Name = qname
	}
	if !allowed {
		s.folder.Hold(&r)
		return
	}
	now := r // r would be on the heap whatever becomes of it
	now.Time = time.Now()
	write(&now)
}

// write writes a record into the log of CoreDNS, as a line or, where that is JSON, with a member for each
// field.
func write(r *decision.Record) {
	if !clog.IsJSON() {
		log.Info(string(r.AppendLine(nil)))
		return
	}
	as := attrs{slog.String("plugin", name), slog.String(decision.FieldTime, decision.FormatTime(r.Time))}
	r.Encode(&as)
	clog.InfoAttrs(r.Message(), as...)
}

// attrs is a decision.Encoder.
type attrs []slog.Attr

func (as *attrs) AddString(key, value string)          { *as = append(*as, slog.String(key, value)) }
func (as *attrs) AddByteString(key string, v []byte)   { *as = append(*as, slog.String(key, string(v))) }
func (as *attrs) AddInt64(key string, value int64)     { *as = append(*as, slog.Int64(key, value)) }
func (as *attrs) AddFloat64(key string, value float64) { *as = append(*as, slog.Float64(key, value)) }
