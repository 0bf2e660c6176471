package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
)

// The lines of the README between which the figures stand that it quotes from the results.
const (
	quotesBegin = "<!-- from test/bench/RESULTS.md, written by make bench -->\n"
	quotesEnd   = "<!-- end -->\n"
)

// quotes are figures of the results as the README has them. They are read from the results as these stand in the file,
// so that whoever changes one of both is told by a test.
func quotes(results []byte) (string, error) {
	is := make(map[string]string)
	for line := range strings.Lines(string(results)) {
		cells := strings.Split(line, "|") // "", verdict, figure, what it is, what is wanted, "\n"
		if len(cells) == 6 {
			is[strings.TrimSpace(cells[2])] = strings.TrimSpace(cells[3])
		}
	}
	g := grid{{"figure", "is"}}
	for _, t := range targets {
		if t.quote == "" {
			continue
		}
		value, ok := is[t.figure()]
		if !ok {
			return "", fmt.Errorf("the results have no line for %q", t.figure())
		}
		if value == "–" {
			value = "not measured"
		} else {
			value += " × " + t.against
		}
		g = append(g, []string{t.quote, value})
	}
	var b bytes.Buffer
	g.print(&b)
	return b.String(), nil
}

// quoteIn replaces what a README quotes by what a file of results says.
func quoteIn(readme, results string) error {
	from, err := os.ReadFile(results)
	if err != nil {
		return err
	}
	text, err := quotes(from)
	if err != nil {
		return err
	}
	page, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(page), quotesBegin)
	_, after, ok2 := strings.Cut(rest, quotesEnd)
	if !ok || !ok2 {
		return errors.New("the README has no place for the figures: " + strings.TrimSpace(quotesBegin))
	}
	return os.WriteFile(readme, []byte(before+quotesBegin+"\n"+text+"\n"+quotesEnd+after), 0o644)
}
