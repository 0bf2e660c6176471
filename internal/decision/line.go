package decision

import (
	"strconv"
	"sync"
	"time"
)

// timeLayout is RFC 3339 with milliseconds, always of one length.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// AppendLine appends the record as a line without its end: the message, then key=value pairs with a blank
// between them, values quoted where they would be ambiguous. Whatever the record holds, the line is
// printable ASCII. A rule and a hint are the only parts that cost an allocation beyond those of b.
func (r *Record) AppendLine(b []byte) []byte {
	l := lines.Get().(*line)
	l.b = append(b, r.Message()...)
	l.key(FieldTime)
	l.b = r.Time.UTC().AppendFormat(l.b, timeLayout)
	r.Encode(l)
	b, l.b = l.b, nil
	lines.Put(l)
	return b
}

// FormatTime returns a time as it stands in a line.
func FormatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

var lines = sync.Pool{New: func() any { return new(line) }}

// line is an Encoder.
type line struct{ b []byte }

func (l *line) key(key string) {
	l.b = append(l.b, ' ')
	l.b = append(l.b, key...)
	l.b = append(l.b, '=')
}

// AddString implements Encoder.
func (l *line) AddString(key, value string) {
	l.key(key)
	l.b = appendValue(l.b, value)
}

// AddByteString implements Encoder.
func (l *line) AddByteString(key string, value []byte) {
	l.key(key)
	l.b = appendValue(l.b, value)
}

// AddInt64 implements Encoder.
func (l *line) AddInt64(key string, value int64) {
	l.key(key)
	l.b = strconv.AppendInt(l.b, value, 10)
}

// AddFloat64 implements Encoder.
func (l *line) AddFloat64(key string, value float64) {
	l.key(key)
	l.b = strconv.AppendFloat(l.b, value, 'f', -1, 64)
}

// appendValue appends a value, in the quotes and escapes of Go's syntax if it is no plain word.
func appendValue[T string | []byte](b []byte, value T) []byte {
	for i := 0; i < len(value); i++ {
		if c := value[i]; c <= ' ' || c > '~' || c == '"' || c == '=' || c == '\\' {
			return strconv.AppendQuoteToASCII(b, string(value))
		}
	}
	return append(b, value...)
}
