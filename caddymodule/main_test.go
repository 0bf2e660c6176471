package caddymodule

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/mholt/caddy-l4/layer4"
	"github.com/miekg/dns"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// The upstream of these tests is a process of its own, on a loopback address that a `private` line lifts:
// the floor does not let the gateway dial what its own process listens on.
const upstreamAddr = "127.0.0.2"

const envUpstream = "SANDBOXALLOW_TEST_UPSTREAM"

func TestMain(m *testing.M) {
	if file := os.Getenv(envUpstream); file != "" {
		if err := serveUpstream(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serveUpstream echoes over TLS, with the certificate and key in file, until its standard input ends.
func serveUpstream(file string) error {
	cert, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		return err
	}
	l, err := tls.Listen("tcp", upstreamAddr+":0", &tls.Config{Certificates: []tls.Certificate{cert}})
	if err != nil {
		return err
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	io.Copy(io.Discard, os.Stdin)
	return nil
}

// gateway is the app and a handler behind a listener, as layer4 would run it.
type gateway struct {
	t      *testing.T
	app    *App
	logs   *observer.ObservedLogs
	addr   string
	policy string // path of the document
	upPort uint16
	roots  *x509.CertPool
	read   int // log lines that entry has passed
}

// upstream starts the upstream process.
func startUpstream(t *testing.T) (port uint16, roots *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "upstream"},
		DNSNames:     []string{"*.example.com", "example.com"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "upstream.pem")
	out := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})...)
	if err := os.WriteFile(file, out, 0o600); err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AddCert(cert)

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envUpstream+"="+file)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	if _, err := fmt.Fscan(bufio.NewReader(stdout), &port); err != nil {
		t.Fatalf("upstream process: %v", err)
	}
	return port, roots
}

// startDNS answers A questions from names; a name without an address does not exist, one with the address
// "fail" makes the server fail.
func startDNS(t *testing.T, names map[string]string) string {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	srv := &dns.Server{PacketConn: pc, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		q := r.Question[0]
		addr, ok := names[strings.TrimSuffix(q.Name, ".")]
		switch {
		case !ok:
			m.Rcode = dns.RcodeNameError
		case addr == "fail":
			m.Rcode = dns.RcodeServerFailure
		case q.Qtype == dns.TypeA:
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(addr)}}
		}
		w.WriteMsg(m)
	})}
	go srv.ActivateAndServe()
	<-started
	t.Cleanup(func() { srv.Shutdown() })
	return pc.LocalAddr().String()
}

var testNames = map[string]string{
	"www.example.com":     upstreamAddr,
	"api.example.com":     upstreamAddr,
	"example.com":         upstreamAddr,
	"private.example.com": "10.0.0.1",
	"meta.example.com":    "169.254.169.254",
	"fail.example.com":    "fail",
	"dead.example.com":    "127.0.0.3",
}

// startGateway runs a gateway with the given policy document.
func startGateway(t *testing.T, document string, change func(*App)) *gateway {
	t.Helper()
	g := &gateway{t: t, policy: filepath.Join(t.TempDir(), "policy")}
	g.upPort, g.roots = startUpstream(t)
	g.write(document)
	app := &App{
		PolicyFile: g.policy,
		Resolvers:  []string{startDNS(t, testNames)},
		Poll:       caddy.Duration(20 * time.Millisecond),
	}
	if change != nil {
		change(app)
	}
	g.app, g.logs = startApp(t, app)
	h := &Handler{UpstreamPort: g.upPort, app: g.app}
	g.addr = serve(t, func(cx *layer4.Connection) { h.Handle(cx, nil) })
	return g
}

// startApp provisions and starts an app whose log can be read.
func startApp(t *testing.T, app *App) (*App, *observer.ObservedLogs) {
	t.Helper()
	ctx, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
	if err != nil {
		t.Fatal(err)
	}
	if err := app.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.DebugLevel)
	app.log = zap.New(core)
	if err := app.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { app.Stop() })
	return app, logs
}

// serve accepts connections as layer4 does.
func serve(t *testing.T, handle func(*layer4.Connection)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(layer4.WrapConnection(c, make([]byte, 0, 2048), zap.NewNop()))
			}()
		}
	}()
	return l.Addr().String()
}

// write replaces the policy document.
func (g *gateway) write(document string) {
	g.t.Helper()
	tmp := g.policy + ".new"
	if err := os.WriteFile(tmp, []byte(document), 0o644); err != nil {
		g.t.Fatal(err)
	}
	if err := os.Rename(tmp, g.policy); err != nil {
		g.t.Fatal(err)
	}
}

// dial makes a TLS connection with the server name.
func (g *gateway) dial(serverName string) (*tls.Conn, error) {
	d := &net.Dialer{Timeout: 10 * time.Second}
	return tls.DialWithDialer(d, "tcp", g.addr, &tls.Config{ServerName: serverName, RootCAs: g.roots})
}

// echo proves that a tunnel carries bytes both ways.
func echo(c net.Conn, text string) error {
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != text {
		return fmt.Errorf("echo is %q, want %q", got, text)
	}
	return nil
}

// entry waits for a log line with that message, behind those it returned before, and returns its fields.
func (g *gateway) entry(message string) map[string]any {
	g.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for all := g.logs.All(); g.read < len(all); {
			e := all[g.read]
			g.read++
			if e.Message == message {
				return e.ContextMap()
			}
		}
	}
	g.t.Fatalf("no log line %q", message)
	return nil
}
