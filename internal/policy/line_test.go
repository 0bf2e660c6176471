package policy

import (
	"reflect"
	"strings"
	"testing"
)

func TestLex(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     []Line
	}{
		{"empty", "", nil},
		{"comments and blank lines", "# a\n\n \t\n  # b\n", nil},
		{"words", "policy a {\n\tallow b c # d e\n}\n", []Line{
			{"policy", 1, []string{"policy", "a", "{"}}, {"policy", 2, []string{"allow", "b", "c"}}, {"policy", 3, []string{"}"}}}},
		{"CRLF", "a b\r\n\r\nc\r\n", []Line{{"policy", 1, []string{"a", "b"}}, {"policy", 3, []string{"c"}}}},
		{"byte order mark", "\ufeffa\nb\n", []Line{{"policy", 1, []string{"a"}}, {"policy", 2, []string{"b"}}}},
		{"no line end", "a\nb", []Line{{"policy", 1, []string{"a"}}, {"policy", 2, []string{"b"}}}},
		{"no line end behind a comment", "a\n# b", []Line{{"policy", 1, []string{"a"}}}},
		{"comment in other languages", "a # bücher \u00a0 \u200d \u3000 \U0001f469\u200d\U0001f4bb\n", []Line{{"policy", 1, []string{"a"}}}},
		{"quotes in a comment", "a # \"b\nc\n", []Line{{"policy", 1, []string{"a"}}, {"policy", 2, []string{"c"}}}},
		{"hash in a comment", "a # b#c ## d\n", []Line{{"policy", 1, []string{"a"}}}},
		{"comment behind a tab", "a\t#b\n", []Line{{"policy", 1, []string{"a"}}}},
		{"no line is continued", "a \\\nb\n", []Line{{"policy", 1, []string{"a", "\\"}}, {"policy", 2, []string{"b"}}}},
		{"braces are words like others", "a{ {b} }\n", []Line{{"policy", 1, []string{"a{", "{b}", "}"}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := lex("policy", tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got  %v\nwant %v", got, tc.want)
			}
		})
	}
}

func TestLexErrors(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"lone CR", "a\nb\rc\n", "policy:2: carriage return without a line feed, accepted line ends are LF and CRLF"},
		{"CR at the end", "a\r", "policy:1: carriage return without a line feed, accepted line ends are LF and CRLF"},
		{"CR CR LF", "a\r\r\n", "policy:1: carriage return without a line feed, accepted line ends are LF and CRLF"},
		{"lone CR in a comment", "# a\rallow b\n", "policy:1: carriage return without a line feed, accepted line ends are LF and CRLF"},
		{"NUL", "a\n\x00\n", "policy:2: control character 0x00, accepted is UTF-8 text"},
		{"escape in a comment", "# \x1b[2J\n", "policy:1: control character 0x1b, accepted is UTF-8 text"},
		{"DEL", "a\x7f\n", "policy:1: control character 0x7f, accepted is UTF-8 text"},
		{"vertical tab", "a\vb\n", "policy:1: control character 0x0b, accepted is UTF-8 text"},
		{"form feed", "\fa\n", "policy:1: control character 0x0c, accepted is UTF-8 text"},
		{"hash in a word", "a#b\n", "policy:1: '#' inside a word, put a blank before a comment"},
		{"hash behind a word", "a\nb#\n", "policy:2: '#' inside a word, put a blank before a comment"},
		{"hash behind a letter outside ASCII", "ü#\n", "policy:1: '#' inside a word, put a blank before a comment"},
		{"quoted word", "allow \"a\"\n", "policy:1: quotes are not accepted, write the words as they are"},
		{"open quote", "a\n\"b\nc\n", "policy:2: quotes are not accepted, write the words as they are"},
		{"UTF-16", "\xfe\xff\x00a", "policy:1: byte 0xfe is not UTF-8, accepted is UTF-8 text"},
		{"Latin-1 in a comment", "# \xfc\n", "policy:1: byte 0xfc is not UTF-8, accepted is UTF-8 text"},
		{"cut in a rune", "a \xe2\x82", "policy:1: byte 0xe2 is not UTF-8, accepted is UTF-8 text"},
		{"surrogate", "a\xed\xa0\x80\n", "policy:1: byte 0xed is not UTF-8, accepted is UTF-8 text"},
		{"no-break space", "a\n\u00a0b\n", "policy:2: invisible character U+00A0, accepted blanks are space and tab"},
		{"ideographic space", "a\u3000b\n", "policy:1: invisible character U+3000, accepted blanks are space and tab"},
		{"zero-width joiner", "a\u200db\n", "policy:1: invisible character U+200D, accepted blanks are space and tab"},
		{"soft hyphen", "a\u00adb\n", "policy:1: invisible character U+00AD, accepted blanks are space and tab"},
		{"next line", "a\u0085b\n", "policy:1: invisible character U+0085, accepted blanks are space and tab"},
		{"second byte order mark", "\ufeff\ufeffa\n", "policy:1: invisible character U+FEFF, accepted blanks are space and tab"},
		{"byte order mark inside", "a\n\ufeffb\n", "policy:2: invisible character U+FEFF, accepted blanks are space and tab"},
		{"right-to-left override", "a \u202eb\n", "policy:1: character U+202E changes how the text around it is shown, leave it out"},
		{"isolate in a comment", "a # \u2066\n", "policy:1: character U+2066 changes how the text around it is shown, leave it out"},
		{"line separator in a comment", "# a\u2028deny b\n", "policy:1: character U+2028 changes how the text around it is shown, leave it out"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := lex("policy", tc.in)
			if err == nil {
				t.Fatalf("accepted as %v", got)
			}
			if err.Error() != tc.want {
				t.Errorf("got  %s\nwant %s", err, tc.want)
			}
		})
	}
}

// The rows of the hostile cases that are about the text of a list.
func TestListText(t *testing.T) {
	const blanks = ", accepted blanks are space and tab"
	for _, tc := range []struct {
		id   string
		in   string
		want string // the rules in force, or the error
	}{
		{"policyfile-001", "example.com\r\n.github.com\r\n", "allow example.com; allow .github.com"},
		{"policyfile-002", "example.com\r.github.com\r", "list:1: carriage return without a line feed, accepted line ends are LF and CRLF"},
		{"policyfile-003", "\xef\xbb\xbfexample.com\n", "allow example.com"},
		{"policyfile-004", "\xff\xfee\x00x\x00a\x00m\x00", "list:1: byte 0xff is not UTF-8, accepted is UTF-8 text"},
		{"policyfile-005", "# c\nexample.com # note\n  # indented\n", "allow example.com"},
		{"policyfile-005", "# c\nexample.com#x\n", "list:2: '#' inside a word, put a blank before a comment"},
		{"policyfile-006", "  example.com\t\n", "allow example.com"},
		{"policyfile-006", "a.example\nexample.com\u00a0\n", "list:2: invisible character U+00A0" + blanks},
		{"policyfile-006", "a.example\n\nexam\u200bple.com\n", "list:3: invisible character U+200B" + blanks},
		{"policyfile-008", ".github.com\napi.github.com\n", "allow .github.com; allow api.github.com"},
		{"policyfile-008", "api.github.com\n.github.com\n", "allow api.github.com; allow .github.com"},
		{"policyfile-030", "example.com\x00.evil.test\n", "list:1: control character 0x00, accepted is UTF-8 text"},
		{"policyfile-033", "@include x\n", `list:1: several words "@include x", accepted is one rule a line`},
	} {
		t.Run(tc.id, func(t *testing.T) {
			set, err := compileText("policy p {\n allow_list list\n}\n", tc.in)
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				got = texts(set)
			}
			if got != tc.want {
				t.Errorf("%q\ngot  %s\nwant %s", tc.in, got, tc.want)
			}
		})
	}
}

// A list and a document read the same text alike.
func TestListReadsLikeDocument(t *testing.T) {
	for _, text := range []string{"a.example", "a.example # b", "\t a.example \t", "a.example\r\n", "#a.example"} {
		list, err := compileText("policy p {\n allow_list list\n}\n", text)
		if err != nil {
			t.Fatal(err)
		}
		doc := "policy p {\n allow " + text + "\n}\n"
		if strings.HasPrefix(text, "#") {
			doc = "policy p {\n" + text + "\n}\n"
		}
		if got, want := texts(list), texts(setOf(t, doc)); got != want {
			t.Errorf("%q: %q in a list, %q in a document", text, got, want)
		}
	}
}
