//go:build linux

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// client is a program of the sandbox that fetches https://HOST/ and knows nothing of the gateway.
type client struct {
	name     string
	programs []string // what it takes

	// setup prepares the client, once for a lab. nil: nothing to do.
	setup func(tb testing.TB, l *lab)
	// fetch returns what the client got from https://HOST/, or an error that has what it said.
	fetch func(l *lab, host string) (string, error)

	// What it says when the name does not exist, when the server sends the TLS alert unrecognized_name, and
	// when it sends access_denied.
	noName, unrecognized, accessDenied string
}

// clients are all clients. The texts are of the versions in Debian 12 and later.
var clients = []client{
	{
		name:         "curl",
		programs:     []string{"curl"},
		fetch:        func(l *lab, host string) (string, error) { return l.curl("https://" + host + "/") },
		noName:       "curl: (6) Could not resolve host: ",
		unrecognized: "unrecognized name",
		accessDenied: "access denied",
	},
	{
		name:     "wget",
		programs: []string{"wget"},
		fetch: command(func(l *lab, host string) []string {
			return []string{"wget", "--no-verbose", "--tries=1", "--timeout=20", "--ca-certificate=" + l.ca.file, "--output-document=-", "https://" + host + "/"}
		}),
		noName: "unable to resolve host address",
		// wget names no alert; that there was one is all it says.
		unrecognized: "Unable to establish SSL connection.",
		accessDenied: "Unable to establish SSL connection.",
	},
	{
		name:     "git",
		programs: []string{"git"},
		setup:    publishPages,
		fetch: command(func(l *lab, host string) []string {
			// The clone of a name's repository has the name's page.
			script := `d=$(mktemp -d "$2/clone.XXXXXX") && git clone --quiet "https://$1/code.git" "$d" && cat "$d/page"`
			return []string{"env", "GIT_SSL_CAINFO=" + l.ca.file, "GIT_TERMINAL_PROMPT=0", "sh", "-c", script, "sh", host, l.dir}
		}),
		noName:       "Could not resolve host: ",
		unrecognized: "The server name sent was not recognized",
		accessDenied: "Access was denied",
	},
	{
		name:     "python",
		programs: []string{"python3"},
		fetch: command(func(l *lab, host string) []string {
			return []string{"env", "SSL_CERT_FILE=" + l.ca.file, "python3", testdata("fetch.py"), "https://" + host + "/"}
		}),
		noName:       "[Errno -2] Name or service not known",
		unrecognized: "unrecognized name",
		accessDenied: "access denied",
	},
	{
		name:     "node",
		programs: []string{"node"},
		fetch: command(func(l *lab, host string) []string {
			return []string{"env", "NODE_EXTRA_CA_CERTS=" + l.ca.file, "node", testdata("fetch.mjs"), "https://" + host + "/"}
		}),
		noName:       "getaddrinfo ENOTFOUND",
		unrecognized: "unrecognized name",
		accessDenied: "access denied",
	},
	{
		name:     "java",
		programs: []string{"java", "javac", "keytool"},
		setup:    compileFetch,
		fetch: command(func(l *lab, host string) []string {
			return []string{"java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Djavax.net.ssl.trustStore=" + filepath.Join(l.dir, "ca.p12"),
				"-Djavax.net.ssl.trustStorePassword=changeit", "-cp", l.dir, "Fetch", "https://" + host + "/"}
		}),
		noName:       "java.nio.channels.UnresolvedAddressException",
		unrecognized: "unrecognized_name",
		accessDenied: "access_denied",
	},
	{
		name:         "go-pure",
		fetch:        command(goFetch("go")),
		noName:       "no such host",
		unrecognized: "tls: unrecognized name",
		accessDenied: "tls: access denied",
	},
	{
		name:         "go-cgo",
		setup:        func(tb testing.TB, _ *lab) { needCgo(tb) },
		fetch:        command(goFetch("cgo")),
		noName:       "no such host",
		unrecognized: "tls: unrecognized name",
		accessDenied: "tls: access denied",
	},
	{
		name:     "openssl",
		programs: []string{"openssl"},
		fetch: func(l *lab, host string) (string, error) {
			return l.talk(request(host), "openssl", "s_client", "-quiet", "-connect", host+":443", "-servername", host,
				"-CAfile", l.ca.file, "-verify_return_error")
		},
		noName:       "Name or service not known",
		unrecognized: "SSL alert number 112",
		accessDenied: "SSL alert number 49",
	},
	{
		name:     "gnutls",
		programs: []string{"gnutls-cli"},
		fetch: func(l *lab, host string) (string, error) {
			return l.talk(request(host), "gnutls-cli", "--x509cafile="+l.ca.file, host)
		},
		noName:       "Name or service not known",
		unrecognized: "Received alert [112]: The server name sent was not recognized",
		accessDenied: "Received alert [49]: Access was denied",
	},
	{
		name:         "musl",
		programs:     []string{"musl-gcc"},
		setup:        compilePipe,
		fetch:        muslFetch,
		noName:       "Name does not resolve",
		unrecognized: "tls: unrecognized name",
		accessDenied: "tls: access denied",
	},
}

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
func command(line func(l *lab, host string) []string) func(*lab, string) (string, error) {
	return func(l *lab, host string) (string, error) { return l.run(line(l, host)...) }
}

// run runs a program in the sandbox. It returns what it wrote to standard output, or an error with all that
// it wrote.
func (l *lab) run(args ...string) (string, error) { return l.talk("", args...) }

// talk is run with something on standard input, which ends when the program does.
func (l *lab) talk(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
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
		return out.String(), fmt.Errorf("%s: %w: %s%s", args[0], err, &said, &out)
	}
	return out.String(), nil
}

// curl fetches a URL in the sandbox with curl, which says nothing but what went wrong.
func (l *lab) curl(url string, options ...string) (string, error) {
	args := append([]string{"curl", "--silent", "--show-error", "--max-time", "25", "--cacert", l.ca.file}, options...)
	return l.run(append(args, url)...)
}

// request asks for the page of a host, for clients that speak TLS and no HTTP.
func request(host string) string { return "GET / HTTP/1.0\r\nHost: " + host + "\r\n\r\n" }

// clientEnv is the environment of a client: no proxy, no language but C, no files of the user's.
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
func goFetch(resolver string) func(l *lab, host string) []string {
	return func(l *lab, host string) []string {
		self, err := os.Executable()
		if err != nil {
			panic(err)
		}
		return []string{"env", roleVar + "=" + roleGoClient, "GODEBUG=netdns=" + resolver, "SSL_CERT_FILE=" + l.ca.file,
			self, "https://" + host + "/"}
	}
}

// needCgo ends a test that needs the C library's resolver in this program.
func needCgo(tb testing.TB) {
	tb.Helper()
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "CGO_ENABLED" && s.Value == "1" {
			return
		}
	}
	lack(tb, "cgo (go test with CGO_ENABLED=1 and gcc)")
}
