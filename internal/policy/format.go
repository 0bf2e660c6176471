package policy

import (
	"strings"
	"unicode/utf8"
)

// How Format lays out a document.
const (
	indent      = "    "
	wordWidth   = 6  // of the first word in a policy: preset and client are the longest that are common
	widestAlign = 60 // columns of a line behind which comments are still put below each other
)

// Format returns a document or a list with its blanks in order: one policy to a block, indented, arguments
// and the comments of consecutive lines below each other, lines that end in LF. Words, comments and their
// order stay as they are, so the policies do too. file is for the error, which Load would return as well:
// text that reads differently than it looks cannot be put in order.
func Format(file, text string) (string, error) {
	if err := checkText(file, text); err != nil {
		return "", err
	}
	var lines []layoutLine
	depth := 0
	for l := range strings.Lines(strings.TrimPrefix(text, byteOrderMark)) {
		top := depth == 0
		line := newLayoutLine(l, &depth)
		if line.blank() && (len(lines) == 0 || lines[len(lines)-1].blank() || lines[len(lines)-1].opens) {
			continue
		}
		if n := len(lines); n > 0 && lines[n-1].blank() && line.closes {
			lines = lines[:n-1]
		}
		if n := len(lines); n > 0 && lines[n-1].closes && top && !line.blank() && !line.closes {
			lines = append(lines, layoutLine{})
		}
		lines = append(lines, line)
	}
	if n := len(lines); n > 0 && lines[n-1].blank() {
		lines = lines[:n-1]
	}
	return layout(lines), nil
}

// layoutLine is a line of a document as it will be written.
type layoutLine struct {
	code    string // indented
	comment string // with its '#'
	opens   bool   // a block
	closes  bool
}

func (l *layoutLine) blank() bool { return l.code == "" && l.comment == "" }

// newLayoutLine reads a line that has passed checkText; depth is of the block that it stands in, and then
// of the one that the next line stands in.
func newLayoutLine(text string, depth *int) layoutLine {
	var l layoutLine
	code, comment, commented := strings.Cut(text, "#")
	if commented {
		l.comment = "#" + strings.TrimRight(comment, " \t\r\n")
	}
	words := strings.Fields(code)
	l.closes = len(words) == 1 && words[0] == "}"
	if l.closes && *depth > 0 {
		*depth--
	}
	in := strings.Repeat(indent, *depth)
	switch {
	case len(words) == 0 && commented:
		l.comment = in + l.comment
		return l
	case len(words) == 0:
		return l
	case len(words) > 1 && *depth > 0:
		words[0] += strings.Repeat(" ", max(0, wordWidth-utf8.RuneCountInString(words[0])))
	}
	l.code = in + strings.Join(words, " ")
	if l.opens = words[len(words)-1] == "{"; l.opens {
		*depth++
	}
	return l
}

// layout writes lines, with the comments of each run of lines with words below each other.
func layout(lines []layoutLine) string {
	var b strings.Builder
	for len(lines) > 0 {
		run := 1
		for lines[0].code != "" && run < len(lines) && lines[run].code != "" {
			run++
		}
		column := 0
		for _, l := range lines[:run] {
			if w := utf8.RuneCountInString(l.code); l.comment != "" && w <= widestAlign {
				column = max(column, w)
			}
		}
		for _, l := range lines[:run] {
			b.WriteString(l.code)
			if l.code != "" && l.comment != "" {
				b.WriteString(strings.Repeat(" ", 1+max(0, column-utf8.RuneCountInString(l.code))))
			}
			b.WriteString(l.comment)
			b.WriteByte('\n')
		}
		lines = lines[run:]
	}
	return b.String()
}
