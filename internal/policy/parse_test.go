package policy

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func mustName(t testing.TB, s string) Name {
	t.Helper()
	n, err := ParseName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// compileText compiles a document from memory; each list that it names has the text list.
func compileText(doc, list string) (*Set, error) {
	s := &snapshot{files: []file{{path: "policy", data: doc}}}
	s.lines, s.err = lex("policy", doc)
	for _, l := range s.lines {
		for _, w := range l.Words[1:] {
			if path := l.path(w); l.Words[0] == "allow_list" && s.file(path) == nil {
				s.files = append(s.files, file{path: path, data: list})
			}
		}
	}
	return s.compile()
}

func setOf(t testing.TB, doc string) *Set {
	t.Helper()
	set, err := compileText(doc, "")
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// policyOf returns the policy that has this body, selected.
func policyOf(t testing.TB, body string) Selection {
	t.Helper()
	return setOf(t, "policy p {\n"+body+"\n}\n").Select(netip.MustParseAddr("192.0.2.1"), "")
}

// texts returns the rules of a set in their canonical form.
func texts(s *Set) string {
	var all []string
	for _, p := range s.policies {
		for i := range p.rules {
			all = append(all, p.ruleAt(uint32(i)).Text())
		}
	}
	return strings.Join(all, "; ")
}

// writeFiles makes files in a new directory, which becomes the working directory, and returns its path.
func writeFiles(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The document of the design, word for word.
const exampleDoc = `policy default {                       # no client line: applies to whoever no other policy names
    mode   strict                      # strict (default) | open | learn
    preset github npm
    allow  api.openai.com .anthropic.com
    allow  db.example.com:5432
    deny   gist.github.com
    allow_list lists/extra.txt         # one rule a line; relative to the document
}

policy research {
    client 172.30.0.64/26 fd00:1::/64
    mode   open
    deny   .corp.example.com
    private 10.20.0.5/32               # private destinations that its names may resolve to
}
`

func TestLoad(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"etc/policy":          exampleDoc,
		"etc/lists/extra.txt": "# extra\n\n.example.org\nexample.net:8443\n",
	})
	for _, path := range []string{"etc/policy", filepath.Join(dir, "etc/policy")} {
		set, err := Load(Source{File: path})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := set.Policies(), []string{"default", "research"}; !slices.Equal(got, want) {
			t.Errorf("Policies() = %q, want %q", got, want)
		}
		if set.HasPolicy("Default") || !set.HasPolicy("research") {
			t.Error("HasPolicy: names of policies are compared as written")
		}
		if len(set.Warnings()) != 0 {
			t.Errorf("Warnings() = %q", set.Warnings())
		}
		lists := filepath.Join(filepath.Dir(path), "lists/extra.txt")
		for _, tc := range []struct {
			client, name string
			port         uint16
			want         string
			rule         string
		}{
			{"172.30.0.1", "github.com", 443, "allow", "preset/github:5"},
			{"172.30.0.1", "registry.npmjs.org", 443, "allow", "preset/npm:3"},
			{"172.30.0.1", "api.openai.com", 80, "allow", path + ":4"},
			{"172.30.0.1", "x.anthropic.com", 443, "allow", path + ":4"},
			{"172.30.0.1", "db.example.com", 5432, "allow", path + ":5"},
			{"172.30.0.1", "db.example.com", 443, "port_not_allowed", path + ":5"},
			{"172.30.0.1", "gist.github.com", 443, "denied", path + ":6"},
			{"172.30.0.1", "www.example.org", 443, "allow", lists + ":3"},
			{"172.30.0.1", "example.net", 8443, "allow", lists + ":4"},
			{"172.30.0.1", "example.com", 443, "not_allowed", ""},
			{"172.30.0.64", "example.com", 443, "allow", ""},
			{"172.30.0.127", "a.corp.example.com", 443, "denied", path + ":13"},
			{"fd00:1::1", "example.com", 22, "port_not_allowed", ""},
		} {
			sel := set.Select(netip.MustParseAddr(tc.client), "")
			d := decide(t, sel, mustName(t, tc.name), tc.port)
			if got := verdict(d); got != tc.want || d.Rule.String() != tc.rule {
				t.Errorf("%s %s:%d: got %s by %q, want %s by %q", tc.client, tc.name, tc.port, got, d.Rule, tc.want, tc.rule)
			}
		}
	}
}

// Every error of a document, with its place and what would be accepted.
func TestLoadErrors(t *testing.T) {
	p := func(body string) string { return "# first line\npolicy p {\n" + body + "\n}\n" }
	const form = "accepted is: policy NAME {"
	const prefixForm = "accepted are 10.0.0.0/8, 10.0.0.1, fd00::/8 and fd00::1"
	for _, tc := range []struct{ name, doc, want string }{
		{"empty", "", "policy:1: document without a policy, " + form},
		{"comments alone", "# policy a {\n# }\n", "policy:1: document without a policy, " + form},
		{"line outside", "allow example.com\n", `policy:1: unknown word "allow", ` + form},
		{"closed twice", p("mode open") + "}\n", `policy:5: unknown word "}", ` + form},
		{"upper case", "\nPolicy p {\n}\n", `policy:2: unknown word "Policy", ` + form},
		{"no name", "policy {\n}\n", "policy:1: policy line with 2 words, " + form},
		{"no brace", "policy p\nmode open\n}\n", "policy:1: policy line with 2 words, " + form},
		{"brace on its own line", "policy p\n{\n}\n", "policy:1: policy line with 2 words, " + form},
		{"brace at the name", "policy p{\n}\n", "policy:1: policy line with 2 words, " + form},
		{"one line", "policy p { mode open }\n", "policy:1: policy line with 6 words, " + form},
		{"two names", "policy a b {\n}\n", "policy:1: policy line with 4 words, " + form},
		{"name with a dot", "policy a.b {\n}\n", `policy:1: policy name "a.b", accepted are 1 to 63 letters, digits, '-' and '_'`},
		{"name outside ASCII", "policy ä {\n}\n", `policy:1: policy name "ä", accepted are 1 to 63 letters, digits, '-' and '_'`},
		{"name too long", "policy " + strings.Repeat("a", 64) + " {\n}\n", `policy:1: policy name "` + strings.Repeat("a", 64) + `", accepted are 1 to 63 letters, digits, '-' and '_'`},
		{"not closed", "\npolicy p {\nmode open\n", `policy:2: policy "p" is not closed, accepted is a last line with } alone`},
		{"brace behind a word", "policy p {\nmode open }\n", `policy:1: policy "p" is not closed, accepted is a last line with } alone`},
		{"nested", p("policy q {"), `policy:3: unknown word "policy", accepted are mode, preset, allow, deny, allow_list, ports, client and private`},
		{"same name twice", "policy p {\n}\npolicy p {\nclient 10.0.0.0/8\n}\n", `policy:3: second policy of the name "p"`},
		{"second without a client", "policy a {\n}\npolicy b {\nallow example.com\n}\n", `policy:3: second policy without a client line; the first is "a"`},
		{"same client twice", "policy a {\nclient 10.0.0.0/8\n}\npolicy b {\nclient 10.0.0.0/8\n}\n", `policy:5: second policy for the client 10.0.0.0/8; the first is "a"`},
		{"same client twice in one", p("client 10.0.0.1 fd00::1\nclient 10.0.0.1/32"), `policy:4: second policy for the client 10.0.0.1/32; the first is "p"`},
		{"same client in other letters", "policy a {\nclient FD00::/8\n}\npolicy b {\nclient fd00:0::/8\n}\n", `policy:5: second policy for the client fd00::/8; the first is "a"`},

		{"unknown word", p("allows example.com"), `policy:3: unknown word "allows", accepted are mode, preset, allow, deny, allow_list, ports, client and private`},
		{"directive in upper case", p("ALLOW example.com"), `policy:3: unknown word "ALLOW", accepted are mode, preset, allow, deny, allow_list, ports, client and private`},
		{"deny_list", p("deny_list x"), `policy:3: unknown word "deny_list", accepted are mode, preset, allow, deny, allow_list, ports, client and private`},
		{"import", p("import /etc/passwd"), `policy:3: unknown word "import", accepted are mode, preset, allow, deny, allow_list, ports, client and private`},
		{"list without a policy", "example.com\n", `policy:1: unknown word "example.com", ` + form},

		{"mode alone", p("mode"), "policy:3: mode without an argument"},
		{"preset alone", p("preset"), "policy:3: preset without an argument"},
		{"allow alone", p("allow"), "policy:3: allow without an argument"},
		{"allow of a comment", p("allow # example.com"), "policy:3: allow without an argument"},
		{"deny alone", p("deny"), "policy:3: deny without an argument"},
		{"allow_list alone", p("allow_list"), "policy:3: allow_list without an argument"},
		{"ports alone", p("ports"), "policy:3: ports without an argument"},
		{"client alone", p("client"), "policy:3: client without an argument"},
		{"private alone", p("private"), "policy:3: private without an argument"},

		{"mode unknown", p("mode permissive"), `policy:3: mode "permissive", accepted are strict, open and learn`},
		{"mode in upper case", p("mode Open"), `policy:3: mode "Open", accepted are strict, open and learn`},
		{"two modes", p("mode strict open"), `policy:3: mode "strict open", accepted are strict, open and learn`},
		{"second mode line", p("mode open\n\nmode open"), "policy:5: second mode line"},

		{"port name", p("ports https"), `policy:3: port "https", accepted are 1 to 65535`},
		{"port 0", p("ports 443 0"), `policy:3: port "0", accepted are 1 to 65535`},
		{"any port", p("ports *"), `policy:3: port "*", accepted are 1 to 65535`},
		{"ports with a comma", p("ports 443,80"), `policy:3: port "443,80", accepted are 1 to 65535`},
		{"second ports line", p("ports 443\nports 80"), "policy:4: second ports line"},

		{"rule", p("allow example.com\nallow ok.example .bad..example"), `policy:4: rule ".bad..example": name "bad..example" has an empty label`},
		{"deny rule", p("deny example.com/"), `policy:3: "example.com/" is no rule, write a host name without user or path, ` + ruleForm},
		{"words behind a brace", p("allow example.com {"), `policy:3: rule "{": name "{" has the character "{", only letters, digits, '-', '_' and '.' are accepted`},

		{"preset unknown", p("preset github gitlab"), `policy:3: unknown preset "gitlab", accepted are ` + strings.Join(Presets(), ", ")},
		{"preset as a path", p("preset ../presets/github"), `policy:3: unknown preset "../presets/github", accepted are ` + strings.Join(Presets(), ", ")},
		{"preset as a file", p("preset github.txt"), `policy:3: unknown preset "github.txt", accepted are ` + strings.Join(Presets(), ", ")},

		{"client name", p("client example.com"), `policy:3: client "example.com" is no address prefix, ` + prefixForm},
		{"client with host bits", p("client 10.0.0.1/8"), `policy:3: client "10.0.0.1/8" has host bits, write 10.0.0.0/8`},
		{"client, IPv4-mapped", p("client ::ffff:10.0.0.1"), `policy:3: client "::ffff:10.0.0.1" is no address prefix, ` + prefixForm},
		{"client, IPv4-mapped prefix", p("client ::ffff:10.0.0.0/104"), `policy:3: client "::ffff:10.0.0.0/104" is no address prefix, ` + prefixForm},
		{"client with a zone", p("client fe80::1%eth0"), `policy:3: client "fe80::1%eth0" is no address prefix, ` + prefixForm},
		{"client too long", p("client 10.0.0.0/33"), `policy:3: client "10.0.0.0/33" is no address prefix, ` + prefixForm},
		{"client by netmask", p("client 10.0.0.0/255.0.0.0"), `policy:3: client "10.0.0.0/255.0.0.0" is no address prefix, ` + prefixForm},
		{"client in octal", p("client 010.0.0.0/8"), `policy:3: client "010.0.0.0/8" is no address prefix, ` + prefixForm},

		{"private name", p("private db.example.com"), `policy:3: private "db.example.com" is no address prefix, ` + prefixForm},
		{"private with host bits", p("private 10.0.0.0/8 fd00::1/8"), `policy:3: private "fd00::1/8" has host bits, write fd00::/8`},
		{"private metadata address", p("private 169.254.169.254"), "policy:3: private 169.254.169.254/32 names cloud metadata addresses only, they are never dialled"},
		{"private metadata prefix", p("private 169.254.169.252/31"), "policy:3: private 169.254.169.252/31 names cloud metadata addresses only, they are never dialled"},
		{"private metadata IPv6", p("private 10.0.0.1 fd00:ec2::254"), "policy:3: private fd00:ec2::254/128 names cloud metadata addresses only, they are never dialled"},
		{"private metadata, public address", p("private 168.63.129.16/32"), "policy:3: private 168.63.129.16/32 names cloud metadata addresses only, they are never dialled"},

		{"list missing", p("allow_list lists/none"), "policy:3: allow_list: stat lists/none: no such file or directory"},
		{"list is a directory", p("allow_list lists"), "policy:3: allow_list: lists: not a regular file"},
		{"list is a device", p("allow_list /dev/zero"), "policy:3: allow_list: /dev/zero: not a regular file"},
		{"list with a bad rule", p("allow_list lists/ok lists/bad"), `lists/bad:2: "http://x" is a URL, write the host name alone: "x"`},
		{"list with two words", p("allow_list lists/words"), `lists/words:1: several words "a.example b.example", accepted is one rule a line`},
		{"list with bad text", p("allow_list lists/text"), "lists/text:2: control character 0x00, accepted is UTF-8 text"},
		{"list of a document", p("allow_list policy"), `policy:2: several words "policy p {", accepted is one rule a line`},
		{"text", p("allow a\x00"), "policy:3: control character 0x00, accepted is UTF-8 text"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			writeFiles(t, map[string]string{
				"policy":      tc.doc,
				"lists/ok":    "ok.example\n",
				"lists/bad":   "ok.example\nhttp://x\n",
				"lists/words": "a.example b.example\n",
				"lists/text":  "ok.example\n\x00\n",
			})
			set, err := Load(Source{File: "policy"})
			if err == nil {
				t.Fatalf("accepted as %s", texts(set))
			}
			if err.Error() != tc.want {
				t.Errorf("got  %s\nwant %s", err, tc.want)
			}
			if st, err := NewStore(Source{File: "policy"}, Options{}); err == nil || err.Error() != tc.want {
				t.Errorf("NewStore: got %v, %v", st, err)
			}
		})
	}
}

func TestSourceErrors(t *testing.T) {
	writeFiles(t, map[string]string{"policy": "policy p {\n}\n"})
	line := func(words ...string) Line { return Line{"Corefile", 3, words} }
	for _, tc := range []struct {
		name string
		src  Source
		want string
	}{
		{"none", Source{}, "no policy: give a policy file or inline policy lines"},
		{"both", Source{"policy", []Line{line("mode", "open")}}, "Corefile:3: a policy file and inline policy lines exclude each other"},
		{"directory", Source{File: "."}, "policy file: .: not a regular file"},
		{"client inline", Source{Inline: []Line{line("client", "10.0.0.0/8")}}, "Corefile:3: client lines need a policy file, an inline policy is for every client"},
		{"policy inline", Source{Inline: []Line{line("policy", "a", "{")}}, `Corefile:3: unknown word "policy", accepted are mode, preset, allow, deny, allow_list, ports, client and private`},
		{"no words inline", Source{Inline: []Line{line()}}, "Corefile:3: line without a word, accepted are mode, preset, allow, deny, allow_list, ports, client and private"},
		{"empty word inline", Source{Inline: []Line{line("allow", "")}}, "Corefile:3: rule is empty, " + ruleForm},
		{"blank inside a word inline", Source{Inline: []Line{line("allow", "a.example b.example")}}, `Corefile:3: rule "a.example b.example": name "a.example b.example" has the character " ", only letters, digits, '-', '_' and '.' are accepted`},
		{"list missing inline", Source{Inline: []Line{line("allow_list", "none")}}, "Corefile:3: allow_list: stat none: no such file or directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set, err := Load(tc.src)
			if err == nil {
				t.Fatalf("accepted as %s", texts(set))
			}
			if err.Error() != tc.want {
				t.Errorf("got  %s\nwant %s", err, tc.want)
			}
		})
	}
}

func TestInline(t *testing.T) {
	dir := writeFiles(t, map[string]string{"conf/extra": "list.example\n"})
	file := filepath.Join(dir, "conf/Corefile")
	set, err := Load(Source{Inline: []Line{
		{file, 3, []string{"mode", "learn"}},
		{file, 4, []string{"allow", "a.example", ".b.example:8443"}},
		{file, 7, []string{"allow_list", "extra"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	sel := set.Select(netip.MustParseAddr("192.0.2.1"), "")
	if sel.Policy() != "default" || sel.Mode() != Learn {
		t.Errorf("got policy %q, mode %s", sel.Policy(), sel.Mode())
	}
	for name, want := range map[string]string{
		"a.example":    file + ":4",
		"list.example": filepath.Join(dir, "conf/extra") + ":1",
	} {
		if d := decide(t, sel, mustName(t, name), 443); d.Verdict != Allow || d.Rule.String() != want {
			t.Errorf("%s: got %s by %s, want allow by %s", name, outcome(d), d.Rule, want)
		}
	}

	// A body without a line denies everything, as a policy without rules does.
	set, err = Load(Source{Inline: []Line{}})
	if err != nil {
		t.Fatal(err)
	}
	if d := decide(t, set.Select(netip.MustParseAddr("192.0.2.1"), ""), mustName(t, "a.example"), 443); d.Reason != ReasonNotAllowed {
		t.Errorf("empty body: got %s", outcome(d))
	}
}

// The rows of the hostile cases that are about a whole file at start. What the same file does on reload is
// in TestReloadBad.
func TestFileAtStart(t *testing.T) {
	load := func(t *testing.T, list string) (*Set, error) {
		writeFiles(t, map[string]string{"policy": "policy p {\n allow_list list\n}\n", "list": list})
		return Load(Source{File: "policy"})
	}
	t.Run("policyfile-004", func(t *testing.T) {
		for _, text := range []string{"\xff\xfep\x00o\x00l\x00", "\xfe\xff\x00p\x00o"} {
			writeFiles(t, map[string]string{"policy": text})
			if _, err := Load(Source{File: "policy"}); err == nil || !strings.Contains(err.Error(), "is not UTF-8") {
				t.Errorf("got %v", err)
			}
		}
	})
	t.Run("policyfile-025", func(t *testing.T) {
		// The lines behind one of 1 MiB count: a comment that long is nothing special, a rule is an error.
		set, err := load(t, "a.example\n#"+strings.Repeat("x", 1<<20)+"\nb.example\n")
		if err != nil || texts(set) != "allow a.example; allow b.example" {
			t.Errorf("got %v, %v", set, err)
		}
		if _, err := load(t, "a.example\n"+strings.Repeat("x", 1<<20)+"\nb.example\n"); err == nil || !strings.HasPrefix(err.Error(), "list:2: ") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("policyfile-027", func(t *testing.T) {
		dir := t.TempDir()
		for _, f := range []func(Source) error{
			func(src Source) error { _, err := Load(src); return err },
			func(src Source) error { _, err := NewStore(src, Options{}); return err },
		} {
			path := filepath.Join(dir, "none")
			want := "policy file: stat " + path + ": no such file or directory"
			if err := f(Source{File: path}); err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	})
	t.Run("policyfile-034", func(t *testing.T) {
		lines := slices.Repeat([]string{"ok.example"}, 10)
		lines[4] = "http://x"
		_, err := load(t, strings.Join(lines, "\n")+"\n")
		if want := `list:5: "http://x" is a URL, write the host name alone: "x"`; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
	t.Run("policyfile-035", func(t *testing.T) {
		for list, want := range map[string]string{"# x\n.github.com": "allow .github.com", "# x\n.github.co": "allow .github.co"} {
			set, err := load(t, list)
			if err != nil {
				t.Fatal(err)
			}
			if texts(set) != want {
				t.Errorf("got %s, want %s", texts(set), want)
			}
			if got, want := set.Warnings(), []string{"list:2: the last line has no line end; is the file complete?"}; !slices.Equal(got, want) {
				t.Errorf("Warnings() = %q, want %q", got, want)
			}
		}
	})
	t.Run("policyfile-036", func(t *testing.T) {
		a, b := setOf(t, "policy p {\nallow a.example\n}\n"), setOf(t, "policy p {\nallow b.example\n}\n")
		if a.Hash() == b.Hash() {
			t.Error("two policies have one hash")
		}
	})
}

// A file that cannot be a policy is refused before it takes memory.
func TestLoadHugeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 40); err != nil { // sparse
		t.Fatal(err)
	}
	if _, err := Load(Source{File: path}); err == nil || !strings.Contains(err.Error(), "over 256 MiB") {
		t.Errorf("got %v", err)
	}
}

func TestPrivateLine(t *testing.T) {
	for _, tc := range []struct {
		prefix string
		want   []string
	}{
		{"10.0.0.0/8", nil},
		{"10.20.0.5", nil},
		{"fd00:1::/64", nil},
		{"169.254.0.0/16", []string{"policy:2: private 169.254.0.0/16 has cloud metadata addresses in it, they stay denied"}},
		{"169.254.169.254/31", []string{"policy:2: private 169.254.169.254/31 has cloud metadata addresses in it, they stay denied"}},
		{"100.64.0.0/10", []string{"policy:2: private 100.64.0.0/10 has cloud metadata addresses in it, they stay denied"}},
		{"fd00::/8", []string{"policy:2: private fd00::/8 has cloud metadata addresses in it, they stay denied"}},
		{"0.0.0.0/0", []string{"policy:2: private 0.0.0.0/0 has cloud metadata addresses in it, they stay denied"}},
		{"::/0", []string{"policy:2: private ::/0 has cloud metadata addresses in it, they stay denied"}},
	} {
		t.Run(tc.prefix, func(t *testing.T) {
			set := setOf(t, "policy p {\nprivate "+tc.prefix+"\n}\n")
			if got := set.Warnings(); !slices.Equal(got, tc.want) {
				t.Errorf("Warnings() = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestHash(t *testing.T) {
	const base = "policy a {\nclient 10.0.0.0/8 fd00::/8\nmode open\nallow .example.com:443,8443 bücher.example\ndeny x.example.com\nprivate 10.0.0.1\n}\npolicy b {\npreset npm\n}\n"
	hash := func(doc string) string {
		t.Helper()
		set, err := compileText(doc, "list.example\n")
		if err != nil {
			t.Fatal(err)
		}
		if h := set.Hash(); !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(h) {
			t.Errorf("Hash() = %q, want 64 hex digits", h)
		}
		return set.Hash()
	}
	want := hash(base)
	for name, doc := range map[string]string{
		"comments":         strings.ReplaceAll(base, "\n", " # x\n# y\n"),
		"blanks":           strings.ReplaceAll(strings.ReplaceAll(base, " ", " \t "), "\n", "\n\n"),
		"CRLF":             strings.ReplaceAll(base, "\n", "\r\n"),
		"byte order mark":  byteOrderMark + base,
		"no line end":      strings.TrimSuffix(base, "\n"),
		"case of names":    strings.ReplaceAll(base, "example.com", "Example.COM"),
		"trailing dot":     strings.ReplaceAll(base, "x.example.com", "x.example.com."),
		"A-label":          strings.ReplaceAll(base, "bücher", "xn--bcher-kva"),
		"order of ports":   strings.ReplaceAll(base, "443,8443", "8443,443,8443"),
		"client spelled":   strings.ReplaceAll(base, "fd00::/8", "FD00:0::0/8"),
		"default ports":    strings.ReplaceAll(base, "policy b {", "policy b {\nports 443 80"),
		"rules on lines":   strings.ReplaceAll(base, "8443 bücher", "8443\nallow bücher"),
		"default mode":     strings.ReplaceAll(base, "policy b {", "policy b {\nmode strict"),
		"preset spelt out": strings.ReplaceAll(base, "preset npm", "allow registry.npmjs.org"),
	} {
		if got := hash(doc); got != want {
			t.Errorf("%s: another hash", name)
		}
	}
	seen := map[string]string{want: "the document itself"}
	for name, doc := range map[string]string{
		"rule more":         strings.ReplaceAll(base, "preset npm", "preset npm\nallow a.example"),
		"rule less":         strings.ReplaceAll(base, "deny x.example.com\n", ""),
		"rule from a list":  strings.ReplaceAll(base, "preset npm", "preset npm\nallow_list list"),
		"allow for deny":    strings.ReplaceAll(base, "deny", "allow"),
		"scope":             strings.ReplaceAll(base, " .example", " *.example"),
		"port":              strings.ReplaceAll(base, "443,8443", "443"),
		"any port":          strings.ReplaceAll(base, "443,8443", "*"),
		"order of rules":    strings.ReplaceAll(base, ".example.com:443,8443 bücher.example", "bücher.example .example.com:443,8443"),
		"order of policies": "policy b {\npreset npm\n}\n" + strings.TrimSuffix(base, "policy b {\npreset npm\n}\n"),
		"preset":            strings.ReplaceAll(base, "npm", "yarn"),
		"mode":              strings.ReplaceAll(base, "open", "learn"),
		"ports":             strings.ReplaceAll(base, "preset npm", "preset npm\nports 443"),
		"client":            strings.ReplaceAll(base, "10.0.0.0/8", "10.0.0.0/9"),
		"private":           strings.ReplaceAll(base, "private 10.0.0.1", "private 10.0.0.2"),
		"no private":        strings.ReplaceAll(base, "private 10.0.0.1\n", ""),
		"name of a policy":  strings.ReplaceAll(base, "policy b", "policy c"),
		"policy more":       base + "policy c {\nclient 192.0.2.1\n}\n",
	} {
		got := hash(doc)
		if other, ok := seen[got]; ok {
			t.Errorf("%s: the hash of %s", name, other)
		}
		seen[got] = name
	}
}

// The Corefile may have a body inline where the Caddyfile names a file: the same policy, the same hash.
func TestHashInline(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"policy": "policy default {\n mode open\n preset npm\n allow a.example:8443\n allow_list list\n}\n",
		"list":   "b.example\n",
	})
	fromFile, err := Load(Source{File: "policy"})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "Corefile")
	lines := []Line{
		{file, 3, []string{"mode", "open"}},
		{file, 5, []string{"preset", "npm"}},
		{file, 6, []string{"allow", "A.example.:8443", "b.example"}},
	}
	inline, err := Load(Source{Inline: lines})
	if err != nil {
		t.Fatal(err)
	}
	if inline.Hash() != fromFile.Hash() {
		t.Error("inline and from a file: two hashes")
	}
}

func TestSetRules(t *testing.T) {
	if got := setOf(t, "policy a {\nallow a b\ndeny c\n}\npolicy b {\nclient 10.0.0.1\nallow a\n}\n").Rules(); got != 4 {
		t.Errorf("Rules() = %d, want 4", got)
	}
}
