package dashboard

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/sandboxallow/sandboxallow/test/need"
)

// upstreamAddr is the address of every name that exists; a `private` line lifts it.
const upstreamAddr = "127.0.0.2"

// gateway is a caddy that runs, and what its clients reach.
type gateway struct {
	dir       string
	policy    string // path of the document
	page      string // URL of the dashboard
	port      int    // of connections that are checked and dialled as of port 443
	tunnels   int    // of connections that lead to upstreamPort
	proxy     int    // the forward proxy
	metrics   int    // of caddy's metrics
	caddyfile string
	process   *exec.Cmd
	log       bytes.Buffer // once the process has ended
}

const policyText = `policy default {
	ports   443 80 %[1]d
	preset  github npm
	allow   api.openai.com .anthropic.com files.example.net
	deny    gist.github.com
	private ` + upstreamAddr + `/32
}

policy research {
	client  127.0.0.9 172.30.0.64/26
	ports   443 80 %[1]d
	mode    learn
	private ` + upstreamAddr + `/32
}
`

const caddyfileText = `{
	admin off
	sandboxallow {
		policy_file policy
		resolvers   %[5]s
		poll        100ms
		listen      127.0.0.1:%[1]d {
			upstream_port 443
		}
		listen      127.0.0.1:%[2]d {
			upstream_port %[6]d
		}
	}
}
http://:%[3]d {
	bind 127.0.0.1
	sandboxallow forward_proxy
}
http://:%[4]d {
	bind 127.0.0.1
	sandboxallow dashboard
}
http://:%[7]d {
	bind 127.0.0.1
	metrics
}
`

// binaries returns the folder of caddy and coredns, built by the first test that asks.
var binaries = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("E2E_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	var err error
	if built, err = os.MkdirTemp("", "sandboxallow-dashboard-"); err != nil {
		return "", err
	}
	if out, err := exec.Command("make", "-C", "../..", "build", "BIN="+built).CombinedOutput(); err != nil {
		return "", fmt.Errorf("make build: %w\n%s", err, out)
	}
	return built, nil
})

// built is the folder that was made for it.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// startGateway starts a gateway, for the time of a test.
func startGateway(t *testing.T) *gateway {
	t.Helper()
	need.All(t, need.Program("make"))
	upstream := startUpstream(t)
	ports := freePorts(t, 5)
	dir := t.TempDir()
	g := &gateway{
		dir: dir, policy: filepath.Join(dir, "policy"), caddyfile: filepath.Join(dir, "Caddyfile"),
		port: ports[0], tunnels: ports[1], proxy: ports[2], page: fmt.Sprintf("http://localhost:%d/", ports[3]), metrics: ports[4],
	}
	g.write(t, fmt.Sprintf(policyText, upstream))
	text := fmt.Sprintf(caddyfileText, ports[0], ports[1], ports[2], ports[3], startDNS(t), upstream, ports[4])
	if err := os.WriteFile(g.caddyfile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	g.start(t)
	t.Cleanup(func() {
		g.stop(t)
		if t.Failed() {
			t.Logf("the log of caddy:\n%s", &g.log)
		}
	})
	return g
}

func (g *gateway) start(t *testing.T) {
	t.Helper()
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	g.process = exec.Command(filepath.Join(bin, "caddy"), "run", "--config", "Caddyfile")
	g.process.Dir = g.dir
	g.process.Env = append(os.Environ(), "XDG_DATA_HOME="+g.dir, "XDG_CONFIG_HOME="+g.dir)
	g.process.Stdout, g.process.Stderr = &g.log, &g.log
	if err := g.process.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get(g.page)
		if err == nil {
			resp.Body.Close()
			return
		}
		if time.Now().After(deadline) {
			g.stop(t)
			t.Fatalf("caddy does not serve: %v\n%s", err, &g.log)
		}
	}
}

// stop ends caddy, as an operator does.
func (g *gateway) stop(t *testing.T) {
	g.process.Process.Signal(syscall.SIGTERM)
	over := time.AfterFunc(20*time.Second, func() { g.process.Process.Kill() })
	defer over.Stop()
	if err := g.process.Wait(); err != nil {
		t.Errorf("caddy: %v", err)
	}
}

// write replaces the policy.
func (g *gateway) write(t *testing.T, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(g.policy+".new", []byte(text), 0o644), os.Rename(g.policy+".new", g.policy)); err != nil {
		t.Fatal(err)
	}
}

// dial connects a client, which is a loopback address, to a port of the gateway.
func dial(t *testing.T, client string, port int) net.Conn {
	t.Helper()
	d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}
	c, err := d.DialContext(context.Background(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// ask sends a ClientHello for a name, whatever octets that has, and returns once the gateway has refused it.
func (g *gateway) ask(t *testing.T, client, name string) {
	t.Helper()
	c := dial(t, client, g.port)
	defer c.Close()
	if _, err := c.Write(helloFor(t, name)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil || len(answer) != 7 || answer[0] != 21 {
		t.Fatalf("%q got %x, %v, want a TLS alert", name, answer, err)
	}
}

// connect sends CONNECT to the forward proxy, and returns the status.
func (g *gateway) connect(t *testing.T, client, target string) string {
	t.Helper()
	c := dial(t, client, g.proxy)
	defer c.Close()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	status := make([]byte, len("HTTP/1.1 403"))
	if _, err := io.ReadFull(c, status); err != nil {
		t.Fatal(err)
	}
	return string(status[len("HTTP/1.1 "):])
}

// tunnel opens a tunnel that echoes, and has it echo some text.
func (g *gateway) tunnel(t *testing.T, client, name, text string) net.Conn {
	t.Helper()
	c := dial(t, client, g.tunnels)
	t.Cleanup(func() { c.Close() })
	sent := append(helloFor(t, name), text...)
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, len(sent))); err != nil {
		t.Fatalf("no echo from %s: %v", name, err)
	}
	return c
}

// helloFor returns a ClientHello with a server name, which need not be one: crypto/tls writes another name of
// that length, which is then replaced.
func helloFor(t *testing.T, name string) []byte {
	t.Helper()
	if name == "" {
		t.Fatal("no name")
	}
	placeholder := strings.Repeat("a", len(name))
	sent := make(recorder, 1)
	err := tls.Client(&sent, &tls.Config{ServerName: placeholder}).Handshake()
	hello := <-sent
	if n := bytes.Count(hello, []byte(placeholder)); n != 1 && len(name) > 3 {
		t.Fatalf("the ClientHello has %d times %d octets: %v", n, len(name), err)
	}
	at := bytes.LastIndex(hello, []byte(placeholder))
	return append(append(bytes.Clone(hello[:at]), name...), hello[at+len(name):]...)
}

// recorder is a connection that keeps what is written first, and ends then.
type recorder chan []byte

func (r *recorder) Write(b []byte) (int, error) {
	*r <- bytes.Clone(b)
	return len(b), nil
}
func (*recorder) Read([]byte) (int, error)         { return 0, io.EOF }
func (*recorder) Close() error                     { return nil }
func (*recorder) LocalAddr() net.Addr              { return nil }
func (*recorder) RemoteAddr() net.Addr             { return nil }
func (*recorder) SetDeadline(time.Time) error      { return nil }
func (*recorder) SetReadDeadline(time.Time) error  { return nil }
func (*recorder) SetWriteDeadline(time.Time) error { return nil }

// startUpstream echoes on a port of upstreamAddr.
func startUpstream(t *testing.T) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", upstreamAddr+":0")
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
				io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// startDNS answers that every name has upstreamAddr.
func startDNS(t *testing.T) (addr string) {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	srv := &dns.Server{PacketConn: pc, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		if q := r.Question[0]; q.Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(upstreamAddr)}}
		}
		w.WriteMsg(m)
	})}
	go srv.ActivateAndServe()
	<-started
	t.Cleanup(func() { srv.Shutdown() })
	return pc.LocalAddr().String()
}

// freePorts returns ports of 127.0.0.1 on which nobody listened a moment ago.
func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// serve serves a site on another port than the dashboard's, and so of another origin.
func serve(t *testing.T, h http.Handler) (url string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL + "/"
}
