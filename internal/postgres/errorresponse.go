package postgres

import "encoding/binary"

// Codes of errors (SQLSTATE, appendix A of the PostgreSQL documentation).
const (
	CodeInvalidAuthorization = "28000"
	CodeConnectionFailure    = "08006"
	CodeTooManyConnections   = "53300"
)

// Fatal is an error after which the connection is closed.
type Fatal struct {
	Code    string
	Message string // one line
	Hint    string // what to do about it; left out if empty
}

// maxField is how many octets of a text are sent. libpq takes 30,000 for a whole message before a session is begun.
const maxField = 1024

// Append appends the error to b as an ErrorResponse. Texts are cut to 1,024 octets and end at a NUL, which would
// end them on the other side.
func (f *Fatal) Append(b []byte) []byte {
	start := len(b) + 1
	b = append(b, 'E', 0, 0, 0, 0)
	for _, field := range []struct {
		kind byte
		text string
	}{
		{'S', "FATAL"},
		{'V', "FATAL"}, // the same, never translated
		{'C', f.Code},
		{'M', f.Message},
		{'H', f.Hint},
	} {
		if field.text == "" {
			continue
		}
		b = append(b, field.kind)
		for i := 0; i < min(len(field.text), maxField) && field.text[i] != 0; i++ {
			b = append(b, field.text[i])
		}
		b = append(b, 0)
	}
	b = append(b, 0)
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start))
	return b
}
