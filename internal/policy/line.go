package policy

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/coredns/caddy/caddyfile"
)

// Line is one directive of a policy body with the words that stood on its line, whatever lexer read it:
// a document's, a Corefile's or a Caddyfile's.
type Line struct {
	File  string   `json:"file"`
	Line  int      `json:"line"`
	Words []string `json:"words"`
}

// place returns "file:line".
func (l Line) place() string { return fmt.Sprintf("%s:%d", l.File, l.Line) }

func (l Line) errorf(format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", l.File, l.Line, fmt.Errorf(format, args...))
}

// lex splits a document into its lines of words, without comments and empty lines.
func lex(file, text string) ([]Line, error) {
	if err := checkText(file, text); err != nil {
		return nil, err
	}
	var lines []Line
	d := caddyfile.NewDispenser(file, strings.NewReader(text))
	for d.Next() {
		if n := len(lines); n == 0 || lines[n-1].Line != d.Line() {
			lines = append(lines, Line{File: file, Line: d.Line()})
		}
		l := &lines[len(lines)-1]
		l.Words = append(l.Words, d.Val())
	}
	return lines, nil
}

const byteOrderMark = "\ufeff"

// checkText refuses what would read differently than it looks, before any lexer sees it: the lexer of
// Corefiles drops a carriage return in mid-word, takes a no-break space for a blank and ends a word at a
// '#' that is part of it. Quotes have no use here, and an unclosed one would swallow the rest.
func checkText(file, text string) error {
	text = strings.TrimPrefix(text, byteOrderMark)
	line, blank := 1, true // blank: at the start of a line or behind a blank
	comment := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c < utf8.RuneSelf {
			switch {
			case c == '\n':
				line, blank, comment = line+1, true, false
				continue
			case c == '\r' && (i+1 == len(text) || text[i+1] != '\n'):
				return fmt.Errorf("%s:%d: carriage return without a line feed, accepted line ends are LF and CRLF", file, line)
			case c < ' ' && c != '\t' && c != '\r', c == 0x7f:
				return fmt.Errorf("%s:%d: control character %#02x, accepted is UTF-8 text", file, line, c)
			case comment:
			case c == '#' && !blank:
				return fmt.Errorf("%s:%d: '#' inside a word, put a blank before a comment", file, line)
			case c == '#':
				comment = true
			case c == '"':
				return fmt.Errorf("%s:%d: quotes are not accepted, write the words as they are", file, line)
			}
			blank = c == ' ' || c == '\t'
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return fmt.Errorf("%s:%d: byte %#02x is not UTF-8, accepted is UTF-8 text", file, line, c)
		case unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp): // in comments too
			return fmt.Errorf("%s:%d: character %U changes how the text around it is shown, leave it out", file, line, r)
		case !comment && (unicode.IsSpace(r) || unicode.In(r, unicode.Cf, unicode.Z, unicode.Cc)):
			return fmt.Errorf("%s:%d: invisible character %U, accepted blanks are space and tab", file, line, r)
		}
		blank = false
		i += size - 1
	}
	return nil
}

// listLines calls f with each rule of a list, which has one rule a line; text has passed checkText.
func listLines(text string, f func(line int, rule string) error) error {
	text = strings.TrimPrefix(text, byteOrderMark)
	for line := 1; text != ""; line++ {
		var l string
		l, text, _ = strings.Cut(text, "\n")
		if i := strings.IndexByte(l, '#'); i >= 0 {
			l = l[:i]
		}
		if l = strings.Trim(l, " \t\r"); l == "" {
			continue
		}
		if err := f(line, l); err != nil {
			return err
		}
	}
	return nil
}
