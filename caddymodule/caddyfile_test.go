package caddymodule

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddytest"
	"github.com/prometheus/client_golang/prometheus"

	_ "github.com/mholt/caddy-l4/modules/l4proxyprotocol"

	_ "github.com/caddyserver/caddy/v2/modules/standard"
)

func prometheusRegistry(t *testing.T, a *App) *prometheus.Registry {
	t.Helper()
	reg := prometheus.NewRegistry()
	a.metrics = newMetrics(reg, a.store)
	a.metrics.closed(1, 2)
	return reg
}

func TestAdapt(t *testing.T) {
	files, err := filepath.Glob("testdata/*.caddytest")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in, want, ok := strings.Cut(string(data), "----------\n")
			if !ok {
				t.Fatal("no line ---------- between Caddyfile and JSON")
			}
			if !caddytest.CompareAdapt(t, "Caddyfile", in, "caddyfile", strings.TrimSpace(want)) {
				t.Error("the adapted Caddyfile differs")
			}
		})
	}
}

func TestAdaptErrors(t *testing.T) {
	app := func(lines string) string { return "{\n\tsandboxallow {\n" + lines + "\n\t}\n}\n" }
	handler := func(lines string) string {
		return "{\n\tsandboxallow {\n\t\tallow example.com\n\t}\n\tlayer4 {\n\t\t:8443 {\n\t\t\troute {\n\t\t\t\tsandboxallow {\n" + lines + "\n\t\t\t\t}\n\t\t\t}\n\t\t}\n\t}\n}\n"
	}
	for _, tc := range []struct{ name, in, want string }{
		{"no policy", app("poll 1s"), "accepted are policy_file PATH or the lines of a policy"},
		{"file and lines", app("policy_file /x\nallow example.com"), "exclude each other"},
		{"lines and file", app("allow example.com\npolicy_file /x"), "exclude each other"},
		{"twice", app("policy_file /x\npolicy_file /y"), "policy_file is given twice"},
		{"two apps", app("allow a.b") + app("allow a.b"), ""},
		{"argument", "{\n\tsandboxallow x {\n\t}\n}\n", "wrong argument count"},
		{"no argument", app("policy_file"), "wrong argument count"},
		{"extra argument", app("policy_file /x /y"), "wrong argument count"},
		{"duration", app("allow a.b\npoll fast"), `duration "fast", accepted are positive durations`},
		{"negative", app("allow a.b\nidle_timeout -1s"), "accepted are positive durations"},
		{"tunnels", app("allow a.b\nmax_tunnels none"), "accepted are positive numbers"},
		{"prefix", app("allow a.b\ndeny_addresses 10.0.0.1/8"), "has host bits, write 10.0.0.0/8"},
		{"block", app("allow a.b {\n\tx\n}"), `"allow" opens no block`},
		{"handler option", handler("name example.com"), `unknown option "name", accepted are upstream_port and policy`},
		{"handler port", handler("upstream_port 0"), "accepted are 1 to 65535"},
		{"handler port twice", handler("upstream_port 1\nupstream_port 2"), "upstream_port is given twice"},
		{"handler policy", handler("policy"), "wrong argument count"},
		{"handler protocol", strings.Replace(handler(""), "sandboxallow {\n\n", "sandboxallow mysql {\n", 1), `unknown argument "mysql", accepted is postgres`},
		{"handler arguments", strings.Replace(handler(""), "sandboxallow {\n\n", "sandboxallow postgres 5432 {\n", 1), "wrong argument count"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(tc.in), map[string]any{"filename": "Caddyfile"})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// What only shows when the configuration is provisioned, as `caddy validate` does.
func TestProvisionErrors(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"bad rule", "allow https://example.com/", `Caddyfile:3: "https://example.com/" is a URL, write the host name alone`},
		{"unknown word", "alow example.com", `Caddyfile:3: unknown word "alow"`},
		{"client inline", "client 10.0.0.1", "Caddyfile:3: client lines need a policy file"},
		{"missing file", "policy_file /nonexistent/policy", "/nonexistent/policy: no such file or directory"},
		{"bad resolver", "allow a.b\nresolvers one.example", "one.example"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := adapt(t, "{\n\tsandboxallow {\n\t\t"+tc.in+"\n\t}\n}\n")
			err := caddy.Validate(cfg)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("unknown policy", func(t *testing.T) {
		cfg := adapt(t, "{\n\tsandboxallow {\n\t\tallow a.b\n\t}\n\tlayer4 {\n\t\t127.0.0.1:0 {\n\t\t\troute {\n\t\t\t\tsandboxallow {\n\t\t\t\t\tpolicy strict\n\t\t\t\t}\n\t\t\t}\n\t\t}\n\t}\n}\n")
		err := caddy.Validate(cfg)
		if want := `Caddyfile:9: policy "strict" does not exist, accepted are default`; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	})
	t.Run("unknown protocol", func(t *testing.T) {
		cfg := config(t, []byte(`{"apps": {
			"sandboxallow": {"policy": [{"file": "x", "line": 1, "words": ["allow", "a.b"]}]},
			"layer4": {"servers": {"s": {"listen": ["127.0.0.1:0"], "routes": [{"handle": [{"handler": "sandboxallow", "protocol": "mysql"}]}]}}}
		}}`))
		if err := caddy.Validate(cfg); err == nil || !strings.Contains(err.Error(), `protocol is "mysql", accepted is postgres`) {
			t.Errorf("error %v, want one that names the protocol", err)
		}
	})
	t.Run("no app", func(t *testing.T) {
		cfg := adapt(t, "{\n\tlayer4 {\n\t\t127.0.0.1:0 {\n\t\t\troute {\n\t\t\t\tsandboxallow\n\t\t\t}\n\t\t}\n\t}\n}\n")
		err := caddy.Validate(cfg)
		if err == nil || !strings.Contains(err.Error(), "no sandboxallow app") {
			t.Errorf("error %v, want one that names the missing app", err)
		}
	})
}

func adapt(t *testing.T, in string) *caddy.Config {
	t.Helper()
	data, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(in), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range warnings {
		if !strings.Contains(w.Message, "not formatted") {
			t.Errorf("warning: %v", w)
		}
	}
	return config(t, data)
}

func config(t *testing.T, data []byte) *caddy.Config {
	t.Helper()
	cfg := new(caddy.Config)
	if err := json.Unmarshal(data, cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Admin = &caddy.AdminConfig{Disabled: true}
	return cfg
}

var codeBlock = regexp.MustCompile("(?s)```(caddyfile|json)\n(.*?)```")

func TestREADME(t *testing.T) {
	validExamples(t, "README.md", 10, "policy default {\n\tallow example.com\n}\n\npolicy strict {\n\tclient 10.0.0.0/8\n}\n")
}

// validExamples provisions every example of a page, of which there are at least so many, with a policy document
// in a place of the test's.
func validExamples(t *testing.T, page string, least int, document string) {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "policy")
	if err := os.WriteFile(file, []byte(document), 0o644); err != nil {
		t.Fatal(err)
	}
	blocks := codeBlock.FindAllStringSubmatch(string(data), -1)
	if len(blocks) < least {
		t.Fatalf("found %d examples, want them all", len(blocks))
	}
	for _, b := range blocks {
		text := strings.ReplaceAll(b[2], "/etc/sandboxallow/policy", file)
		var cfg *caddy.Config
		if b[1] == "json" {
			cfg = config(t, []byte(text))
		} else {
			if formatted := string(caddyfile.Format([]byte(text))); formatted != text {
				t.Errorf("not as caddy fmt would write it:\n%s", formatted)
			}
			cfg = adapt(t, text)
		}
		if err := caddy.Validate(cfg); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	}
}

func TestExampleCaddyfile(t *testing.T) {
	data, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SANDBOXALLOW_POLICY", "../policy.example")
	if err := caddy.Validate(adapt(t, string(data))); err != nil {
		t.Error(err)
	}
}
