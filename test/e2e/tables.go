//go:build linux

package e2e

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what the clients say into docs/what-clients-say.md")

// tables are those of docs/what-clients-say.md. The one called ID stands below the line <!-- table: ID -->, and
// its first column tells the rows apart.
type tables struct {
	file  string
	lines []string
}

// versions is the table of the clients' versions.
const versions = "versions"

func readTables(tb testing.TB) *tables {
	tb.Helper()
	file := filepath.Join("..", "..", "docs", "what-clients-say.md")
	b, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	return &tables{file, strings.Split(string(b), "\n")}
}

// bounds are those of the rows of a table, without its head.
func (p *tables) bounds(tb testing.TB, id string) (from, to int) {
	tb.Helper()
	i := slices.Index(p.lines, "<!-- table: "+id+" -->")
	if i < 0 || len(p.lines) < i+4 || !strings.HasPrefix(p.lines[i+2], "|---") {
		tb.Fatalf("%s: no table %q", p.file, id)
	}
	from = i + 3
	for to = from; to < len(p.lines) && strings.HasPrefix(p.lines[to], "|"); to++ {
	}
	return from, to
}

// rows returns the cells of each row.
func (p *tables) rows(tb testing.TB, id string) (rows [][]string) {
	tb.Helper()
	from, to := p.bounds(tb, id)
	for _, line := range p.lines[from:to] {
		rows = append(rows, strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | "))
	}
	return rows
}

// row returns the cells behind the first one, nil if there is no such row.
func (p *tables) row(tb testing.TB, id, first string) []string {
	tb.Helper()
	for _, row := range p.rows(tb, id) {
		if row[0] == first {
			return row[1:]
		}
	}
	return nil
}

// setRow replaces a row, or adds one.
func (p *tables) setRow(tb testing.TB, id, first string, cells ...string) {
	tb.Helper()
	line := "| " + strings.Join(append([]string{first}, cells...), " | ") + " |"
	from, to := p.bounds(tb, id)
	for i := from; i < to; i++ {
		if strings.HasPrefix(p.lines[i], "| "+first+" |") {
			p.lines[i] = line
			return
		}
	}
	p.lines = slices.Insert(p.lines, to, line)
}

// compare fails the test unless a row of a table has what a client said, and the cells behind it. Another version
// of the client than that of the table may say it otherwise, as long as the words are in both.
func (p *tables) compare(tb testing.TB, id, first string, c *client, s saying, more ...string) {
	tb.Helper()
	cells := append([]string{s.cell()}, more...)
	if *update {
		p.setRow(tb, id, first, cells...)
		return
	}
	want := p.row(tb, id, first)
	if slices.Equal(want, cells) {
		return
	}
	if other := p.row(tb, versions, c.label); !slices.Equal(other, []string{c.version()}) &&
		len(want) == len(cells) && slices.Equal(want[1:], more) && s.in(want[0]) {
		tb.Logf("%s %s says %s; table %s is of version %s: %s", c.label, c.version(), cells[0], id, other, want[0])
		return
	}
	tb.Errorf("%s: table %s, %s: got\n%s, want\n%s\ngo test ./test/e2e -run 'TestClients|TestMistakes' -update writes it",
		p.file, id, first, strings.Join(cells, " | "), strings.Join(want, " | "))
}

// hasRows fails the test unless a table has just these rows.
func (p *tables) hasRows(tb testing.TB, id string, firsts []string) {
	tb.Helper()
	var got []string
	rows := p.rows(tb, id)
	for _, row := range rows {
		got = append(got, row[0])
	}
	if slices.Equal(got, firsts) {
		return
	}
	if !*update {
		tb.Errorf("%s: table %s has the rows %q, want %q", p.file, id, got, firsts)
		return
	}
	from, to := p.bounds(tb, id)
	var lines []string
	for _, first := range firsts {
		if i := slices.Index(got, first); i >= 0 {
			lines = append(lines, p.lines[from+i])
		}
	}
	p.lines = slices.Replace(p.lines, from, to, lines...)
}

// save writes the page if it is to be updated, and if the clients have said what they should.
func (p *tables) save(tb testing.TB) {
	tb.Helper()
	if !*update || tb.Failed() {
		return
	}
	if err := os.WriteFile(p.file, []byte(strings.Join(p.lines, "\n")), 0o644); err != nil {
		tb.Fatal(err)
	}
}
