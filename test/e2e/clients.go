//go:build linux

package e2e

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	machine "github.com/sandboxallow/sandboxallow/test/need"
)

// client is a program of the sandbox that fetches the page of a host and knows nothing of the gateway, or no
// more than that it is a proxy.
type client struct {
	name     string
	label    string        // in the tables of docs/what-clients-say.md
	version  func() string // "" if nothing tells it
	programs []string      // what it takes
	proxy    proxySetting

	// setup prepares the client, once for a lab. nil: nothing to do.
	setup func(tb testing.TB, l *lab)
	// fetch returns what the client got from the page of a host, or an error that has what it said.
	fetch func(l *lab, w way, host string) (string, error)

	// What it says when the name does not exist, and when it exists without an address.
	noName, noAddress string
	// What it says of each TLS alert.
	unrecognized, accessDenied, internalError string
	// What it says of 403 for a request, and for a CONNECT; %s is the reason, from clients that show it.
	// nil: it makes none.
	forbidden, noTunnel []string
	// What shows the reason, of a request and of a CONNECT. "": the client as it is.
	shownBy, shownByTunnel string

	namesOnly bool // what else it says is what Go says, or what the client before it does
}

// proxySetting is how a client is told of a forward proxy.
type proxySetting string

const (
	noProxy       proxySetting = "" // not at all
	byEnvironment proxySetting = "variables"
	byOption      proxySetting = "option" // of its own, or a few lines of its user's
)

// clients are all clients. The texts are of the versions in Debian 12 and later.
var clients = []client{
	{
		name:     "curl",
		label:    "curl",
		version:  versionOf("curl", "--version"),
		programs: []string{"curl"},
		proxy:    byEnvironment,
		fetch: command(func(l *lab, w way, host string) []string {
			return append(curl(l), "--fail-with-body", "--include", w.url(host))
		}),
		noName:        "curl: (6) Could not resolve host: ",
		noAddress:     "curl: (6) Could not resolve host: ",
		unrecognized:  "unrecognized name",
		accessDenied:  "access denied",
		internalError: "internal error",
		forbidden:     []string{"curl: (22) The requested URL returned error: 403", "X-Sandboxallow-Reason: %s", "sandboxallow: %s: "},
		noTunnel:      []string{"curl: (56) CONNECT tunnel failed, response 403", "X-Sandboxallow-Reason: %s"},
		shownBy:       "`--include`; `--fail-with-body` in place of `--fail`",
		shownByTunnel: "`--include`",
	},
	{
		name:     "wget",
		label:    "wget",
		version:  versionOf("wget", "--version"),
		programs: []string{"wget"},
		proxy:    byEnvironment,
		fetch: command(func(l *lab, w way, host string) []string {
			line := []string{"wget", "--no-verbose", "--server-response", "--tries=1", "--timeout=20", "--ca-certificate=" + l.ca.file,
				"--output-document=-", w.url(host)}
			if w == byConnect {
				line = append(line, "--debug") // shows the answer of the proxy, which --server-response does not
			}
			return line
		}),
		noName:        "unable to resolve host address",
		noAddress:     "unable to resolve host address",
		unrecognized:  "The server name sent was not recognized",
		accessDenied:  "Access was denied",
		internalError: "Internal error",
		forbidden:     []string{"ERROR 403: Forbidden.", "X-Sandboxallow-Reason: %s"},
		noTunnel:      []string{"Proxy tunneling failed: Forbidden", "X-Sandboxallow-Reason: %s"},
		shownBy:       "`--server-response`",
		shownByTunnel: "`--debug`",
	},
	{
		name:     "git",
		label:    "git",
		version:  versionOf("git", "--version"),
		programs: []string{"git"},
		proxy:    byEnvironment,
		setup:    publishPages,
		fetch: command(func(l *lab, w way, host string) []string {
			// The clone of a name's repository has the name's page.
			script := `d=$(mktemp -d "$2/clone.XXXXXX") && git clone --quiet "$1code.git" "$d" && cat "$d/page"`
			// Without EMAIL git looks up the name of its own host.
			line := []string{"env", "GIT_SSL_CAINFO=" + l.ca.file, "GIT_TERMINAL_PROMPT=0", "EMAIL=lab@example.com"}
			if w == byConnect {
				line = append(line, "GIT_TRACE_CURL=1") // shows the answer of the proxy
			}
			return append(line, "sh", "-c", script, "sh", w.url(host), l.dir)
		}),
		noName:        "Could not resolve host: ",
		noAddress:     "Could not resolve host: ",
		unrecognized:  "The server name sent was not recognized",
		accessDenied:  "Access was denied",
		internalError: "Internal error",
		forbidden:     []string{"The requested URL returned error: 403", "remote: sandboxallow: %s: "},
		noTunnel:      []string{"CONNECT tunnel failed, response 403", "X-Sandboxallow-Reason: %s"},
		shownByTunnel: "`GIT_TRACE_CURL=1`",
	},
	{
		name:     "python",
		label:    "Python, urllib",
		version:  versionOf("python3", "--version"),
		programs: []string{"python3"},
		proxy:    byEnvironment,
		fetch: command(func(l *lab, w way, host string) []string {
			return []string{"env", "SSL_CERT_FILE=" + l.ca.file, "python3", testdata("fetch.py"), w.url(host)}
		}),
		noName:        "[Errno -2] Name or service not known",
		noAddress:     "[Errno -5] No address associated with hostname",
		unrecognized:  "unrecognized name",
		accessDenied:  "access denied",
		internalError: "internal error",
		forbidden:     []string{"HTTP Error 403: Forbidden", "X-Sandboxallow-Reason: %s"},
		noTunnel:      []string{"Tunnel connection failed: 403 Forbidden"},
		shownBy:       "`HTTPError.headers`, `HTTPError.read()`",
		shownByTunnel: whyShows,
	},
	{
		name:     "node",
		label:    "Node.js, fetch",
		version:  versionOf("node", "--version"),
		programs: []string{"node"},
		proxy:    byOption,
		fetch: command(func(l *lab, w way, host string) []string {
			line := []string{"env", "NODE_EXTRA_CA_CERTS=" + l.ca.file, "node"}
			if w.told {
				return append(line, testdata("proxied.mjs"), proxyURL, w.url(host))
			}
			return append(line, testdata("fetch.mjs"), w.url(host))
		}),
		noName:        "getaddrinfo ENOTFOUND",
		noAddress:     "getaddrinfo ENOTFOUND",
		unrecognized:  "unrecognized name",
		accessDenied:  "access denied",
		internalError: "internal error",
		forbidden:     []string{"403 Forbidden, %s"},
		noTunnel:      []string{"403 Forbidden, %s"},
		shownBy:       "`Response.headers`",
		shownByTunnel: "`headers` of the event `connect`",
	},
	{
		name:     "java",
		label:    "Java, HttpClient",
		version:  versionOf("java", "--version"),
		programs: []string{"java", "javac", "keytool"},
		proxy:    byOption,
		setup:    compileFetch,
		fetch: command(func(l *lab, w way, host string) []string {
			line := []string{"java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
				"-Djavax.net.ssl.trustStore=" + filepath.Join(l.dir, "ca.p12"),
				"-Djavax.net.ssl.trustStorePassword=changeit", "-cp", l.dir}
			if w.told {
				for _, scheme := range []string{"http", "https"} {
					line = append(line, "-D"+scheme+".proxyHost="+proxyHost, "-D"+scheme+".proxyPort="+proxyPort)
				}
			}
			if w == byConnect {
				line = append(line, "-Djdk.httpclient.HttpClient.log=headers") // those of the proxy too
			}
			return append(line, "Fetch", w.url(host))
		}),
		noName:        "java.nio.channels.UnresolvedAddressException",
		noAddress:     "java.nio.channels.UnresolvedAddressException",
		unrecognized:  "unrecognized_name",
		accessDenied:  "access_denied",
		internalError: "internal_error",
		forbidden:     []string{"403, %s"},
		noTunnel:      []string{"Tunnel failed, got: 403", "x-sandboxallow-reason: %s"},
		shownBy:       "`HttpResponse.headers()`",
		shownByTunnel: "`-Djdk.httpclient.HttpClient.log=headers`",
	},
	{
		name:          "go-pure",
		label:         "Go",
		version:       goVersion,
		proxy:         byEnvironment,
		fetch:         command(goFetch("go")),
		noName:        "no such host",
		noAddress:     "no such host",
		unrecognized:  "tls: unrecognized name",
		accessDenied:  "tls: access denied",
		internalError: "tls: internal error",
		forbidden:     []string{"403 Forbidden, %s"},
		noTunnel:      []string{"\": Forbidden", "X-Sandboxallow-Reason: %s"},
		shownBy:       "`Response.Header`",
		shownByTunnel: "`Transport.OnProxyConnectResponse`",
	},
	{
		name:          "go-cgo",
		label:         "Go, cgo",
		version:       goVersion,
		proxy:         byEnvironment,
		setup:         func(tb testing.TB, _ *lab) { machine.All(tb, cgo) },
		fetch:         command(goFetch("cgo")),
		noName:        "no such host",
		noAddress:     "no such host",
		unrecognized:  "tls: unrecognized name",
		accessDenied:  "tls: access denied",
		internalError: "tls: internal error",
		forbidden:     []string{"403 Forbidden, %s"},
		noTunnel:      []string{"\": Forbidden", "X-Sandboxallow-Reason: %s"},
		namesOnly:     true,
	},
	{
		name:     "openssl",
		label:    "OpenSSL s_client",
		version:  versionOf("openssl", "version"),
		programs: []string{"openssl"},
		proxy:    byOption,
		fetch: func(l *lab, w way, host string) (string, error) {
			line := []string{"openssl", "s_client", "-quiet", "-connect", host + ":443", "-servername", host,
				"-CAfile", l.ca.file, "-verify_return_error"}
			if w.told {
				line = append(line, "-proxy", gatewayProxy.String())
			}
			return l.talk(request(host), w.command(line...)...)
		},
		noName:        "Name or service not known",
		noAddress:     "No address associated with hostname",
		unrecognized:  "unrecognized name",
		accessDenied:  "access denied",
		internalError: "internal error",
		noTunnel:      []string{"HTTP CONNECT failed, reason= 403 Forbidden"},
		shownByTunnel: whyShows,
	},
	{
		name:     "gnutls",
		label:    "gnutls-cli",
		version:  versionOf("gnutls-cli", "--version"),
		programs: []string{"gnutls-cli"},
		fetch: func(l *lab, w way, host string) (string, error) {
			return l.talk(request(host), w.command("gnutls-cli", "--x509cafile="+l.ca.file, host)...)
		},
		noName:        "Name or service not known",
		noAddress:     "No address associated with hostname",
		unrecognized:  "Received alert [112]: The server name sent was not recognized",
		accessDenied:  "Received alert [49]: Access was denied",
		internalError: "Received alert [80]: Internal error",
	},
	{
		name:          "musl",
		label:         "C, musl",
		version:       muslVersion,
		programs:      []string{"musl-gcc"},
		setup:         compilePipe,
		fetch:         muslFetch,
		noName:        "Name does not resolve",
		noAddress:     ": Name ", // "does not resolve", or "has no usable address" of later versions
		unrecognized:  "tls: unrecognized name",
		accessDenied:  "tls: access denied",
		internalError: "tls: internal error",
		forbidden:     []string{"403 Forbidden, %s"},
		namesOnly:     true,
	},
}

// whyShows is what shows the reason where the client cannot.
const whyShows = "`dig +short TXT _443.NAME.why.sandboxallow`"

// can reports whether there is such a way for the client.
func (c *client) can(w way) bool {
	switch w {
	case overHTTP:
		return c.forbidden != nil
	case byConnect:
		return c.noTunnel != nil
	case byAbsolute:
		return c.proxy != noProxy && c.forbidden != nil
	}
	return true
}

// refusal is what the client says when the gateway denies a name for a reason.
func (c *client) refusal(w way, reason string) (says []string) {
	switch {
	case w == byConnect:
		says = c.noTunnel
	case w.scheme == "http":
		says = c.forbidden
	case reason == "private_address":
		says = []string{c.accessDenied}
	case badGateway[reason]:
		says = []string{c.internalError}
	default:
		says = []string{c.unrecognized}
	}
	fill := []string{"%s", reason}
	if badGateway[reason] {
		fill = append(fill, "403", "502", "Forbidden", "Bad Gateway")
	}
	says = slices.Clone(says)
	for i := range says {
		says[i] = strings.NewReplacer(fill...).Replace(says[i])
	}
	return says
}

// badGateway are the reasons for which a name that is allowed is not connected to.
var badGateway = map[string]bool{"no_address": true, "resolver_error": true, "dial_error": true}

// clientNamed is one of clients.
func clientNamed(tb testing.TB, name string) *client {
	tb.Helper()
	i := slices.IndexFunc(clients, func(c client) bool { return c.name == name })
	if i < 0 {
		tb.Fatalf("no client is named %q", name)
	}
	return &clients[i]
}

// ready skips or fails the test if the client cannot run here, and prepares it otherwise.
func (c *client) ready(tb testing.TB, l *lab) {
	tb.Helper()
	need(tb, c.programs...)
	if c.setup != nil {
		c.setup(tb, l)
	}
}

// clientTimeout is far above what any of them takes, Java on a busy machine included.
const clientTimeout = 30 * time.Second

// command makes a fetch of a command line.
func command(line func(l *lab, w way, host string) []string) func(*lab, way, string) (string, error) {
	return func(l *lab, w way, host string) (string, error) { return l.run(w.command(line(l, w, host)...)...) }
}

// run runs a program in the sandbox. It returns what it wrote to standard output, or an error with all that
// it wrote.
func (l *lab) run(args ...string) (string, error) { return l.talk("", args...) }

// talk is run with something on standard input, which ends when the program does.
func (l *lab) talk(stdin string, args ...string) (string, error) {
	return l.talkWithin(clientTimeout, stdin, args...)
}

// talkWithin is talk for programs that have much to do.
func (l *lab) talkWithin(d time.Duration, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var out, said bytes.Buffer
	cmd := l.sandbox.command(ctx, args...)
	cmd.Env = clientEnv(l)
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.WaitDelay = time.Second // a grandchild may hold the pipes when the time is up
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	_, _ = io.WriteString(in, stdin) // fails if the program has failed first
	if err := cmd.Wait(); err != nil {
		return out.String(), &failure{args[0], err, said.String() + out.String()}
	}
	return out.String(), nil
}

// curl is a command line of curl, which says nothing but what went wrong.
func curl(l *lab) []string {
	return []string{"curl", "--silent", "--show-error", "--max-time", "25", "--cacert", l.ca.file}
}

// curl fetches a URL in the sandbox with curl.
func (l *lab) curl(url string, options ...string) (string, error) {
	return l.curlBy(overTLS, url, options...)
}

// curlBy is curl with the environment of a way.
func (l *lab) curlBy(w way, url string, options ...string) (string, error) {
	return l.run(w.command(append(append(curl(l), options...), url)...)...)
}

// request asks for the page of a host, for clients that speak no HTTP.
func request(host string) string { return "GET / HTTP/1.0\r\nHost: " + host + "\r\n\r\n" }

// clientEnv is the environment of a client: no proxy but the way's, no language but C, no files of the user's.
func clientEnv(l *lab) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.dir, "TMPDIR=" + l.dir, "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1"}
}

func testdata(name string) string {
	path, err := filepath.Abs(filepath.Join("testdata", name))
	if err != nil {
		panic(err)
	}
	return path
}

// build runs a compiler, or what else has to be run once, outside the lab.
func build(tb testing.TB, args ...string) {
	tb.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		tb.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func compileFetch(tb testing.TB, l *lab) {
	tb.Helper()
	build(tb, "javac", "-d", l.dir, testdata("Fetch.java"))
	build(tb, "keytool", "-importcert", "-noprompt", "-alias", "lab", "-file", l.ca.file,
		"-keystore", filepath.Join(l.dir, "ca.p12"), "-storetype", "PKCS12", "-storepass", "changeit")
}

func compilePipe(tb testing.TB, l *lab) {
	tb.Helper()
	build(tb, "musl-gcc", "-static", "-O1", "-Wall", "-Werror", "-o", filepath.Join(l.dir, "pipe"), testdata("pipe.c"))
}

func publishPages(tb testing.TB, l *lab) {
	tb.Helper()
	if err := l.internet.web.publish(l.dir); err != nil {
		tb.Fatal(err)
	}
}

// goFetch runs this very program as a client; resolver is as in GODEBUG=netdns.
func goFetch(resolver string) func(l *lab, w way, host string) []string {
	return func(l *lab, w way, host string) []string {
		self, err := os.Executable()
		if err != nil {
			panic(err)
		}
		return []string{"env", roleVar + "=" + roleGoClient, "GODEBUG=netdns=" + resolver, "SSL_CERT_FILE=" + l.ca.file,
			self, w.url(host)}
	}
}

// cgo is a machine.Thing: the C library's resolver in this program.
func cgo() string {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "CGO_ENABLED" && s.Value == "1" {
			return ""
		}
	}
	return "cgo (go test with CGO_ENABLED=1 and gcc)"
}
