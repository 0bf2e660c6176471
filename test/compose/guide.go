//go:build linux

package compose

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// guides is where the pages for operators are.
const guides = "../../docs"

// guide is a page for operators, and what it tells to do.
type guide struct {
	name   string
	blocks []*block
}

// block is a fenced block of a page.
type block struct {
	heading  string // of level 2, that it stands below
	language string
	text     string
	followed bool // the test has done what it says
}

var fenced = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$|^## ([^\n]+)$")

func readGuide(tb testing.TB, name string) *guide {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(guides, name))
	if err != nil {
		tb.Fatal(err)
	}
	g := &guide{name: name}
	heading := ""
	for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
		if m[3] != "" {
			heading = m[3]
			continue
		}
		g.blocks = append(g.blocks, &block{heading: heading, language: m[1], text: m[2]})
	}
	return g
}

// below returns the blocks of a language below a heading, joined, as something that the test does now.
func (g *guide) below(tb testing.TB, heading, language string) (text string) {
	tb.Helper()
	for _, b := range g.blocks {
		if b.heading == heading && b.language == language {
			b.followed = true
			text += b.text
		}
	}
	if text == "" {
		tb.Fatalf("%s has no block of %s below %q", g.name, language, heading)
	}
	return text
}

// done fails the test if something that the page tells to do was not done.
func (g *guide) done(tb testing.TB) {
	tb.Helper()
	for _, b := range g.blocks {
		if !b.followed && (b.language == "sh" || b.language == "policy") {
			tb.Errorf("%s, %s: no test follows\n%s", g.name, b.heading, b.text)
		}
	}
}

// follow runs the commands below a heading, one a line. A command that ends in `# fails: TEXT` has to fail and to
// say so, every other one to succeed. Names that only one deployment on an engine can have are replaced.
func (d *deployment) follow(tb testing.TB, g *guide, heading string) {
	tb.Helper()
	unique := strings.NewReplacer("--network sandboxes ", "--network "+d.project+"_sandboxes ",
		" sandboxes\n", " "+d.project+"_sandboxes\n", " add sandboxes ", " add "+d.project+"_sandboxes ",
		" app_control", " "+d.project+"_control")
	for line := range strings.Lines(unique.Replace(g.below(tb, heading, "sh"))) {
		command, says, fails := strings.Cut(strings.TrimSpace(line), "  # fails: ")
		out, err := d.sh(command)
		switch {
		case !fails && err != nil:
			tb.Fatal(err)
		case fails && err == nil:
			tb.Errorf("%s\nsucceeds and says %q, want a failure", command, out)
		case fails && !strings.Contains(out, says):
			tb.Errorf("%s\n%v\nwant %q in it", command, err, says)
		}
	}
}
