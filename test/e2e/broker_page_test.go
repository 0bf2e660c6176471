//go:build linux

package e2e

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	machine "github.com/sandboxallow/sandboxallow/test/need"
)

// fenced is a block of a page: what stands behind the fence, and the text.
var fenced = regexp.MustCompile("(?ms)^```(\\S[^\n]*)\n(.*?)^```$")

// variable is a line of a mapping in YAML, with what stands behind the value.
var variable = regexp.MustCompile(`(?m)^ {6}([A-Z_]+): (.*?)(?: +#.*)?$`)

// docs/brokering.md, as somebody does it who reads it from the top: all its sites in one configuration, its commands,
// and its variables for the clients of the sandbox.
func TestBrokerPage(t *testing.T) {
	need(t, "curl", "git", "python3", "java", "javac", "keytool", "wget", "unshare", "stdbuf")
	l := newLab(t)
	g := l.prepare(t, config{})
	corp, err := newAuthority(g.dir)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "brokering.md"))
	if err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer(
		"/run/caddy-admin.sock", g.path(adminSocket),
		"/run/secrets/", filepath.Join(l.dir, "secrets")+"/",
		"/etc/sandboxallow/corp-ca.pem", corp.file,
		"/etc/sandboxallow/", g.dir+"/",
		"172.30.0.64/26", "172.30.0.192/26", // the other one is of the sandbox's address
	)
	blocks := make(map[string][]string)
	for _, b := range fenced.FindAllStringSubmatch(string(page), -1) {
		blocks[b[1]] = append(blocks[b[1]], here.Replace(b[2]))
	}
	for what, n := range map[string]int{"caddyfile": 5, "text policy": 1, "yaml": 1, "sh gateway": 2, "sh sandbox": 1} {
		if len(blocks[what]) != n {
			t.Fatalf("%d blocks %q on the page, want %d", len(blocks[what]), what, n)
		}
	}
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	site := blocks["caddyfile"][0][strings.Index(blocks["caddyfile"][0], "https://"+openAI+" {"):]
	if short := here.Replace(string(readme)); !strings.Contains(short, indented(site)) {
		t.Errorf("the README has not the site of the page:\n%s", indented(site))
	}
	g.write(t, "Caddyfile", strings.Join(blocks["caddyfile"], "\n"))
	g.setPolicy(t, blocks["text policy"][0])

	// The internet of the page.
	keys := map[string]string{"openai": openAIKey, "anthropic": anthropicKey}
	for _, name := range []string{"github", "mistral", "mistral-research", "models"} {
		keys[name] = "key-of-" + name
	}
	for name, key := range keys {
		l.secret(t, name, key)
	}
	bearer := func(name string) field { return field{"Authorization", "Bearer " + keys[name]} }
	a, own := newAPI(l.ca, l.internet.web), newAPI(corp, l.internet.web)
	t.Cleanup(a.close)
	t.Cleanup(own.close)
	for name, key := range map[string]field{
		openAI: bearer("openai"), anthropic: {"X-Api-Key", anthropicKey}, "api.github.com": bearer("github"), "api.mistral.ai": bearer("mistral"),
	} {
		if err := a.host(l.internet, name, key, otherAddr); err != nil {
			t.Fatal(err)
		}
	}
	const models, codeload = "models.corp.example.com", "codeload.github.com"
	if err := own.host(l.internet, models, bearer("models"), netip.MustParseAddr("10.20.0.5")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.internet.host(codeload, webAddr); err != nil {
		t.Fatal(err)
	}

	g.run(t, config{env: []string{l.publicRoots(t)}})
	if got, want := g.inGateway(t, nil, "caddy fmt Caddyfile"), strings.Join(blocks["caddyfile"], "\n"); strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("not as caddy fmt would write it:\n%s", got)
	}
	if lines := g.caddy.log.with(0, "installing root certificate"); len(lines) > 0 {
		t.Errorf("the CA is installed on this machine: %s", lines)
	}
	env := []string{l.publicRoots(t), "JAVA_HOME=" + javaHome(t)}
	for _, script := range blocks["sh gateway"] {
		g.inGateway(t, env, script)
	}
	vars := make(map[string]string)
	for _, v := range variable.FindAllStringSubmatch(blocks["yaml"][0], -1) {
		vars[v[1]] = v[2]
	}
	var all []string
	for name, value := range vars {
		all = append(all, name+"="+value)
	}
	for _, line := range strings.Split(strings.TrimSpace(blocks["sh sandbox"][0]), "\n") {
		out, err := l.run(append([]string{"env"}, append(all, "sh", "-c", line)...)...)
		if err != nil || out != welcome {
			t.Errorf("%s: %q, %v", line, out, err)
		}
	}

	t.Run("streams", func(t *testing.T) {
		build(t, "javac", "-d", l.dir, testdata("Chat.java"))
		streamsThrough(t, l, a, openAI, all)
	})
	t.Run("variables", func(t *testing.T) {
		publishPages(t, l)
		compileOnly := func(tb testing.TB) { build(tb, "javac", "-d", l.dir, testdata("Fetch.java")) }
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			client, variable string
			setup            func(testing.TB)
			line             []string // in which URL is the page of a name
		}{
			{"curl", "SSL_CERT_FILE", nil, []string{"curl", "-sS", "--fail", "URL"}},
			{"curl", "CURL_CA_BUNDLE", nil, []string{"curl", "-sS", "--fail", "URL"}},
			{"python", "SSL_CERT_FILE", nil, []string{"python3", testdata("fetch.py"), "URL"}},
			{"requests", "REQUESTS_CA_BUNDLE", func(tb testing.TB) { machine.All(tb, requests) }, []string{"python3", testdata("requested.py"), "URL"}},
			{"go", "SSL_CERT_FILE", nil, []string{"env", roleVar + "=" + roleGoClient, self, "URL"}},
			{"node", "NODE_EXTRA_CA_CERTS", nil, []string{"node", testdata("fetch.mjs"), "URL"}},
			{"git", "GIT_SSL_CAINFO", nil, []string{"env", "GIT_TERMINAL_PROMPT=0", "EMAIL=lab@example.com", "sh", "-ec",
				`d=$(mktemp -d) && git clone --quiet "$1code.git" "$d" && cat "$d/page"`, "sh", "URL"}},
			{"java", "JAVA_TOOL_OPTIONS", compileOnly, []string{"java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", l.dir, "Fetch", "URL"}},
			{"wget", "", nil, []string{"unshare", "--mount", "sh", "-ec",
				`mount --bind "` + g.path("ca-bundle.pem") + `" /etc/ssl/certs/ca-certificates.crt && wget -qO- "$1"`, "sh", "URL"}},
		} {
			t.Run(tc.client+" "+tc.variable, func(t *testing.T) {
				if tc.setup != nil {
					tc.setup(t)
				}
				// A brokered name, and one that is not: its certificate is of the public roots.
				for _, name := range []string{openAI, codeload} {
					if name == codeload && tc.client == "java" {
						continue // its public roots are the machine's, and not the lab's
					}
					line := []string{"env"}
					if tc.variable != "" {
						line = append(line, tc.variable+"="+vars[tc.variable])
					}
					for _, word := range tc.line {
						line = append(line, strings.ReplaceAll(word, "URL", "https://"+name+"/"))
					}
					want := "this is " + name + "\n"
					if tc.client == "git" {
						want = "this is " + repoName + "\n"
					}
					if out, err := l.run(line...); err != nil || out != want {
						t.Errorf("%s: %q, %v", name, out, err)
					}
				}
			})
		}
	})

	bundle, err := os.ReadFile(g.path("ca-bundle.pem"))
	if err != nil {
		t.Fatal(err)
	}
	l.ca.pool.AppendCertsFromPEM(bundle)
	ask := func(t *testing.T, name, request string) answer {
		t.Helper()
		return converseOver(l.secure(t, name)).ask(t, request)
	}
	t.Run("methods and paths", func(t *testing.T) {
		ask(t, anthropic, head("POST /v1/messages", anthropic, "Content-Length: 0")).is(t, welcome)
		n := a.count()
		for _, request := range []string{
			head("GET /v1/messages", anthropic), head("POST /v1/organizations", anthropic, "Content-Length: 0"), head("DELETE /v1/messages/1", anthropic),
			// Paths that begin as the one that is let through, or have it somewhere else.
			head("POST /v1/messages/../organizations", anthropic, "Content-Length: 0"),
			head("POST /v1/messages%2f..%2forganizations", anthropic, "Content-Length: 0"),
			head("POST /v1/messages/%2e%2e/organizations", anthropic, "Content-Length: 0"),
			head("POST //v1/organizations?/v1/messages", anthropic, "Content-Length: 0"),
			head("POST /v1/organizations#/v1/messages", anthropic, "Content-Length: 0"),
			head("POST https://"+anthropic+"/v1/organizations", anthropic, "Content-Length: 0"),
			head("GET /v1/messages", anthropic, "X-HTTP-Method-Override: POST"),
		} {
			if got := ask(t, anthropic, request); got.status != http.StatusForbidden || !strings.HasPrefix(got.body, "The gateway lets POST") {
				t.Errorf("%q: %+v", request, got)
			}
		}
		if n != a.count() {
			t.Error("a request came to the upstream that the site refuses")
		}
	})
	t.Run("names below a domain", func(t *testing.T) {
		ask(t, "api.github.com", head("GET /v1/user", "api.github.com")).is(t, welcome)
		c := l.secure(t, codeload)
		if issuer := c.ConnectionState().PeerCertificates[0].Issuer.CommonName; issuer != "sandboxallow end-to-end test" {
			t.Errorf("%s has a certificate of %q, want that of the server", codeload, issuer)
		}
	})
	t.Run("another key for other clients", func(t *testing.T) {
		const name = "api.mistral.ai"
		ask(t, name, head("GET /v1/models", name)).is(t, welcome)
		research := netip.MustParseAddr("172.30.0.200")
		if err := l.sandbox.ip("addr", "add", research.String()+"/24", "dev", linkGateway); err != nil {
			t.Fatal(err)
		}
		a.rekey(name, bearer("mistral-research"))
		for client, want := range map[netip.Addr]int{research: http.StatusOK, sandboxAddr: http.StatusUnauthorized} {
			c, err := l.sandbox.dialFrom(client, "tcp", gatewayTLS)
			if err != nil {
				t.Fatal(err)
			}
			if got := over(t, c, l.ca.client(name)).ask(t, head("GET /v1/models", name)); got.status != want {
				t.Errorf("%s: %+v, want %d", client, got, want)
			}
		}
		// And nothing else by its policy.
		c, err := l.sandbox.dialFrom(research, "tcp", gatewayTLS)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := tls.Client(c, l.ca.client(openAI)).Handshake(); err == nil {
			t.Errorf("%s is let through to %s", research, openAI)
		}
	})
	t.Run("servers of your own", func(t *testing.T) {
		ask(t, models, head("GET /v1/models", models)).is(t, welcome)
	})
	t.Run("change a key", func(t *testing.T) {
		c := converseOver(l.secure(t, openAI))
		c.ask(t, head("GET /v1/models", openAI)).is(t, welcome)
		a.rekey(openAI, field{"Authorization", "Bearer new"})
		if got := c.ask(t, head("GET /v1/models", openAI)); got.status != http.StatusUnauthorized {
			t.Errorf("the old key: %+v", got)
		}
		l.secret(t, "openai", "new")
		c.ask(t, head("GET /v1/models", openAI)).is(t, welcome)
	})
}

// indented is a block as the README has them: by blanks, and without a fence.
func indented(block string) string {
	return "    " + strings.ReplaceAll(strings.ReplaceAll(strings.TrimSuffix(block, "\n"), "\t", "    "), "\n", "\n    ") + "\n"
}

// over is a conversation over TLS on a connection.
func over(tb testing.TB, c net.Conn, cfg *tls.Config) *conversation {
	tb.Helper()
	tb.Cleanup(func() { _ = c.Close() })
	s := tls.Client(c, cfg)
	if err := s.Handshake(); err != nil && err != io.EOF {
		tb.Fatal(err)
	}
	return converseOver(s)
}

// javaHome is where Java is that the clients run.
func javaHome(tb testing.TB) string {
	tb.Helper()
	path, err := exec.LookPath("java")
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return filepath.Dir(filepath.Dir(path))
}

// requests is a machine.Thing: Python's library of that name, or the one that pip brings.
func requests() string {
	if exec.Command("python3", testdata("requested.py")).Run() == nil {
		return ""
	}
	return "requests (python3-requests)"
}
