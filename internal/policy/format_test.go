package policy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFormat(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"empty", "", ""},
		{"blank", "\n \t\n", ""},
		{"comments alone", "\n# a \n\n\n  # b\n", "# a\n\n# b\n"},
		{"in order", "policy a {\n    allow  b # c\n}\n", "policy a {\n    allow  b # c\n}\n"},
		{"blanks and tabs", "policy  a\t{\nmode\tstrict\n\t  preset a\n}", "policy a {\n    mode   strict\n    preset a\n}\n"},
		{"long words", "policy a {\nallow_list x\nprivate ::1\n}\n", "policy a {\n    allow_list x\n    private ::1\n}\n"},
		{"spelling stays", "policy A {\nALLOW Bücher.Example:8443,443 a.\n}\n", "policy A {\n    ALLOW  Bücher.Example:8443,443 a.\n}\n"},
		{"byte order mark and CRLF", "\ufeffpolicy a {\r\nallow b\t# c\t\r\n}\r\n", "policy a {\n    allow  b # c\n}\n"},
		{"blank lines", "\n\npolicy a {\n\n\nallow b\n\n\nallow c\n\n}\n\n\npolicy d {\n}\n\n", "policy a {\n    allow  b\n\n    allow  c\n}\n\npolicy d {\n}\n"},
		{"policies apart", "policy a {\n}\n# b\npolicy b {\n}\npolicy c {\n}\n", "policy a {\n}\n\n# b\npolicy b {\n}\n\npolicy c {\n}\n"},
		{"comments of a run", "policy a { # 1\nallow bb # 2\nallow c\nallow d # 3\n\nallow e # 4\n# 5\nallow ff # 6\n} # 7\n",
			"policy a {    # 1\n    allow  bb # 2\n    allow  c\n    allow  d  # 3\n\n    allow  e # 4\n    # 5\n    allow  ff # 6\n}             # 7\n"},
		{"comments of wide characters", "policy a {\nallow bücher.example # 1\nallow bucher.example # 2\n}\n",
			"policy a {\n    allow  bücher.example # 1\n    allow  bucher.example # 2\n}\n"},
		{"a long line does not push comments", "policy a {\nallow " + strings.Repeat("b", 60) + " # 1\nallow c # 2\n}\n",
			"policy a {\n    allow  " + strings.Repeat("b", 60) + " # 1\n    allow  c # 2\n}\n"},
		{"list", "a.example   # 1\n\n\n  .b.example # 2\n*.c.example:8443  # 3\n", "a.example # 1\n\n.b.example       # 2\n*.c.example:8443 # 3\n"},
		{"braces that match nothing", "}\n}\nallow a\npolicy a {\nb {\n", "}\n}\n\nallow a\npolicy a {\n    b      {\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Format("policy", tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

func TestFormatErrors(t *testing.T) {
	for _, text := range []string{"a#b\n", "allow \"a\"\n", "a\rb\n", "# \u202e\n", "a\u00a0b\n", "\xff"} {
		got, err := Format("f", "ok\n"+text)
		if _, want := lex("f", "ok\n"+text); err == nil || err.Error() != want.Error() || got != "" {
			t.Errorf("%q: got %q, %v, want the error %v", text, got, err, want)
		}
	}
}

// What ships is in the form that Format gives it.
func TestPresetsAreFormatted(t *testing.T) {
	files, err := filepath.Glob("presets/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Format(f, string(text)); err != nil || got != string(text) {
			t.Errorf("%s: %v, want\n%s", f, err, got)
		}
	}
}

// comments returns the comments of a document, without blanks at their ends.
func comments(text string) []string {
	var all []string
	for l := range strings.Lines(text) {
		if _, c, ok := strings.Cut(l, "#"); ok {
			all = append(all, strings.TrimRight(c, " \t\r\n"))
		}
	}
	return all
}

// Format refuses what the lexer refuses. What it returns has the same words on the same lines in the same
// order and the same comments, is the same policies, and stays as it is when formatted again.
func FuzzFormat(f *testing.F) {
	for _, doc := range []string{
		"", "# a\n", exampleDoc, strings.ReplaceAll(exampleDoc, "\n", "\r\n"), "\ufeffpolicy p {\n\n allow a # b # c\n\n\n}\npolicy q {\nclient ::1\n}",
		"policy p { }\n}\n}\n{ {\n{\n", "a\n\n\nb # \u00a0x \n", "policy p {\n    allow bücher.example # ü\n} # e", "x {\n# y\n\n}\n# z\n\n\n",
	} {
		f.Add(doc)
	}
	f.Fuzz(func(t *testing.T, doc string) {
		got, err := Format("policy", doc)
		before, lexErr := lex("policy", doc)
		if (err == nil) != (lexErr == nil) {
			t.Fatalf("Format: %v, lex: %v", err, lexErr)
		}
		if err != nil {
			return
		}
		after, err := lex("policy", got)
		if err != nil {
			t.Fatalf("%v in\n%s", err, got)
		}
		if !slices.EqualFunc(before, after, func(a, b Line) bool { return slices.Equal(a.Words, b.Words) }) {
			t.Fatalf("got %v, want %v", after, before)
		}
		if a, b := comments(strings.TrimPrefix(doc, byteOrderMark)), comments(got); !slices.Equal(a, b) {
			t.Errorf("got comments %q, want %q", b, a)
		}
		if again, err := Format("policy", got); err != nil || again != got {
			t.Errorf("formatted again: %v\n%q\nwas\n%q", err, again, got)
		}
		if got != "" && (!strings.HasSuffix(got, "\n") || strings.HasSuffix(got, "\n\n")) || strings.Contains(got, "\r") {
			t.Errorf("line ends in %q", got)
		}
		if set, err := compileText(doc, ""); err == nil {
			if formatted, err := compileText(got, ""); err != nil || formatted.Hash() != set.Hash() {
				t.Errorf("other policies: %v", err)
			}
		}
	})
}
