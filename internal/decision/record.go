// Package decision has the one record that both binaries write of each decision, its form in a log, and the
// folding of denials that a client repeats. It knows neither CoreDNS nor Caddy: they bring their own loggers.
package decision

import (
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// Layer is where a name was read. The set is closed and public: it is a metric label and a field of the log.
type Layer uint8

const (
	DNS      Layer = iota // a question
	TLS                   // a ClientHello
	HTTP                  // a plain request that DNS has sent to the gateway
	Proxy                 // the forward proxy
	Postgres              // a Postgres connection
	layers                // how many there are
)

var layerText = [layers]string{"dns", "tls", "http", "proxy", "postgres"}

// String returns the layer as it stands in logs and metrics, such as "dns".
func (l Layer) String() string {
	if l >= layers {
		return "unknown"
	}
	return layerText[l]
}

// Record is one decision, and at the end of a tunnel what became of it.
type Record struct {
	Time     time.Time       // of the decision
	Layer    Layer           // where the name was read
	Client   netip.Addr      // zero if unknown
	Name     string          // canonical, or as the client sent it where it is no name
	Port     uint16          // 0 in DNS, which does not know it
	Decision policy.Decision // policy, verdict, reason and rule
	Upstream netip.AddrPort  // what was dialled; zero if nothing was
	BytesIn  int64           // from the client
	BytesOut int64           // to the client
	Duration time.Duration   // since the connection was accepted
	Error    string          // for people: which address, which error

	// A Folder sets these. A line with Repeated stands for that many decisions alike, any other line for one;
	// a line with Suppressed for that many of a client, of which nothing else is known.
	Repeated   int
	Suppressed int
}

// Fields of a record, in the order in which they are written. The last four are left out where they have
// nothing to say.
const (
	FieldTime       = "ts" // of AppendLine alone: loggers have their own
	FieldLayer      = "layer"
	FieldClient     = "client"
	FieldPolicy     = "policy"
	FieldName       = "name"
	FieldPort       = "port"
	FieldVerdict    = "verdict"
	FieldReason     = "reason"
	FieldRule       = "rule" // file:line
	FieldUpstream   = "upstream"
	FieldBytesIn    = "bytes_in"
	FieldBytesOut   = "bytes_out"
	FieldDuration   = "duration" // seconds
	FieldError      = "error"
	FieldHint       = "hint" // what to write to have it allowed
	FieldRepeated   = "repeated"
	FieldSuppressed = "suppressed"
)

// Messages of the log, by verdict.
const (
	MsgAllowed    = "allowed"
	MsgWouldDeny  = "would be denied"
	MsgDenied     = "denied"
	MsgSuppressed = "more than is logged"
)

// Message returns what the line of a record begins with.
func (r *Record) Message() string {
	switch {
	case r.Suppressed > 0:
		return MsgSuppressed
	case r.Decision.Verdict == policy.Allow:
		return MsgAllowed
	case r.Decision.Verdict == policy.WouldDeny:
		return MsgWouldDeny
	default:
		return MsgDenied
	}
}

// Encoder takes the fields of a record. Every zapcore.ObjectEncoder is one.
type Encoder interface {
	AddString(key, value string)
	AddByteString(key string, value []byte) // text; value is reused once it returns
	AddInt64(key string, value int64)
	AddFloat64(key string, value float64)
}

// addresses are where the addresses of a record become text.
var addresses = sync.Pool{New: func() any { return new([64]byte) }}

// Encode hands all fields but the time to e. What a client chose is bounded and printable ASCII by then.
func (r *Record) Encode(e Encoder) {
	text := addresses.Get().(*[64]byte)
	defer addresses.Put(text)
	var client, upstream []byte
	if r.Client.IsValid() {
		client = r.Client.AppendTo(text[:0])
	}
	d := &r.Decision
	e.AddString(FieldLayer, r.Layer.String())
	e.AddByteString(FieldClient, client)
	e.AddString(FieldPolicy, d.Policy)
	e.AddString(FieldName, Printable(cut(r.Name, MaxName)))
	e.AddInt64(FieldPort, int64(r.Port))
	e.AddString(FieldVerdict, d.Verdict.String())
	e.AddString(FieldReason, d.Reason.String())
	e.AddString(FieldRule, d.Rule.String())
	if r.Upstream.IsValid() {
		upstream = r.Upstream.AppendTo(text[:0])
	}
	e.AddByteString(FieldUpstream, upstream)
	e.AddInt64(FieldBytesIn, r.BytesIn)
	e.AddInt64(FieldBytesOut, r.BytesOut)
	e.AddFloat64(FieldDuration, r.Duration.Seconds())
	if r.Error != "" {
		e.AddString(FieldError, Printable(cut(r.Error, maxError)))
	}
	if hint := r.hint(); hint != "" {
		e.AddString(FieldHint, hint)
	}
	if r.Repeated > 1 {
		e.AddInt64(FieldRepeated, int64(r.Repeated))
	}
	if r.Suppressed > 0 {
		e.AddInt64(FieldSuppressed, int64(r.Suppressed))
	}
}

// hint returns what to write to have the name allowed, "" if no line can or none is needed.
func (r *Record) hint() string {
	if r.Decision.Verdict == policy.Allow {
		return ""
	}
	n, err := policy.ParseName(r.Name)
	if err != nil {
		return ""
	}
	return r.Decision.Hint(n, r.Port)
}

// Lengths in octets, before control bytes are escaped.
const (
	MaxName  = 255 // a ClientHello has room for 64 KiB of what is no name
	maxError = 1024
)

func cut(s string, most int) string {
	if len(s) > most {
		return s[:most]
	}
	return s
}

// Printable returns s with an escape of Go's syntax in place of whatever is no printable ASCII: a terminal
// obeys more than the control bytes below 0x20, and letters of some scripts turn a line around.
func Printable(s string) string {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] > '~' {
			quoted := strconv.QuoteToASCII(s)
			return quoted[1 : len(quoted)-1]
		}
	}
	return s
}
