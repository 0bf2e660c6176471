package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const stock = `# Order matters.
root:root
rewrite:rewrite
autopath:autopath
acl:acl
cache:cache
# The tail.
forward:forward
on:github.com/coredns/caddy/onevent
`

// with is the stock file plus our line, as it should be.
var with = strings.Replace(stock, "acl:acl\n", "acl:acl\n"+ourLine+"\n", 1)

func TestCheck(t *testing.T) {
	got, err := check(with, stock)
	if err != nil {
		t.Fatal(err)
	}
	want := []plugin{
		{"root", "github.com/coredns/coredns/plugin/root"},
		{"rewrite", "github.com/coredns/coredns/plugin/rewrite"},
		{"autopath", "github.com/coredns/coredns/plugin/autopath"},
		{"acl", "github.com/coredns/coredns/plugin/acl"},
		{"sandboxallow", "github.com/sandboxallow/sandboxallow/plugin"},
		{"cache", "github.com/coredns/coredns/plugin/cache"},
		{"forward", "github.com/coredns/coredns/plugin/forward"},
		{"on", "github.com/coredns/caddy/onevent"},
	}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("plugin %d: got %v, want %v", i, got[i], want[i])
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	replace := func(text, old, new string) string {
		t.Helper()
		if !strings.Contains(text, old) {
			t.Fatalf("%q is not in the text", old)
		}
		return strings.Replace(text, old, new, 1)
	}
	moved := replace(replace(stock, "acl:acl\n", ""), "cache:cache\n", "cache:cache\nacl:acl\n")
	for _, tc := range []struct {
		name, ours, stock string
		want              []string // all of them are in the error
	}{
		{
			name: "stock gained a plugin", ours: with, stock: replace(stock, "cache:cache\n", "cache:cache\nnew:new\n"),
			want: []string{`only in stock, line 7: "new:new"`},
		},
		{
			name: "stock lost a plugin", ours: with, stock: replace(stock, "forward:forward\n", ""),
			want: []string{`only in ours, line 9: "forward:forward"`},
		},
		{
			name: "stock changed a comment", ours: with, stock: replace(stock, "# The tail.", "# Keep forward last."),
			want: []string{`only in ours, line 8: "# The tail."`, `only in stock, line 7: "# Keep forward last."`},
		},
		{
			name: "stock changed the order", ours: with,
			stock: replace(stock, "root:root\nrewrite:rewrite\n", "rewrite:rewrite\nroot:root\n"),
			want:  []string{`other order from line 2 of stock on: ours "root:root", stock "rewrite:rewrite"`},
		},
		{
			name: "line feed at the end", ours: with, stock: strings.TrimSuffix(stock, "\n"),
			want: []string{"does not end in a line feed"},
		},
		{
			name: "anchor gone from stock", ours: with, stock: replace(stock, anchor, "acl:acl2"),
			want: []string{`the stock plugin.cfg has no line "acl:acl" any more`},
		},
		{
			name: "our line missing", ours: stock, stock: stock,
			want: []string{"plugin.cfg lacks the line", ourLine},
		},
		{
			name: "our line behind another", ours: replace(stock, "cache:cache\n", "cache:cache\n"+ourLine+"\n"), stock: stock,
			want: []string{"plugin.cfg:7:", `directly after "acl:acl"`},
		},
		{
			name: "our line first", ours: ourLine + "\n" + stock, stock: stock,
			want: []string{"plugin.cfg:1:", `directly after "acl:acl"`},
		},
		{
			name: "our line twice", ours: with + ourLine + "\n", stock: stock,
			want: []string{`plugin.cfg:11: "sandboxallow" already stands on line 6`},
		},
		{
			name: "acl moved behind cache", ours: replace(moved, "acl:acl\n", "acl:acl\n"+ourLine+"\n"), stock: moved,
			want: []string{"cache must run after sandboxallow"},
		},
		{
			name:  "rewrite moved behind acl",
			ours:  replace(replace(with, "rewrite:rewrite\n", ""), "cache:cache\n", "cache:cache\nrewrite:rewrite\n"),
			stock: replace(replace(stock, "rewrite:rewrite\n", ""), "cache:cache\n", "cache:cache\nrewrite:rewrite\n"),
			want:  []string{"rewrite must run before sandboxallow"},
		},
		{
			name: "two colons", ours: replace(with, "root:root", "root:root:root"), stock: stock,
			want: []string{`plugin.cfg:2: "root:root:root", the accepted form is NAME:PACKAGE`},
		},
		{
			name: "no colon", ours: replace(with, "root:root", "root"), stock: stock,
			want: []string{`plugin.cfg:2: "root", the accepted form is NAME:PACKAGE`},
		},
		{
			name: "no package", ours: replace(with, "root:root", "root:"), stock: stock,
			want: []string{`plugin.cfg:2: "root:"`},
		},
		{
			name: "no name", ours: replace(with, "root:root", ":root"), stock: stock,
			want: []string{`plugin.cfg:2: ":root"`},
		},
		{
			name: "two colons in stock", ours: with, stock: replace(stock, "root:root", "root:root:root"),
			want: []string{"the stock plugin.cfg:2:"},
		},
		{
			name: "double name", ours: replace(with, "forward:forward", "root:forward"), stock: stock,
			want: []string{`plugin.cfg:9: "root" already stands on line 2`},
		},
		{
			name: "empty", ours: "", stock: stock,
			want: []string{"plugin.cfg names no plugin"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := check(tc.ours, tc.stock)
			if err == nil {
				t.Fatal("got no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got error %q, want %q in it", err, want)
				}
			}
		})
	}
}

func TestRender(t *testing.T) {
	plugins := []plugin{
		{"sandboxallow", "github.com/sandboxallow/sandboxallow/plugin"},
		{"b", "example.org/b"},
		{"a", "example.org/a"},
		{"a2", "example.org/a"}, // two directives of one package
	}
	imports, err := renderImports(plugins)
	if err != nil {
		t.Fatal(err)
	}
	want := header + `import (
	_ "example.org/a"
	_ "example.org/b"

	_ "github.com/sandboxallow/sandboxallow/plugin"
)
`
	if got := string(imports); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	directives, err := renderDirectives(plugins)
	if err != nil {
		t.Fatal(err)
	}
	if want := "{\n\t\"sandboxallow\",\n\t\"b\",\n\t\"a\",\n\t\"a2\",\n}\n"; !strings.HasSuffix(string(directives), want) {
		t.Errorf("got %s, want it to end in %s", directives, want)
	}
}

// TestGenerated holds that what is committed is what `go generate` writes.
func TestGenerated(t *testing.T) {
	files, err := generate("..")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 {
		t.Errorf("got %d files, want zplugin.go and zdirectives.go", len(files))
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what plugin.cfg says, run `go generate ./builds/coredns`", name)
		}
	}
}

func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"directly after `" + anchor + "`", "    " + ourLine + "\n"} {
		if !strings.Contains(string(readme), want) {
			t.Errorf("README.md lacks %q", want)
		}
	}
}
