package caddymodule

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func parseName(t testing.TB, s string) policy.Name {
	t.Helper()
	n, err := policy.ParseName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// dirOf returns a directory for a test that ends before Caddy has stored the last certificate.
func dirOf(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandboxallow")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// loadSites has Caddy run sites, and stop.
func loadSites(t *testing.T, globals, text string) (*sites, error) {
	t.Helper()
	dir := dirOf(t)
	head := fmt.Sprintf("{\nadmin off\npersist_config off\nstorage file_system %s\nhttp_port 9\n%s\nlog {\noutput file %s\n}\nsandboxallow {\nallow .example.com\n}\n}\n",
		filepath.Join(dir, "storage"), globals, filepath.Join(dir, "log"))
	data, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(head+text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { caddy.Stop() })
	if err := caddy.Load(data, true); err != nil {
		return nil, err
	}
	app, err := appOf(caddy.ActiveContext())
	if err != nil {
		return nil, err
	}
	return app.sites()
}

func TestFindSites(t *testing.T) {
	s, err := loadSites(t, "", `
https://api.example.com, https://API2.example.com:8443 {
	sandboxallow broker
}
https://*.example.com {
	sandboxallow broker {
		except pinned.example.com
	}
}
https://*.example.com:444, https://a.*.test:444 {
	bind sandboxallow/broker
	tls {
		issuer sandboxallow
	}
	route {
		@a host only.example.com
		sandboxallow @a broker
		respond 403
	}
}
http://127.0.0.1:0 {
	respond 404
}
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		port uint16
		want brokering
	}{
		{"api.example.com", 443, brokeredHere},
		{"api.example.com", 444, brokeredHere}, // a pattern
		{"api.example.com", 8443, brokeredOnOther},
		{"api2.example.com", 8443, brokeredHere},
		{"api2.example.com", 443, brokeredHere},
		{"other.example.com", 443, brokeredHere},
		{"other.example.com", 444, brokeredHere}, // whatever stands within the site
		{"other.example.com", 5432, brokeredOnOther},
		{"pinned.example.com", 443, brokeredOnOther}, // of the third site
		{"pinned.example.com", 444, brokeredHere},
		{"a.b.test", 444, brokeredHere},
		{"a.b.test", 443, brokeredOnOther},
		{"b.b.test", 444, notBrokered},
		{"a.b.c.test", 444, notBrokered},
		{"example.com", 443, notBrokered},
		{"a.b.example.com", 443, notBrokered},
		{"example.org", 443, notBrokered},
		{"com", 443, notBrokered},
	} {
		if got := s.brokering(parseName(t, tc.name), tc.port); got != tc.want {
			t.Errorf("%s:%d: %v, want %v", tc.name, tc.port, got, tc.want)
		}
	}
	for subject, want := range map[string]bool{
		"api.example.com": true, "*.example.com": true, "a.*.test": true, "x.example.com": true,
		"*.test": false, "*": false, "example.com": false, "*.*.example.com": false, "127.0.0.1": false, "": false,
	} {
		if got := s.brokers(subject); got != want {
			t.Errorf("certificate for %q: %v, want %v", subject, got, want)
		}
	}
}

func TestNoSites(t *testing.T) {
	s, err := loadSites(t, "", "http://127.0.0.1:0 {\nrespond 404\n}\n")
	if err != nil || s.brokering(parseName(t, "api.example.com"), 443) != notBrokered {
		t.Errorf("%v, %v", s, err)
	}
}

// What is not clearly a site that brokers does not start.
func TestSiteErrors(t *testing.T) {
	const by = "\nreverse_proxy https://api.example.com {\ntransport sandboxallow\n}\n"
	site := func(host, body string) string { return host + " {\n" + body + "\n}\n" }
	bound := "bind sandboxallow/broker\ntls {\nissuer sandboxallow\n}\n"
	for _, tc := range []struct{ name, globals, in, want string }{
		{"any host", "", site("https://", "sandboxallow broker"), "is for any host"},
		{"any host on a port", "", site(":8443", bound+"sandboxallow broker"), "is for any host"},
		{"any host too", "", site("https://api.example.com, https://", bound+"sandboxallow broker"), "is for any host"},
		{"placeholder", "", site("https://{$HOST_OF_NOBODY:{http.vars.x}}", bound+"sandboxallow broker"), "has a placeholder"},
		{"address", "", site("https://192.0.2.1", "sandboxallow broker"), "is an address"},
		{"half a label", "", site("https://api*.example.com", bound+"sandboxallow broker"), "has the character"},
		{"clear text", "", site("http://api.example.com:8081", "sandboxallow broker"), "has no TLS"},
		{"the port of clear text", "https_port 10", site("https://api.example.com, http://api.example.com", bound+"sandboxallow broker"), "has no TLS"},
		{"TCP too", "", site("https://api.example.com:8451", "bind 127.0.0.1\nsandboxallow broker"), "accepted is `bind sandboxallow/broker` alone"},
		{"TCP alone", "", site("https://api.example.com", "bind 127.0.0.1\nroute {\nsandboxallow broker\n}"), "listens on 127.0.0.1:443, accepted is `bind sandboxallow/broker` alone"},
		{"nested, not bound", "", site("https://api.example.com:0", "route {\nsandboxallow broker\n}"), "accepted is `bind sandboxallow/broker` alone"},
		{"no broker", "", site("https://api.example.com", "bind sandboxallow/broker\ntls {\nissuer sandboxallow\n}\nrespond 200"), "the site api.example.com is bound to sandboxallow/broker and lacks `sandboxallow broker`"},
		{"no broker beside one", "", site("https://*.example.com", "sandboxallow broker") + site("https://api.example.com", "bind sandboxallow/broker\ntls {\nissuer sandboxallow\n}\nrespond 200"), "the site api.example.com is bound to sandboxallow/broker and lacks"},
		{"handle comes first", "", site("https://api.example.com", "sandboxallow broker\nhandle /v1/* {"+by+"}"), "write `route { sandboxallow broker ... }` around all of it"},
		{"broker comes last", "", site("https://api.example.com", bound+"route {"+by+"sandboxallow broker\n}"), "`reverse_proxy` stands before `sandboxallow broker`"},
		{"invoked before", "", "&(up) {" + by + "}\n" + site("https://api.example.com", bound+"route {\ninvoke up\nsandboxallow broker\n}"), "`reverse_proxy` stands before"},
		{"another issuer", "", site("https://api.example.com", "bind sandboxallow/broker\nroute {\nsandboxallow broker\n}"), "certificates for api.example.com would not be those of `tls { issuer sandboxallow }`"},
		{"another issuer too", "", site("https://api.example.com", "sandboxallow broker\ntls {\nissuer acme\n}"), "would not be those of"},
		{"except of no wildcard", "", site("https://api.example.com", "sandboxallow broker {\nexcept other.example.com\n}"), "the site is not for that name"},
		{"except of that name", "", site("https://api.example.com", "sandboxallow broker {\nexcept api.example.com\n}"), "the site is for that very name"},
		{"except of another wildcard", "", site("https://*.example.com", "sandboxallow broker {\nexcept a.b.example.com\n}"), "the site is not for that name"},
		{"except of no name", "", site("https://*.example.com", "sandboxallow broker {\nexcept *.example.com\n}"), "except: name"},
		{"removed and kept", "", site("https://api.example.com", "sandboxallow broker {\nremove_header X-Team\nkeep x-team\n}"), "both to be removed and to be kept"},
		{"no letter", "", site("https://api.example.com", "sandboxallow broker {\nremove_query _\n}"), `"_" is to be removed or kept, and has no letter or digit`},
		{"option", "", site("https://api.example.com", "sandboxallow broker {\nsecret x\n}"), `unknown option "secret", accepted are except, remove_header, remove_query and keep`},
		{"no names", "", site("https://api.example.com", "sandboxallow broker {\nkeep\n}"), "wrong argument count"},
		{"two arguments", "", site("https://api.example.com", "sandboxallow broker x"), "wrong argument count"},
		{"another network host", "", site("https://api.example.com", "bind sandboxallow/other\nrespond 200"), "accepted is sandboxallow/broker"},
		{"transport to clear text", "", site("https://api.example.com", "sandboxallow broker\nreverse_proxy http://api.example.com {\ntransport sandboxallow\n}"), "upstream address scheme is HTTP"},
		{"transport option", "", site("https://api.example.com", "sandboxallow broker\nreverse_proxy https://api.example.com {\ntransport sandboxallow {\ntls_insecure_skip_verify\n}\n}"), "accepted are hosts and tls_trust_pool"},
		{"transport argument", "", site("https://api.example.com", "sandboxallow broker\nreverse_proxy https://api.example.com {\ntransport sandboxallow x\n}"), "wrong argument count"},
		{"hosts", "", site("https://api.example.com", "sandboxallow broker\nreverse_proxy https://api.example.com {\ntransport sandboxallow {\nhosts {host}\n}\n}"), "cannot stand in an authority"},
		{"issuer option", "", site("https://api.example.com", "sandboxallow broker\ntls {\nissuer sandboxallow {\nlifetime 1h\n}\n}"), "accepted is ca"},
		{"authority", "", site("https://api.example.com", "bind sandboxallow/broker\ntls {\nissuer sandboxallow {\nca other\n}\n}\nroute {\nsandboxallow broker\n}"), "no certificate authority configured with id: other"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := loadSites(t, tc.globals, tc.in)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// A layer4 server cannot take what is fed to the site.
func TestNetworkOnce(t *testing.T) {
	layer4 := "layer4 {\nsandboxallow/broker:443 {\nroute {\nsandboxallow\n}\n}\n}\n"
	if _, err := loadSites(t, layer4, "https://api.example.com {\nsandboxallow broker\n}\n"); err == nil || !strings.Contains(err.Error(), "is listened on already") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat("/run/sandboxallow/broker"); err == nil {
		t.Error("there is a socket")
	}
}

func TestWarnOfSites(t *testing.T) {
	for _, tc := range []struct {
		name    string
		sites   sites
		feeders int
		warn    bool
	}{
		{"none", sites{}, 0, false},
		{"a site, and nothing leads there", sites{names: map[policy.Name][]uint16{parseName(t, "api.example.com"): {443}}}, 0, true},
		{"a wildcard, and nothing leads there", sites{patterns: []pattern{{}}}, 0, true},
		{"a site and a handler", sites{patterns: []pattern{{}}}, 1, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			core, logs := observer.New(zap.WarnLevel)
			a := &App{log: zap.New(core), feeders: tc.feeders, sites: func() (*sites, error) { return &tc.sites, nil }}
			a.warnOfSites()
			if warned := logs.Len() > 0; warned != tc.warn {
				t.Errorf("warned %v, want %v", warned, tc.warn)
			}
		})
	}
}

// What leads to sites, and is counted so that nobody needs to be warned.
func TestFeeders(t *testing.T) {
	for _, tc := range []struct {
		name, option, globals string
		want                  int
	}{
		{"nothing", "", "", 0},
		{"listen", "listen :443\nlisten :8443 {\nupstream_port 443\n}", "", 2},
		{"a route", "", "layer4 {\n:443 {\nroute {\nsandboxallow\n}\n}\n}\n", 1},
		{"a route of PostgreSQL", "", "layer4 {\n:5432 {\nroute {\nsandboxallow postgres\n}\n}\n}\n", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, err := caddy.ProvisionContext(adapt(t, "{\n"+tc.globals+"sandboxallow {\nallow a.b\n"+tc.option+"\n}\n}\n"))
			if err != nil {
				t.Fatal(err)
			}
			if app, err := appOf(ctx); err != nil || app.feeders != tc.want {
				t.Errorf("%d, %v, want %d", app.feeders, err, tc.want)
			}
		})
	}
}
