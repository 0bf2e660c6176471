package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// report is all that came out, and of what.
type report struct {
	command string
	began   time.Time
	took    time.Duration
	machine machine
	pace    pace
	tables  []table
}

// print writes the report in Markdown, with tables that can be read as they are.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, `# Results

What `+"`%s`"+` wrote on %s. It took %v, builds included.

Figures are the medians of %d rounds of %v (%d where each round starts anew), in which the peers of a table took
turns. A ratio (×) is the median of the ratios within the rounds; ± is half the distance between the best and the
worst round, of the first figure. CPU is what the kernel accounts to the processes of the server, user and system;
clients and upstream have the same cores unless a table says otherwise, so figures per second are for comparison only.
A peer that failed has no figures.

`, r.command, r.began.Format("2006-01-02"), r.took.Round(time.Second), r.pace.rounds, r.pace.window, r.pace.anew)
	r.printMachine(w)
	for i := range r.tables {
		t := &r.tables[i]
		fmt.Fprintf(w, "\n## %s\n\n%s\n\n", t.measure.name, fold(t.measure.text))
		t.print(w)
	}
	fmt.Fprint(w, "\n## Targets\n\n")
	r.printTargets(w)
	fmt.Fprint(w, "\n## Peers\n\n")
	r.printPeers(w)
	fmt.Fprintf(w, commands, strings.Join(suiteNames(suites(new(lab))), ", "))
}

// commands is how to repeat what was measured.
const commands = `
## Again

    make bench                             # all of it, under 10 minutes; as root it installs what is missing
    go run ./test/bench -quick             # a first impression, under 2 minutes
    go run ./test/bench -only dns          # one suite: %s

The configurations of the peers are in [peers](peers).
`

func (r *report) printMachine(w io.Writer) {
	m := r.machine
	var others crowd
	for _, t := range r.tables {
		others = max(others, t.crowd)
	}
	grid{
		{"machine", ""},
		{"CPU", fmt.Sprintf("%d cores, %s", m.cores, m.cpu)},
		{"memory", m.memory},
		{"kernel", m.kernel},
		{"others", others.String()},
	}.print(w)
}

func (t *table) print(w io.Writer) {
	against := t.row(t.measure.against)
	head := []string{"peer"}
	for i, c := range t.measure.columns {
		head = append(head, c.name)
		if c.ratio {
			head = append(head, "× "+t.measure.against)
		}
		if i == 0 {
			head = append(head, "±")
		}
	}
	g := grid{head}
	var failures []string
	for _, row := range t.rows {
		line := []string{row.peer.name}
		if row.err != nil {
			failures = append(failures, fmt.Sprintf("**%s: %s**", row.peer.name, oneLine(row.err)))
			line = append(line, row.why())
		}
		for i, c := range t.measure.columns {
			if row.err != nil {
				break
			}
			xs := row.column(i)
			line = append(line, c.format(median(xs)))
			if c.ratio {
				line = append(line, decimal(ratio(row, against, i)))
			}
			if i == 0 {
				line = append(line, percent(spread(xs)))
			}
		}
		g = append(g, line)
	}
	g.print(w)
	for _, f := range failures {
		fmt.Fprintf(w, "\n%s\n", f)
	}
}

func (r *report) printTargets(w io.Writer) {
	g := grid{{"", "figure", "is", "wanted"}}
	for _, t := range targets {
		i := slices.IndexFunc(r.tables, func(tb table) bool { return tb.measure.name == t.measure })
		if i < 0 {
			continue // a suite that was left out
		}
		x := r.tables[i].value(t)
		verdict := t.verdict(x)
		if t.text == "" {
			verdict = ""
		}
		g = append(g, []string{verdict, t.figure(), r.tables[i].format(t, x), t.text})
	}
	g.print(w)
}

// figure says what the target is about. Each target says something else.
func (t target) figure() string {
	text := fmt.Sprintf("%s, %s: %s", t.measure, t.column, t.peer)
	if t.against != "" {
		text += " × " + t.against
	}
	return text
}

// value is what a target is about, NaN if it was not measured.
func (t *table) value(want target) float64 {
	i := t.column(want.column)
	switch {
	case i < 0:
		return math.NaN()
	case want.against == "":
		return median(t.row(want.peer).column(i))
	}
	return ratio(t.row(want.peer), t.row(want.against), i)
}

func (t *table) format(want target, x float64) string {
	if i := t.column(want.column); i >= 0 && want.against == "" {
		return t.measure.columns[i].format(x)
	}
	return figure(x, "%.3f")
}

// column is the index of a column, -1 if there is none of that name.
func (t *table) column(name string) int {
	return slices.IndexFunc(t.measure.columns, func(c column) bool { return c.name == name })
}

func (r *report) printPeers(w io.Writer) {
	g := grid{{"peer", "set-up", "version"}}
	for _, t := range r.tables {
		for _, row := range t.rows {
			line := []string{row.peer.name, row.peer.setUp, row.version}
			if !slices.ContainsFunc(g, func(l []string) bool { return slices.Equal(l, line) }) {
				g = append(g, line)
			}
		}
	}
	g.print(w)
}

// ourFailure is an error if a peer of ours has no figures.
func (r *report) ourFailure() error {
	for _, t := range r.tables {
		for _, row := range t.rows {
			if row.peer.ours && row.err != nil {
				return fmt.Errorf("%s: %s failed: %w", t.measure.name, row.peer.name, row.err)
			}
		}
	}
	return nil
}

// grid is a table of texts; the first line is the head.
type grid [][]string

// print writes a Markdown table with aligned columns: texts to the left, figures to the right.
func (g grid) print(w io.Writer) {
	widths := make([]int, len(g[0]))
	for _, line := range g {
		for i, text := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(text), 3)
		}
	}
	left := func(i int) bool {
		return i == 0 || slices.Contains([]string{"", "figure", "set-up", "version"}, g[0][i])
	}
	for n, line := range g {
		for i, width := range widths {
			text := ""
			if i < len(line) {
				text = line[i]
			}
			pad := strings.Repeat(" ", width-utf8.RuneCountInString(text))
			if left(i) {
				text += pad
			} else {
				text = pad + text
			}
			fmt.Fprintf(w, "| %s ", text)
		}
		fmt.Fprintln(w, "|")
		if n > 0 {
			continue
		}
		for i, width := range widths {
			end := "-"
			if !left(i) {
				end = ":"
			}
			fmt.Fprintf(w, "| %s%s ", strings.Repeat("-", width-1), end)
		}
		fmt.Fprintln(w, "|")
	}
}

// fold breaks a text into lines of up to 110 characters.
func fold(text string) string {
	const most = 110
	var b strings.Builder
	length := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case length == 0:
		case length+1+n > most:
			b.WriteByte('\n')
			length = 0
		default:
			b.WriteByte(' ')
			length++
		}
		b.WriteString(word)
		length += n
	}
	return b.String()
}

// oneLine is an error without its line breaks.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
