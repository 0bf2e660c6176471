package caddymodule

import (
	"runtime"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// siteFile is a Caddyfile with a site that has our directive.
func siteFile(directive string) string {
	return "{\n\tsandboxallow {\n\t\tallow example.com\n\t}\n}\nhttp://:8880 {\n" + directive + "\n}\n"
}

func TestAdaptErrorsHTTP(t *testing.T) {
	const hash = "$2a$04$d3n4SMugw.97poF0fIa0Ze9i/pdfnCR5BvsCSCM.4x.BKiwNlvuV2"
	proxy := func(lines string) string { return siteFile("sandboxallow forward_proxy {\n" + lines + "\n}") }
	for _, tc := range []struct{ name, in, want string }{
		{"argument", siteFile("sandboxallow proxy"), `unknown argument "proxy", accepted are forward_proxy, broker and dashboard, at Caddyfile:7`},
		{"two arguments", siteFile("sandboxallow forward_proxy twice"), "wrong argument count"},
		{"option", siteFile("sandboxallow {\nname x\n}"), `unknown option "name", accepted are upstream_port and policy`},
		{"option of the proxy", siteFile("sandboxallow {\nbasic_auth {\na b\n}\n}"), `unknown option "basic_auth", accepted are upstream_port and policy`},
		{"option of the other", proxy("upstream_port 80"), `unknown option "upstream_port", accepted are policy and basic_auth`},
		{"port", siteFile("sandboxallow {\nupstream_port 0\n}"), "accepted are 1 to 65535"},
		{"port by name", siteFile("sandboxallow {\nupstream_port http\n}"), `"http", accepted are 1 to 65535`},
		{"no port", siteFile("sandboxallow {\nupstream_port\n}"), "wrong argument count"},
		{"two ports", siteFile("sandboxallow {\nupstream_port 80 81\n}"), "wrong argument count"},
		{"port twice", siteFile("sandboxallow {\nupstream_port 80\nupstream_port 81\n}"), "upstream_port is given twice, at Caddyfile:9"},
		{"policy twice", siteFile("sandboxallow {\npolicy a\npolicy b\n}"), "policy is given twice"},
		{"no policy", proxy("policy"), "wrong argument count"},
		{"auth twice", proxy("basic_auth {\na " + hash + "\n}\nbasic_auth {\nb " + hash + "\n}"), "basic_auth is given twice"},
		{"auth argument", proxy("basic_auth bcrypt {\na " + hash + "\n}"), "wrong argument count"},
		{"no account", proxy("basic_auth"), "basic_auth without an account"},
		{"no account in the block", proxy("basic_auth {\n}"), "basic_auth without an account"},
		{"no password", proxy("basic_auth {\nagent\n}"), "hashed by caddy hash-password"},
		{"more than a password", proxy("basic_auth {\nagent " + hash + " x\n}"), "hashed by caddy hash-password"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(tc.in), map[string]any{"filename": "Caddyfile"})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestProvisionErrorsHTTP(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"policy", siteFile("sandboxallow {\npolicy strict\n}"), `Caddyfile:8: policy "strict" does not exist, accepted are default`},
		{"policy of a proxy", siteFile("sandboxallow forward_proxy {\npolicy strict\n}"), `Caddyfile:8: policy "strict" does not exist, accepted are default`},
		{"no app", "http://:8880 {\nsandboxallow\n}\n", "no sandboxallow app"},
		{"password", siteFile("sandboxallow forward_proxy {\nbasic_auth {\nagent plain-text\n}\n}"), "basic_auth: base64-decoding password"},
		{"account twice", siteFile("sandboxallow forward_proxy {\nbasic_auth {\na $2a$x\na $2a$y\n}\n}"), "username is not unique"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := caddy.Validate(adapt(t, tc.in))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	const servers = `{"apps": {"sandboxallow": {"policy": [{"file": "x", "line": 1, "words": ["allow", "example.com"]}]},
		"http": {"servers": {"a": {"listen": ["127.0.0.1:0"], "routes": [{"handle": [HANDLER]}]}}}}}`
	for _, tc := range []struct{ name, handler, want string }{
		{"port of a proxy", `{"handler": "sandboxallow", "forward_proxy": true, "upstream_port": 80}`, "upstream_port is not for a forward proxy"},
		{"accounts without a proxy", `{"handler": "sandboxallow", "basic_auth": {"accounts": [{"username": "a", "password": "$2a$x"}]}}`, "basic_auth is for a forward proxy"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := caddy.Validate(config(t, []byte(strings.Replace(servers, "HANDLER", tc.handler, 1))))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// `caddy validate` starts nothing and leaves nothing behind.
func TestValidateHTTP(t *testing.T) {
	in := siteFile("sandboxallow") + "http://:8881 {\nsandboxallow forward_proxy\n}\n"
	if err := caddy.Validate(adapt(t, in)); err != nil { // what Caddy keeps from the first time on
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	for range 20 {
		if err := caddy.Validate(adapt(t, in)); err != nil {
			t.Fatal(err)
		}
	}
	if running.judge() != nil || open.held.Load() != 0 || open.len() != 0 {
		t.Errorf("app %v runs, %d places are taken", running.judge(), open.held.Load())
	}
	waitFor(t, "no goroutine to be left", func() bool { return runtime.NumGoroutine() <= before+3 })
}

// A site for one host sees requests for that host alone: somebody has to say so.
func TestHostsBefore(t *testing.T) {
	for _, tc := range []struct {
		name, site string
		warn       bool
	}{
		{"port", "http://:8880 {\nsandboxallow\n}\n", false},
		{"address", "http://127.0.0.1:8880 {\nsandboxallow\n}\n", true},
		{"name", "http://proxy.test:8880 {\nsandboxallow forward_proxy\n}\n", true},
		{"bind", "http://:8880 {\nbind 127.0.0.1\nsandboxallow\n}\n", false},
		{"matcher", "http://:8880 {\n@a host a.test\nsandboxallow @a\nrespond 403\n}\n", true},
		{"clients", "http://:8880 {\n@a remote_ip 127.0.0.1\nsandboxallow @a\nrespond 403\n}\n", false},
		{"nested", "http://:8880 {\nroute {\nhandle {\nsandboxallow\n}\n}\n}\n", false},
		{"of others", "http://:8880 {\n@a host a.test\nrespond @a 200\nsandboxallow\n}\n", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := startHTTP(t, setup{})
			data, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte("{\n\tadmin off\n\tpersist_config off\n\tlog {\n\toutput file "+g.log+"\n\tformat json\n\t}\n\tsandboxallow {\n\t\tallow example.com\n\t}\n}\n"+
				strings.ReplaceAll(tc.site, ":8880", ":0")), nil)
			if err != nil {
				t.Fatal(err)
			}
			g.skipLog()
			if err := caddy.Load(data, true); err != nil {
				t.Fatal(err)
			}
			g.entry("policy in force")
			warned := false
			for _, e := range g.entries() {
				warned = warned || strings.Contains(e["msg"].(string), "only requests for some hosts")
			}
			if warned != tc.warn {
				t.Errorf("warned %v, want %v", warned, tc.warn)
			}
		})
	}
}
