package need

import (
	"path/filepath"
	"strings"
	"testing"
)

// ended is a test that says how it was ended first, and goes on.
type ended struct {
	testing.TB
	how, what string
}

func (e *ended) end(how string, args []any) {
	if e.how == "" {
		e.how, e.what = how, args[0].(string)
	}
}

func (e *ended) Helper()           {}
func (e *ended) Skip(args ...any)  { e.end("skipped", args) }
func (e *ended) Fatal(args ...any) { e.end("failed", args) }

func TestAll(t *testing.T) {
	here := File("need_test.go")
	absent := File(filepath.Join(t.TempDir(), "absent"))
	for _, tc := range []struct {
		name, ci string
		things   []Thing
		how      string
	}{
		{"nothing is needed", "", nil, ""},
		{"all is here", "true", []Thing{here, Program("go")}, ""},
		{"a file is not", "", []Thing{here, absent}, "skipped"},
		{"a file is not, in CI", "true", []Thing{here, absent}, "failed"},
		{"a program is not", "", []Thing{Program("no-such-program")}, "skipped"},
		{"a program is not, in CI", "1", []Thing{Program("no-such-program"), here}, "failed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("CI", tc.ci)
			e := &ended{TB: t}
			All(e, tc.things...)
			if e.how != tc.how {
				t.Errorf("got %q, want %q", e.how, tc.how)
			}
			if e.how != "" && !strings.Contains(e.what, "absent") && !strings.Contains(e.what, "no-such-program") {
				t.Errorf("got %q, want what is missing", e.what)
			}
		})
	}
}
