package caddymodule

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// listening is Caddy with a listener of ours, run in this process.
type listening struct {
	t        *testing.T
	addr     string
	resolver string
	roots    *x509.CertPool
	upPort   uint16
	log      string
}

func startListening(t *testing.T) *listening {
	t.Helper()
	waitFor(t, "the places of other tests to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
	l := &listening{t: t, addr: freeAddr(t), resolver: startDNS(t, testNames), log: filepath.Join(t.TempDir(), "log")}
	l.upPort, l.roots = startUpstream(t)
	t.Cleanup(func() { caddy.Stop() })
	return l
}

// load has Caddy run a configuration with rules of a policy, and further options of the app and apps.
func (l *listening) load(rules, options, apps string) error {
	l.t.Helper()
	text := fmt.Sprintf(`{
	admin off
	persist_config off
	grace_period 1s
	log {
		output file %s
		format json
	}
	sandboxallow {
		resolvers %s
		private %s
		%s
		%s
	}
}
%s
`, l.log, l.resolver, upstreamAddr, strings.ReplaceAll(rules, "%d", fmt.Sprint(l.upPort)), strings.ReplaceAll(options, "%d", fmt.Sprint(l.upPort)), apps)
	data, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		l.t.Fatal(err)
	}
	return caddy.Load(data, true)
}

func (l *listening) option() string { return "listen " + l.addr + " {\nupstream_port %d\n}" }

func (l *listening) dial(serverName string) (*tls.Conn, error) {
	d := &net.Dialer{Timeout: 10 * time.Second}
	return tls.DialWithDialer(d, "tcp", l.addr, &tls.Config{ServerName: serverName, RootCAs: l.roots})
}

// refuses reports whether nobody listens on an address.
func refuses(addr string) bool {
	c, err := net.Dial("tcp", addr)
	if err == nil {
		c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// Whoever connects while configurations change is served, and by the new one.
func TestListenReload(t *testing.T) {
	l := startListening(t)
	const both = "allow www.example.com:%d api.example.com:%d"
	if err := l.load(both, l.option(), ""); err != nil {
		t.Fatal(err)
	}
	kept, err := l.dial("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	var over atomic.Bool
	var served atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !over.Load() {
				c, err := l.dial("www.example.com")
				if err == nil {
					err = echo(c, "through")
					c.Close()
				}
				if err != nil {
					t.Errorf("while the configuration changes: %v", err)
					return
				}
				served.Add(1)
			}
		})
	}
	for i := range 15 {
		before := served.Load()
		if err := l.load(both, fmt.Sprintf("max_tunnels %d\n", 1000+i)+l.option(), ""); err != nil {
			t.Error(err)
		}
		waitFor(t, "somebody to be served", func() bool { return served.Load() > before || t.Failed() })
	}
	if err := echo(kept, "through all of it"); err != nil {
		t.Error(err)
	}
	// What is open is judged by the policy of a new configuration, and so is who comes.
	if err := l.load("allow www.example.com:%d", l.option(), ""); err != nil {
		t.Error(err)
	}
	if _, err := kept.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a tunnel that is no longer allowed: %v, want a reset", err)
	}
	if _, err := l.dial("api.example.com"); err == nil || err.Error() != alertError(alertUnrecognizedName) {
		t.Errorf("client sees %v, want %s", err, alertError(alertUnrecognizedName))
	}
	over.Store(true)
	wg.Wait()

	// One that does not listen closes the socket, and one that does opens it again.
	if err := l.load(both, "", ""); err != nil {
		t.Fatal(err)
	}
	if !refuses(l.addr) {
		t.Error("it listens though the configuration does not say so")
	}
	if err := l.load(both, l.option(), ""); err != nil {
		t.Fatal(err)
	}
	c, err := l.dial("www.example.com")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	if !refuses(l.addr) {
		t.Error("it listens after the last configuration")
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a tunnel after the last configuration: %v, want a reset", err)
	}
	waitFor(t, "all places to be given back", func() bool { return open.held.Load() == 0 && open.len() == 0 })
	if n := len(entrances.byAddress); n != 0 {
		t.Errorf("%d entrances are left", n)
	}
}

// One that cannot be taken leaves the old one serving, whichever of its parts fails.
func TestListenFailedReload(t *testing.T) {
	l := startListening(t)
	if err := l.load("allow www.example.com:%d", l.option(), ""); err != nil {
		t.Fatal(err)
	}
	kept, err := l.dial("www.example.com")
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	taken, err := net.Listen("tcp", "127.0.3.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	also := freeAddr(t)
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	for _, tc := range []struct{ name, options, apps string }{
		{"another address", "listen " + also + " {\nupstream_port %d\n}\nlisten " + taken.Addr().String(), ""},
		{"another app", "listen " + also + " {\nupstream_port %d\n}\n", "http://127.0.3.2:" + port + " {\nbind 127.0.3.2\nrespond x\n}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := l.load("allow .example.com:%d", l.option()+"\n"+tc.options, tc.apps)
			if err == nil || !strings.Contains(err.Error(), "address already in use") || !strings.Contains(err.Error(), taken.Addr().String()) {
				t.Fatalf("error %v, want that %s is in use", err, taken.Addr())
			}
			if !refuses(also) {
				t.Error("what the failed configuration listened on is open")
			}
			if err := echo(kept, "as before"); err != nil {
				t.Error(err)
			}
			c, err := l.dial("www.example.com")
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			// By the policy of the old one.
			if _, err := l.dial("api.example.com"); err == nil || err.Error() != alertError(alertUnrecognizedName) {
				t.Errorf("client sees %v, want %s", err, alertError(alertUnrecognizedName))
			}
		})
	}
}

// An address that another has is an error that names it, after which nothing of the app is left.
func TestListenInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.3.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	also := freeAddr(t)
	for _, tc := range []struct{ name, addr, want string }{
		{"in use", taken.Addr().String(), "address already in use"},
		{"of another host", "192.0.2.1:1", "cannot assign requested address"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := &App{
				Policy: []policy.Line{{File: "x", Line: 1, Words: []string{"allow", "a.b"}}},
				Listen: []*Listener{{Addresses: []string{also, tc.addr}}},
			}
			ctx, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Provision(ctx); err != nil {
				t.Fatal(err)
			}
			if !refuses(also) {
				t.Error("it listens before it is started")
			}
			err = a.Start()
			if want := "listen tcp " + tc.addr + ": bind: " + tc.want; err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
			if !refuses(also) {
				t.Error("what it listened on is open")
			}
			if running.judge() != nil {
				t.Error("the app runs")
			}
			if n := len(entrances.byAddress); n != 0 {
				t.Errorf("%d entrances are left", n)
			}
		})
	}
}

// `caddy validate` opens nothing.
func TestListenValidate(t *testing.T) {
	addr := freeAddr(t)
	if err := caddy.Validate(adapt(t, listenFile("listen "+addr))); err != nil {
		t.Fatal(err)
	}
	if !refuses(addr) {
		t.Error("it listens")
	}
}

// Who connects before there is a server waits, and is judged by the configuration that serves him.
func TestListenBeforeServing(t *testing.T) {
	g := startVisits(t, nil, nil)
	addr := freeAddr(t)
	if err := entrances.open(addr, &server{app: g.app, listener: &Listener{UpstreamPort: g.upPort}}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		c, err := tls.Dial("tcp", addr, &tls.Config{ServerName: "www.example.com", RootCAs: g.roots})
		if err == nil {
			err = echo(c, "through")
			c.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("served by nobody: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if err := entrances.serve(g.app); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
