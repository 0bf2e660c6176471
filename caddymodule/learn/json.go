package learn

import (
	"encoding/json"
	"errors"

	"github.com/sandboxallow/sandboxallow/internal/decision"
)

// parseJSON reads a line of Caddy's JSON log, or of CoreDNS's.
func (e *entry) parseJSON(line []byte) kind {
	if k := e.scan(line); k != unsure {
		return k
	}
	return e.decode(line)
}

// decode reads a line as encoding/json does.
func (e *entry) decode(line []byte) kind {
	var r struct {
		TS      json.RawMessage `json:"ts"`
		Logger  string          `json:"logger"` // Caddy's
		Plugin  string          `json:"plugin"` // CoreDNS's
		Msg     string          `json:"msg"`
		Layer   string          `json:"layer"`
		Client  string          `json:"client"`
		Policy  string          `json:"policy"`
		Name    string          `json:"name"`
		Port    uint16          `json:"port"`
		Verdict string          `json:"verdict"`
		Reason  string          `json:"reason"`

		Upstream string `json:"upstream"`
		Repeated uint64 `json:"repeated"`

		Suppressed uint64 `json:"suppressed"`
	}
	err := json.Unmarshal(line, &r)
	if _, wrongType := errors.AsType[*json.UnmarshalTypeError](err); wrongType && !isOurs(r.Logger, r.Plugin) {
		return other // the fields mean something else there
	}
	if err != nil || r.Repeated > maxCount || r.Suppressed > maxCount {
		return malformed
	}
	if !isOurs(r.Logger, r.Plugin) {
		return other
	}
	*e = entry{
		time: r.TS, msg: []byte(r.Msg), layer: []byte(r.Layer), client: []byte(r.Client), policy: []byte(r.Policy),
		name: []byte(r.Name), verdict: []byte(r.Verdict), reason: []byte(r.Reason), port: r.Port,
		upstream: []byte(r.Upstream), repeated: r.Repeated, suppressed: r.Suppressed,
	}
	return e.complete()
}

// isOurs reports whether Caddy's logger is ours or, where the line is not Caddy's, CoreDNS's plugin.
func isOurs[T string | []byte](caddyLogger, plugin T) bool {
	return string(caddyLogger) == logger || len(caddyLogger) == 0 && string(plugin) == logger
}

// scan reads a line in the form that Caddy writes: one object without blanks. It allocates nothing, and leaves
// whatever else JSON allows, and all that is wrong, to decode: what scan says, decode would say as well. Lines
// of other loggers are the exception: they are not read to their ends.
func (e *entry) scan(b []byte) kind {
	*e = entry{}
	if len(b) == 0 || b[0] != '{' {
		return unsure
	}
	var caddyLogger, plugin []byte
	var seen field
	for i := 1; ; {
		key, next := scanKey(b, i)
		f := fieldOf(key)
		value, end := scanValue(b, next, f != 0)
		if end < 0 || end == len(b) || seen&f != 0 {
			return unsure
		}
		seen |= f
		switch f {
		case fieldLogger:
			caddyLogger = unquoted(value)
			if len(caddyLogger) > 0 && string(caddyLogger) != logger {
				return other
			}
		case fieldPlugin:
			plugin = unquoted(value)
		}
		if f != 0 && !e.set(f, value) {
			return unsure
		}
		switch {
		case b[end] == ',':
			i = end + 1
		case b[end] != '}' || end != len(b)-1:
			return unsure
		case !isOurs(caddyLogger, plugin):
			return other
		default:
			return e.complete()
		}
	}
}

// field is a field that scan wants, or a set of them.
type field uint16

const (
	fieldLogger field = 1 << iota
	fieldPlugin
	fieldMsg
	fieldTime
	fieldLayer
	fieldClient
	fieldPolicy
	fieldName
	fieldPort
	fieldVerdict
	fieldReason
	fieldUpstream
	fieldRepeated
	fieldSuppressed
)

// fieldOf returns the field of a key, 0 for one of no interest.
func fieldOf(key []byte) field {
	switch string(key) {
	case "logger":
		return fieldLogger
	case "plugin":
		return fieldPlugin
	case "msg":
		return fieldMsg
	case decision.FieldTime:
		return fieldTime
	case decision.FieldLayer:
		return fieldLayer
	case decision.FieldClient:
		return fieldClient
	case decision.FieldPolicy:
		return fieldPolicy
	case decision.FieldName:
		return fieldName
	case decision.FieldPort:
		return fieldPort
	case decision.FieldVerdict:
		return fieldVerdict
	case decision.FieldReason:
		return fieldReason
	case decision.FieldUpstream:
		return fieldUpstream
	case decision.FieldRepeated:
		return fieldRepeated
	case decision.FieldSuppressed:
		return fieldSuppressed
	}
	return 0
}

// set takes a value that is a number, or a string without escapes in its quotes. It reports whether the field
// takes it.
func (e *entry) set(f field, value []byte) bool {
	switch f {
	case fieldTime:
		e.time = value
		return true
	case fieldPort:
		n, ok := decimal(value, 1<<16-1)
		e.port = uint16(n)
		return ok
	case fieldRepeated:
		n, ok := decimal(value, maxCount)
		e.repeated = n
		return ok
	case fieldSuppressed:
		n, ok := decimal(value, maxCount)
		e.suppressed = n
		return ok
	}
	if value[0] != '"' {
		return false
	}
	e.setText(f, unquoted(value))
	return true
}

func (e *entry) setText(f field, value []byte) {
	switch f {
	case fieldMsg:
		e.msg = value
	case fieldLayer:
		e.layer = value
	case fieldClient:
		e.client = value
	case fieldPolicy:
		e.policy = value
	case fieldName:
		e.name = value
	case fieldVerdict:
		e.verdict = value
	case fieldReason:
		e.reason = value
	case fieldUpstream:
		e.upstream = value
	}
}

// unquoted returns what stands between quotes; of a number nothing.
func unquoted(value []byte) []byte {
	if value[0] != '"' {
		return nil
	}
	return value[1 : len(value)-1]
}

// decimal parses digits alone, up to most. Nineteen fit 64 bits.
func decimal(b []byte, most uint64) (n uint64, ok bool) {
	if len(b) == 0 || len(b) > 19 || b[0] == '0' && len(b) > 1 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, n <= most
}

// scanKey returns the key that begins at i and where its value begins, -1 if it is no key as Caddy writes them.
// Letters of other case are none: encoding/json takes "Name" for "name".
func scanKey(b []byte, i int) (key []byte, next int) {
	if i >= len(b) || b[i] != '"' {
		return nil, -1
	}
	start := i + 1
	for i = start; i < len(b) && ('a' <= b[i] && b[i] <= 'z' || '0' <= b[i] && b[i] <= '9' || b[i] == '_'); i++ {
	}
	if i+1 >= len(b) || b[i] != '"' || b[i+1] != ':' {
		return nil, -1
	}
	return b[start:i], i + 2
}

// scanValue returns the string with its quotes, the number or the literal that begins at i, and where it ends,
// -1 if there is none. If it is plain, it is a number, or a string of ASCII without escapes.
func scanValue(b []byte, i int, plain bool) (value []byte, end int) {
	if i < 0 || i >= len(b) {
		return nil, -1
	}
	switch c := b[i]; {
	case c == '"':
		end = scanString(b, i+1, plain)
	case c == '-' || '0' <= c && c <= '9':
		end = scanNumber(b, i)
	case plain:
		return nil, -1
	default:
		end = scanLiteral(b, i)
	}
	if end < 0 {
		return nil, -1
	}
	return b[i:end], end
}

// ordinary are the octets that stand for themselves in a string, and are ASCII.
var ordinary = func() (t [256]bool) {
	for c := ' '; c < 0x80; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// scanString returns where a string ends that begins behind the quote before i (RFC 8259 §7).
func scanString(b []byte, i int, plain bool) int {
	for {
		for i < len(b) && ordinary[b[i]] {
			i++
		}
		switch {
		case i == len(b):
			return -1
		case b[i] == '"':
			return i + 1
		case b[i] < ' ', plain:
			return -1
		case b[i] == '\\':
			if i = scanEscape(b, i+1); i < 0 {
				return -1
			}
		default: // encoding/json takes octets that are no UTF-8, too
			i++
		}
	}
}

// scanEscape returns where an escape ends that begins with the backslash before i.
func scanEscape(b []byte, i int) int {
	if i == len(b) {
		return -1
	}
	switch b[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1
	case 'u':
		if i+4 < len(b) && isHex(b[i+1:i+5]) {
			return i + 5
		}
	}
	return -1
}

func isHex(b []byte) bool {
	for _, c := range b {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
			return false
		}
	}
	return true
}

// scanNumber returns where a number ends that begins at i (RFC 8259 §6).
func scanNumber(b []byte, i int) int {
	if b[i] == '-' {
		i++
	}
	zero := i < len(b) && b[i] == '0'
	end := digits(b, i)
	if end == i || zero && end > i+1 {
		return -1
	}
	if i = end; i < len(b) && b[i] == '.' {
		if end = digits(b, i+1); end == i+1 {
			return -1
		}
		i = end
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if end = digits(b, i); end == i {
			return -1
		}
		i = end
	}
	return i
}

func digits(b []byte, i int) int {
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	return i
}

func scanLiteral(b []byte, i int) int {
	for _, s := range []string{"true", "false", "null"} {
		if end := i + len(s); end <= len(b) && string(b[i:end]) == s {
			return end
		}
	}
	return -1
}
