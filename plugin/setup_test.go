package sandboxallow

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
)

func TestParse(t *testing.T) {
	doc := writeFile(t, "policy", "policy default {\n\tallow example.com\n}\n\npolicy builds {\n\tclient 10.0.0.0/8\n\tallow example.org\n}\n")
	broken := writeFile(t, "broken", "policy default {\n\tallow example.com\n\tpermit example.org\n}\n")
	missing := filepath.Join(t.TempDir(), "missing")

	tests := []struct {
		name  string
		input string
		err   string // part of it; "" for none
	}{
		{"smallest", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\n}", ""},
		{"everything", "sandboxallow {\nanswer 10.200.0.1 fd12::1\npolicy_file " + doc + "\npolicy builds\nttl 0\nnegative_ttl 10\npoll 100ms\n}", ""},
		{"body", "sandboxallow {\nanswer fd12::1\nmode open\ndeny example.com\nports 443\nprivate 10.0.0.0/8\npreset github npm\nallow a.test\nallow b.test\n}", ""},
		{"log all", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\nlog all\n}", ""},
		{"log denied", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\nlog denied\n}", ""},
		{"log off", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\nlog off\n}", ""},
		{"own policy", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\npolicy default\n}", ""},

		{"no block", "sandboxallow", "Testfile:1: no answer"},
		{"empty block", "sandboxallow {\n}", "Testfile:1: no answer"},
		{"argument", "sandboxallow example.com {\nanswer 10.200.0.1\n}", "Testfile:1 - Error during parsing: Wrong argument count"},
		{"no answer", "sandboxallow {\nallow example.com\n}", "at least one address"},
		{"no policy", "sandboxallow {\nanswer 10.200.0.1\n}", "Testfile:1: no policy, accepted are policy_file PATH or"},
		{"twice", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\n}\nsandboxallow {\nanswer 10.200.0.1\nallow example.com\n}", "Testfile:5 - Error during parsing: sandboxallow is given twice in one server block"},
		{"nested block", "sandboxallow {\nanswer 10.200.0.1 {\nallow example.com\n}\n}", `"answer" opens no block`},
		{"block of a policy", "sandboxallow {\nanswer 10.200.0.1\npolicy default {\nallow example.com\n}\n}", `"policy" opens no block`},
		{"brace on a line", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\n{\n}\n}", `unexpected "{"`},

		{"answer without address", "sandboxallow {\nanswer\nallow example.com\n}", "Testfile:2 - Error during parsing: Wrong argument count"},
		{"answer is a name", "sandboxallow {\nanswer gateway\nallow example.com\n}", `Testfile:2 - Error during parsing: answer "gateway", accepted are IP addresses`},
		{"answer with a port", "sandboxallow {\nanswer 10.200.0.1:443\nallow example.com\n}", "accepted are IP addresses"},
		{"answer is a prefix", "sandboxallow {\nanswer 10.200.0.0/24\nallow example.com\n}", "accepted are IP addresses"},
		{"answer with zeros", "sandboxallow {\nanswer 010.200.0.1\nallow example.com\n}", "accepted are IP addresses"},
		{"answer mapped", "sandboxallow {\nanswer ::ffff:10.200.0.1\nallow example.com\n}", "IPv4-mapped, write 10.200.0.1"},
		{"answer with a zone", "sandboxallow {\nanswer fe80::1%eth0\nallow example.com\n}", "has a zone"},
		{"answer unspecified", "sandboxallow {\nanswer 0.0.0.0\nallow example.com\n}", "no address that a client can reach"},
		{"answer unspecified IPv6", "sandboxallow {\nanswer ::\nallow example.com\n}", "no address that a client can reach"},
		{"answer multicast", "sandboxallow {\nanswer 224.0.0.1\nallow example.com\n}", "no address that a client can reach"},
		{"answer link-local", "sandboxallow {\nanswer fe80::1\nallow example.com\n}", "no address that a client can reach"},
		{"answer duplicate", "sandboxallow {\nanswer fd12::1 fd12:0::1\nallow example.com\n}", "is given twice"},
		{"answer line twice", "sandboxallow {\nanswer 10.200.0.1\nanswer 10.200.0.2\nallow example.com\n}", "Testfile:3 - Error during parsing: answer is given twice"},
		{"too many answers", "sandboxallow {\nanswer 10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5 10.0.0.6 10.0.0.7 10.0.0.8 10.0.0.9\nallow example.com\n}", "more than 8 addresses"},

		{"ttl without a number", "sandboxallow {\nanswer 10.200.0.1\nttl\nallow example.com\n}", "Wrong argument count"},
		{"ttl with two", "sandboxallow {\nanswer 10.200.0.1\nttl 1 2\nallow example.com\n}", "Wrong argument count"},
		{"ttl with a unit", "sandboxallow {\nanswer 10.200.0.1\nttl 60s\nallow example.com\n}", "accepted are 0 to 86400"},
		{"ttl signed", "sandboxallow {\nanswer 10.200.0.1\nttl +60\nallow example.com\n}", "accepted are 0 to 86400"},
		{"ttl too large", "sandboxallow {\nanswer 10.200.0.1\nttl 86401\nallow example.com\n}", "accepted are 0 to 86400"},
		{"ttl twice", "sandboxallow {\nanswer 10.200.0.1\nttl 1\nttl 1\nallow example.com\n}", "ttl is given twice"},
		{"negative_ttl negative", "sandboxallow {\nanswer 10.200.0.1\nnegative_ttl -1\nallow example.com\n}", "accepted are 0 to 86400"},
		{"poll without a unit", "sandboxallow {\nanswer 10.200.0.1\npoll 1\nallow example.com\n}", "accepted is a duration"},
		{"poll too short", "sandboxallow {\nanswer 10.200.0.1\npoll 99ms\nallow example.com\n}", "at least 100ms"},
		{"poll without a duration", "sandboxallow {\nanswer 10.200.0.1\npoll\nallow example.com\n}", "Wrong argument count"},

		{"log without a word", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\nlog\n}", "Testfile:4 - Error during parsing: Wrong argument count"},
		{"log with two", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\nlog denied all\n}", "Wrong argument count"},
		{"log unknown", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\nlog none\n}", `Testfile:4 - Error during parsing: log "none", accepted are denied, all and off`},
		{"log twice", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\nlog off\nlog all\n}", "log is given twice"},

		{"policy_file without a path", "sandboxallow {\nanswer 10.200.0.1\npolicy_file\n}", "Testfile:3 - Error during parsing: Wrong argument count"},
		{"policy_file with an empty path", "sandboxallow {\nanswer 10.200.0.1\npolicy_file \"\"\n}", "Wrong argument count"},
		{"policy_file with two", "sandboxallow {\nanswer 10.200.0.1\npolicy_file a b\n}", "Wrong argument count"},
		{"policyfile-027", "sandboxallow {\nanswer 10.200.0.1\npolicy_file " + missing + "\n}", "Testfile:3: policy file: "},
		{"broken document", "sandboxallow {\nanswer 10.200.0.1\npolicy_file " + broken + "\n}", "Testfile:3: " + broken + ":3: unknown word \"permit\""},
		{"document and body", "sandboxallow {\nanswer 10.200.0.1\npolicy_file " + doc + "\nallow example.com\n}", `Testfile:4: "allow" is of a policy`},
		{"unknown policy", "sandboxallow {\nanswer 10.200.0.1\npolicy_file " + doc + "\npolicy tests\n}", `Testfile:4: policy "tests" does not exist, accepted are default, builds`},
		{"unknown inline policy", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\npolicy builds\n}", `Testfile:4: policy "builds" does not exist`},
		{"policy without a name", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\npolicy\n}", "Wrong argument count"},

		{"unknown word", "sandboxallow {\nanswer 10.200.0.1\nfallthrough\n}", `Testfile:3: unknown word "fallthrough", accepted are mode, preset`},
		{"bad rule", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\nallow https://example.com/\n}", "Testfile:4: "},
		{"client in the body", "sandboxallow {\nanswer 10.200.0.1\nclient 10.0.0.0/8\nallow example.com\n}", "Testfile:3: client lines need a policy file"},
		{"mode unknown", "sandboxallow {\nanswer 10.200.0.1\nmode lax\n}", "accepted are strict, open and learn"},
		{"missing list", "sandboxallow {\nanswer 10.200.0.1\nallow_list " + missing + "\n}", "Testfile:3: allow_list: "},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s, err := parseText(tc.input)
			switch {
			case tc.err == "" && err != nil:
				t.Fatalf("got error %v, want none", err)
			case tc.err != "" && err == nil:
				t.Fatalf("got no error, want %q", tc.err)
			case tc.err != "" && !strings.Contains(err.Error(), tc.err):
				t.Fatalf("got error %q, want %q in it", err, tc.err)
			case err == nil && s.store == nil:
				t.Fatal("got no policy")
			}
		})
	}
}

func TestParseDefaults(t *testing.T) {
	s := parseBlock(t, p0)
	if s.ttl != 60 || s.negative != 5 {
		t.Errorf("got TTLs %d and %d, want 60 and 5", s.ttl, s.negative)
	}
	s = parseBlock(t, p0+"\nttl 30\nnegative_ttl 2")
	if s.ttl != 30 || s.negative != 2 {
		t.Errorf("got TTLs %d and %d, want 30 and 2", s.ttl, s.negative)
	}
}

func TestParseRelativePath(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "policy"), []byte("policy default {\n\tallow example.com\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const input = "sandboxallow {\nanswer 10.200.0.1\npolicy_file policy\n}"

	t.Run("root", func(t *testing.T) {
		c := caddy.NewTestController("dns", input)
		dnsserver.GetConfig(c).Root = dir
		if _, err := parse(c); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("working directory", func(t *testing.T) {
		t.Chdir(dir)
		if _, err := parseText(input); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("neither", func(t *testing.T) {
		if _, err := parseText(input); err == nil {
			t.Fatal("got no error for a file that is not there")
		}
	})
}

// A policy on which nothing was started must not leave anything behind: a new instance that fails to
// start is never told to stop.
func TestParseStartsNothing(t *testing.T) {
	doc := writeFile(t, "policy", "policy default {\n\tallow example.com\n}\n")
	before := len(running.all())
	c := caddy.NewTestController("dns", "sandboxallow {\nanswer 10.200.0.1\npoll 100ms\npolicy_file "+doc+"\n}")
	if err := setup(c); err != nil {
		t.Fatal(err)
	}
	if got := len(running.all()); got != before {
		t.Errorf("got %d running plugins after setup, want %d", got, before)
	}
}

func TestSetupErrorNamesThePlugin(t *testing.T) {
	err := setup(caddy.NewTestController("dns", "sandboxallow"))
	if err == nil || !strings.HasPrefix(err.Error(), "plugin/sandboxallow: Testfile:1: ") {
		t.Errorf("got error %v, want plugin and file:line", err)
	}
}

func TestSetupRefusesWrongOrder(t *testing.T) {
	saved := dnsserver.Directives
	defer func() { dnsserver.Directives = saved }()
	d := slices.DeleteFunc(slices.Clone(saved), func(s string) bool { return s == name })
	dnsserver.Directives = append(d, name)

	err := setup(caddy.NewTestController("dns", "sandboxallow {\nanswer 10.200.0.1\nallow example.com\n}"))
	if err == nil || !strings.Contains(err.Error(), "behind cache") {
		t.Errorf("got error %v, want one about the order of plugins", err)
	}
}

func TestStopIsIdempotent(t *testing.T) {
	doc := writeFile(t, "policy", "policy default {\n\tallow example.com\n}\n")
	s := parseBlock(t, "answer 10.200.0.1\npoll 100ms\npolicy_file "+doc)
	s.stop()
	s.start()
	s.start()
	if !s.Ready() {
		t.Error("not ready after start")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.stop()
		s.stop()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("stop does not return")
	}
	if s.Ready() {
		t.Error("ready after stop")
	}
}
