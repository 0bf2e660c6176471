//go:build linux

package compose

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// Every block of configuration in the guides is in a file of builds/compose, or is a policy that loads. Commands
// are followed by the tests of the deployments. What is left is what the reader has today.
func TestGuides(t *testing.T) {
	var files []string
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		files = append(files, string(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(guides, "replace-*.md"))
	if err != nil || len(pages) != 2 {
		t.Fatalf("%v, %v", pages, err)
	}
	for _, page := range pages {
		for _, b := range readGuide(t, filepath.Base(page)).blocks {
			where := filepath.Base(page) + ", " + b.heading + ":\n" + b.text
			switch b.language {
			case "yaml", "caddyfile", "corefile":
				found := false
				for _, f := range files {
					found = found || strings.Contains(f, b.text)
				}
				if !found {
					t.Errorf("%s\nis in no file of builds/compose", where)
				}
			case "policy":
				loads(t, where, b.text)
			case "sh", "nginx":
			default:
				t.Errorf("%s\nis of a language that no test knows: %s", where, b.language)
			}
		}
	}
}

// The policies that are commented out in the files load when they are not.
func TestCommentedPolicies(t *testing.T) {
	for _, name := range []string{"strict-open", "sandbox-egress-proxy"} {
		b, err := os.ReadFile(filepath.Join(folder, name, "policy"))
		if err != nil {
			t.Fatal(err)
		}
		_, commented, found := strings.Cut(string(b), "\n# policy ")
		if !found {
			t.Fatalf("%s/policy: no policy is commented out", name)
		}
		loads(t, name+"/policy", "policy "+strings.ReplaceAll(strings.ReplaceAll(commented, "\n# ", "\n"), "\n#\n", "\n\n"))
	}
}

func loads(tb testing.TB, where, document string) {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "policy")
	if err := os.WriteFile(file, []byte(document), 0o644); err != nil {
		tb.Fatal(err)
	}
	if _, err := policy.Load(policy.Source{File: file}); err != nil {
		tb.Errorf("%s\ndoes not load: %v", where, err)
	}
}
