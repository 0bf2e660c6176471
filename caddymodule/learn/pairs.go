package learn

import (
	"bytes"
	"strconv"
)

// parsePairs reads what the plugin writes: a message, then key=value for each field, values with other
// characters than those of names quoted as in Go.
func (e *entry) parsePairs(text []byte) kind {
	*e = entry{}
	var seen field
	for len(text) > 0 {
		if text[0] == ' ' {
			text = text[1:]
			continue
		}
		i := bytes.IndexAny(text, "= ")
		if i < 0 || text[i] == ' ' { // a word of the message
			if seen != 0 {
				return malformed
			}
			if i < 0 {
				return other
			}
			e.msg = appendWord(e.msg, text[:i])
			text = text[i:]
			continue
		}
		f := fieldOf(text[:i])
		value, rest, ok := cutValue(text[i+1:])
		if !ok || f != 0 && seen&f != 0 || f != 0 && !e.setPair(f, value) {
			return malformed
		}
		seen |= f
		text = rest
	}
	return e.complete()
}

func appendWord(msg, word []byte) []byte {
	if len(msg) > 0 {
		msg = append(msg, ' ')
	}
	return append(msg, word...)
}

// cutValue cuts a value off, which is quoted or ends at a blank.
func cutValue(text []byte) (value, rest []byte, ok bool) {
	if len(text) == 0 || text[0] != '"' {
		i := bytes.IndexByte(text, ' ')
		if i < 0 {
			i = len(text)
		}
		return text[:i], text[i:], bytes.IndexByte(text[:i], '"') < 0
	}
	quoted, err := strconv.QuotedPrefix(string(text))
	if err != nil {
		return nil, nil, false
	}
	s, err := strconv.Unquote(quoted)
	if err != nil {
		return nil, nil, false
	}
	rest = text[len(quoted):]
	return []byte(s), rest, len(rest) == 0 || rest[0] == ' '
}

// setPair takes a value without its quotes. It reports whether the field takes it.
func (e *entry) setPair(f field, value []byte) bool {
	switch f {
	case fieldMsg, fieldLogger, fieldPlugin: // the plugin has no such fields
		return false
	case fieldPort, fieldRepeated, fieldSuppressed:
		return e.set(f, value)
	case fieldTime:
		e.time = append(append([]byte{'"'}, value...), '"')
	default:
		e.setText(f, value)
	}
	return true
}
