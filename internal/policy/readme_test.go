package policy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const repository = "../.."

// The document that the README shows is one, and so is the example.
func TestDocumentsLoad(t *testing.T) {
	readme := readText(t, "README.md")
	start := strings.Index(readme, "\n    policy default {")
	if start < 0 {
		t.Fatal("the README shows no document")
	}
	var doc strings.Builder
	for line := range strings.SplitSeq(readme[start+1:], "\n") {
		if line != "" && !strings.HasPrefix(line, "    ") {
			break
		}
		doc.WriteString(strings.TrimPrefix(line, "    ") + "\n")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"readme":          doc.String(),
		"example":         readText(t, "policy.example"),
		"lists/extra.txt": "example.org # a rule\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"readme", "example"} {
		set, err := Load(Source{File: filepath.Join(dir, name)})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, want := set.Policies(), []string{"default", "research"}; !slices.Equal(got, want) {
			t.Errorf("%s: policies %v, want %v", name, got, want)
		}
	}
}

// The README names every preset, and no other.
func TestPresetsInREADME(t *testing.T) {
	_, text, ok := strings.Cut(readText(t, "README.md"), "\n- Presets:")
	if !ok {
		t.Fatal("the README has no paragraph on presets")
	}
	text, _, _ = strings.Cut(text, "\n\n")
	var named []string
	for _, m := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(text, -1) {
		named = append(named, m[1])
	}
	slices.Sort(named)
	if want := Presets(); !slices.Equal(named, want) {
		t.Errorf("named are %v, want %v", named, want)
	}
}

func readText(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
