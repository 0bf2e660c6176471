package sandboxallow

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	golog "log"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/acl"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/debug"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/metadata"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/rewrite"
	_ "github.com/coredns/coredns/plugin/root"
	_ "github.com/coredns/coredns/plugin/tls"
	_ "github.com/coredns/coredns/plugin/view"
	_ "github.com/coredns/coredns/plugin/whoami"
)

func TestMain(m *testing.M) {
	caddy.Quiet = true
	dnsserver.Quiet = true
	golog.SetFlags(0) // as coremain does
	// The place that builds/coredns gives the plugin.
	d := slices.Clone(dnsserver.Directives)
	d = slices.Insert(d, slices.Index(d, "acl")+1, name)
	// And a plugin of these tests, in front of ours.
	dnsserver.Directives = slices.Insert(d, slices.Index(d, "errors")+1, "boom")
	os.Exit(m.Run())
}

// p0 is the policy that the cases are written for, and its gateway.
const p0 = `answer 10.200.0.1
	allow example.com .github.com *.svc.example`

// parseBlock runs a directive with that body through the parser, in a server block for zones.
func parseBlock(t testing.TB, body string, zones ...string) *SandboxAllow {
	t.Helper()
	s, err := parseText(name+" {\n"+body+"\n}", zones...)
	if err != nil {
		t.Fatalf("parse: %v, for\n%s", err, body)
	}
	return s
}

func parseText(text string, zones ...string) (*SandboxAllow, error) {
	if len(zones) == 0 {
		zones = []string{"."}
	}
	c := caddy.NewTestController("dns", text)
	c.ServerBlockKeys = zones
	return parse(c)
}

// writeFile makes a file in a directory of the test's own, and returns its path.
func writeFile(t testing.TB, file, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), file)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// replaceFile puts content in the place of a file, as the README says it should be done.
func replaceFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// waitFor waits until ok returns true.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long: %s", what)
		}
	}
}

// captureLog collects what is logged until the test ends. Tests that use it do not run in parallel.
func captureLog(t testing.TB) func() string {
	t.Helper()
	var b logBuffer
	golog.SetOutput(&b)
	t.Cleanup(func() { golog.SetOutput(io.Discard) })
	return b.String
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// corefile is a caddy.Input.
type corefile string

func (c corefile) Body() []byte       { return []byte(c) }
func (c corefile) Path() string       { return "Corefile" }
func (c corefile) ServerType() string { return "dns" }

// startCoreDNS starts a Corefile, whose server blocks bind to loopback and port 0, and stops it when the
// test ends.
func startCoreDNS(t testing.TB, text string) *caddy.Instance {
	t.Helper()
	inst, err := caddy.Start(corefile(text))
	if err != nil {
		t.Fatalf("start: %v, for\n%s", err, text)
	}
	t.Cleanup(func() { stopCoreDNS(inst) })
	return inst
}

func stopCoreDNS(inst *caddy.Instance) {
	inst.ShutdownCallbacks()
	inst.Stop()
}

// serve starts one server block with the plugin in it, between the lines before and after, and returns
// its addresses.
func serve(t testing.TB, body string, more ...string) (udp, tcp string) {
	t.Helper()
	return addrs(startCoreDNS(t, ".:0 {\nbind 127.0.0.1\n"+name+" {\n"+body+"\n}\n"+strings.Join(more, "\n")+"\n}"))
}

// addrs returns the addresses of the only server of an instance.
func addrs(inst *caddy.Instance) (udp, tcp string) {
	s := inst.Servers()[0]
	if s.LocalAddr() != nil {
		udp = s.LocalAddr().String()
	}
	return udp, s.Addr().String()
}

// certificate makes a certificate for 127.0.0.1 and returns its files and a pool that trusts it.
func certificate(t testing.TB) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "dns.test"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &priv.PublicKey, priv)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return writeFile(t, "cert.pem", string(certPEM)),
		writeFile(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))),
		pool
}
