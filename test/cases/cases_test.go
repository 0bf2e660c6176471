// Package cases holds that every case of trouble that was reported elsewhere is a test here, named by its
// id, or listed in test/cases.md with the reason why it does not apply.
package cases

import (
	"bufio"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

func TestEveryCase(t *testing.T) {
	known := readCases(t)
	tested := idsIn(t, testFiles(t)...)
	excused := idsIn(t, filepath.Join(root, "test/cases.md"))
	for id, title := range known {
		if !tested[id] && !excused[id] {
			t.Errorf("%s (%s) is neither the name of a test nor in test/cases.md", id, title)
		}
	}
	for id := range excused {
		if _, ok := known[id]; !ok {
			t.Errorf("test/cases.md names %s, which is no case", id)
		}
	}
}

func readCases(t *testing.T) map[string]string {
	t.Helper()
	f, err := os.Open("testdata/cases.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cases := make(map[string]string)
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if id, title, ok := strings.Cut(sc.Text(), " "); ok && id != "#" {
			cases[id] = title
		}
	}
	if err := sc.Err(); err != nil || len(cases) < 240 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	return cases
}

var id = regexp.MustCompile(`\b(dns|sni|dial|http|forwardproxy|ops|policyfile|postgres|reload)-[0-9]{3}\b`)

func idsIn(t *testing.T, files ...string) map[string]bool {
	t.Helper()
	ids := make(map[string]bool)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range id.FindAllString(string(data), -1) {
			ids[m] = true
		}
	}
	return ids
}

func testFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
