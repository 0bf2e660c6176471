package caddymodule

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/mholt/caddy-l4/layer4"
	"github.com/miekg/dns"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
)

// The upstreams of these tests are reached by a process of its own, on a loopback address that a `private` line
// lifts: the floor does not let the gateway dial what its own process listens on.
const upstreamAddr = "127.0.0.2"

const envRelay = "SANDBOXALLOW_TEST_RELAY"

func TestMain(m *testing.M) {
	if os.Getenv(envRelay) != "" {
		serveRelay()
		return
	}
	newFolder = func(func(*decision.Record)) *decision.Folder { return nil }
	storage, err := os.MkdirTemp("", "sandboxallow")
	if err != nil {
		panic(err)
	}
	caddy.DefaultStorage.Path = storage // examples have a certificate authority made
	code := m.Run()
	relay.stop()
	os.RemoveAll(storage)
	os.Exit(code)
}

// serveRelay listens on a port for each line of its standard input, which is the address that the connections to
// that port are led to, and prints the port. It ends with its input.
//
// To an address that is said to be silent connections cannot be made, until it is led somewhere.
func serveRelay() {
	silent := make(map[string]net.Listener)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var l net.Listener
		var err error
		at, to, _ := strings.Cut(in.Text(), " ")
		switch {
		case to == "silent":
			if silent[at], err = crowded(at); err == nil {
				fmt.Println(silent[at].Addr().(*net.TCPAddr).Port)
				continue
			}
		case to == "":
			to = at
			l, err = net.Listen("tcp", upstreamAddr+":0")
		default:
			l = silent[at]
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go relayTo(c, to)
			}
		}()
		fmt.Println(l.Addr().(*net.TCPAddr).Port)
	}
}

// crowded returns a listener that drops whoever wants to connect, as its queue is full.
func crowded(at string) (net.Listener, error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, err
	}
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		return nil, err
	}
	raw.Control(func(fd uintptr) { err = setBacklog(fd, 0) })
	for err == nil {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", at, 100*time.Millisecond); err == nil {
			c.Close()
		}
	}
	return l, nil
}

// relayTo passes on ends of streams and resets too.
func relayTo(c net.Conn, to string) {
	defer c.Close()
	behind, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	tunnel.Run(c, behind, tunnel.Options{Idle: -1, HalfClosedIdle: -1})
}

// relay is the process that serveRelay runs in, started when it is needed first.
var relay relayProcess

type relayProcess struct {
	mu  sync.Mutex
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (r *relayProcess) start() error {
	r.cmd = exec.Command(os.Args[0])
	r.cmd.Env = append(os.Environ(), envRelay+"=1")
	r.cmd.Stderr = os.Stderr
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	r.out = bufio.NewReader(out)
	return r.cmd.Start()
}

// listen has the process lead a port to an address.
func (r *relayProcess) listen(to string) (port uint16, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil {
		if err := r.start(); err != nil {
			return 0, err
		}
	}
	if _, err := fmt.Fprintln(r.in, to); err != nil {
		return 0, err
	}
	_, err = fmt.Fscanln(r.out, &port)
	return port, err
}

// silence has nobody get through to an address, from now on.
func (r *relayProcess) silence(t testing.TB, at string) {
	t.Helper()
	if _, err := r.listen(at + " silent"); err != nil {
		t.Fatal(err)
	}
}

// lead has a silent address lead to another.
func (r *relayProcess) lead(t testing.TB, at, to string) {
	t.Helper()
	if _, err := r.listen(at + " " + to); err != nil {
		t.Fatal(err)
	}
}

func (r *relayProcess) stop() {
	if r.cmd != nil {
		r.in.Close()
		r.cmd.Wait()
	}
}

// origin is a server that the gateway reaches at upstreamAddr and port.
type origin struct {
	net.Listener
	port uint16
}

func listenOrigin(t testing.TB) *origin {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	port, err := relay.listen(l.Addr().String())
	if err != nil {
		t.Fatalf("relay process: %v", err)
	}
	return &origin{l, port}
}

// serve has each connection handled in a goroutine, until the test ends.
func (o *origin) serve(handle func(net.Conn)) {
	for {
		c, err := o.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			handle(c)
		}()
	}
}

// startUpstream starts an origin that echoes over TLS, for example.com and what is below it.
func startUpstream(t testing.TB) (port uint16, roots *x509.CertPool) {
	t.Helper()
	cert, roots := certificate(t, "*.example.com", "example.com")
	o := listenOrigin(t)
	config := &tls.Config{Certificates: []tls.Certificate{cert}}
	go o.serve(func(c net.Conn) {
		c = tls.Server(c, config)
		io.Copy(c, c)
		c.Close()
	})
	return o.port, roots
}

// certificate makes a certificate for names, and what trusts it.
func certificate(t testing.TB, names ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "upstream"},
		DNSNames:     names,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, roots
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

// startDNS answers A questions from names, of which one may have several addresses; a name without an address does not
// exist, one with the address "fail" makes the server fail.
func startDNS(t testing.TB, names map[string]string) string {
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
			for _, a := range strings.Fields(addr) {
				m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(a)})
			}
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
	if wayIn == byEntrance {
		g.addr = freeAddr(t)
		app.Listen = []*Listener{{Addresses: []string{g.addr}, UpstreamPort: g.upPort}}
	}
	g.app, g.logs = startApp(t, app)
	if wayIn == byLayer4 {
		g.addr = g.admit(g.app, g.upPort, "")
	}
	return g
}

// wayIn is how connections come in. The tests of the handler are run for each way.
var wayIn = byLayer4

const (
	byLayer4   = "layer4"
	byEntrance = "listen"
)

// admit has an app, started or not, decide on what comes in by one more address, which it returns. The rules are
// checked for upstreamPort, 0 being the port of the address.
func (g *gateway) admit(app *App, upstreamPort uint16, policy string) (addr string) {
	g.t.Helper()
	if wayIn == byLayer4 {
		h := &Handler{UpstreamPort: upstreamPort, Policy: policy, app: app}
		return serve(g.t, func(cx *layer4.Connection) { h.Handle(cx, nil) })
	}
	addr = freeAddr(g.t)
	if err := entrances.open(addr, &server{app: app, listener: &Listener{UpstreamPort: upstreamPort, Policy: policy}}); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { entrances.leave(app) })
	if err := entrances.serve(app); err != nil {
		g.t.Fatal(err)
	}
	return addr
}

// freeAddr returns an address of loopback, which only these tests know of, and a port that nobody listens on.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.3.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	return l.Addr().String()
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
