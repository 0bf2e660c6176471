//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// applies is how long a change may take until both processes have it in force.
const applies = 5 * time.Second

// allowing is a document that allows names, in one policy.
func allowing(names ...string) string {
	return "policy default {\n\tallow " + strings.Join(names, "\n\tallow ") + "\n}\n"
}

// reloadLab is a lab where every name of a few is a web server, and echo.example.com is echo.
func reloadLab(t *testing.T) *lab {
	t.Helper()
	l := newLab(t)
	for _, name := range []string{"api", "one", "two", "three", "four", "five"} {
		if _, err := l.internet.host(name+".example.com", otherAddr); err != nil {
			t.Fatal(err)
		}
	}
	l.internet.dns.set("echo.example.com", addrs(webAddr))
	if _, err := l.internet.serve(l.internet.ns, netip.AddrPortFrom(webAddr, 443), echo); err != nil {
		t.Fatal(err)
	}
	return l
}

// allows waits until a name is known to CoreDNS and let through by Caddy.
func (g *gateway) allows(t *testing.T, name string) {
	t.Helper()
	must(t, applies, "CoreDNS knows "+name, func() bool { return g.knows(t, name) })
	must(t, applies, "Caddy lets "+name+" through", func() bool {
		body, err := g.lab.get(name)
		return err == nil && body == page(name)
	})
}

// refuses waits until a name is denied by both.
func (g *gateway) refuses(t *testing.T, name string) {
	t.Helper()
	must(t, applies, "CoreDNS denies "+name, func() bool { return g.ask(t, name, dns.TypeA).Rcode == dns.RcodeNameError })
	must(t, applies, "Caddy denies "+name, func() bool {
		_, err := g.lab.get(name)
		return err != nil && strings.Contains(err.Error(), "unrecognized name")
	})
}

// Each way in which people and programs change a document, while both binaries run.
func TestReload(t *testing.T) {
	l := reloadLab(t)
	g := l.start(t, config{policy: allowing("api.example.com")})
	g.allows(t, "api.example.com")
	g.refuses(t, "one.example.com")

	t.Run("reload-001", func(t *testing.T) {
		for _, name := range []string{"one", "two", "three", "four", "five"} {
			g.setPolicy(t, allowing("api.example.com", name+".example.com"))
			g.allows(t, name+".example.com")
		}
		g.refuses(t, "four.example.com")
		g.inForce(t)
	})

	t.Run("truncate and write", func(t *testing.T) {
		before := g.hash(t, "caddy")
		failures := g.metric(t, "caddy_sandboxallow_reload_failures_total")
		document := allowing("api.example.com", "one.example.com")
		f, err := os.OpenFile(g.policyFile, os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		// Half of it lies there for longer than a poll.
		half := strings.Index(document, "\tallow one")
		if _, err := f.WriteString(document[:half]); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for time.Since(start) < 1200*time.Millisecond {
			if got := g.hash(t, "caddy"); got != before {
				t.Fatalf("half of the document is in force: %s", got)
			}
			time.Sleep(50 * time.Millisecond)
		}
		l.reaches(t, "api.example.com")
		if _, err := f.WriteString(document[half:]); err != nil {
			t.Fatal(err)
		}
		written := time.Since(start)
		g.document = document
		g.allows(t, "one.example.com")
		g.inForce(t)
		// What is the same in three polls counts as complete: this machine must not have been slower.
		if n := g.metric(t, "caddy_sandboxallow_reload_failures_total"); n != failures && written < 2*time.Second {
			t.Errorf("%v changes not taken while the document was being written", n-failures)
		}
	})

	t.Run("reload-009", func(t *testing.T) {
		marks := map[*process]int{g.coredns: g.coredns.log.mark(), g.caddy: g.caddy.log.mark()}
		failures := func(prefix string) float64 { return g.metric(t, prefix+"_sandboxallow_reload_failures_total") }
		before := map[string]float64{"coredns": failures("coredns"), "caddy": failures("caddy")}
		g.write(t, "policy", "policy default {\n\tallow api.example.com\n\tallwo two.example.com\n}\n")
		for _, prefix := range []string{"coredns", "caddy"} {
			must(t, applies, prefix+" says that its policy is stale", func() bool {
				return g.metric(t, prefix+"_sandboxallow_policy_stale") == 1
			})
		}
		l.reaches(t, "one.example.com")
		if !g.knows(t, "one.example.com") {
			t.Error("CoreDNS has dropped the last good policy")
		}
		// Three polls more, each of which finds the same fault.
		time.Sleep(3 * time.Second)
		for p, mark := range marks {
			if lines := p.log.with(mark, g.policyFile+":3: unknown word"); len(lines) != 1 {
				t.Errorf("%s logged the fault %d times, want once: %q", p.name, len(lines), lines)
			}
		}
		for _, prefix := range []string{"coredns", "caddy"} {
			if n := failures(prefix) - before[prefix]; n != 1 {
				t.Errorf("%s: %v changes not taken, want 1", prefix, n)
			}
		}
		g.setPolicy(t, allowing("api.example.com", "two.example.com"))
		g.allows(t, "two.example.com")
		g.refuses(t, "one.example.com")
		for _, prefix := range []string{"coredns", "caddy"} {
			if n := g.metric(t, prefix+"_sandboxallow_policy_stale"); n != 0 {
				t.Errorf("%s: still stale", prefix)
			}
		}
	})

	t.Run("deleted", func(t *testing.T) {
		if err := os.Remove(g.policyFile); err != nil {
			t.Fatal(err)
		}
		must(t, applies, "a document that is gone makes the policy stale", func() bool {
			return g.metric(t, "caddy_sandboxallow_policy_stale") == 1 && g.metric(t, "coredns_sandboxallow_policy_stale") == 1
		})
		l.reaches(t, "two.example.com")
		g.setPolicy(t, allowing("echo.example.com", "api.example.com"))
		g.allows(t, "api.example.com")
	})

	t.Run("reload-010", func(t *testing.T) {
		removed, kept := l.open(t, "echo.example.com"), make(chan error, 1)
		g.setPolicy(t, allowing("api.example.com", "echo.example.com", "three.example.com"))
		g.inForce(t)
		if err := exchangeBytes(removed, []byte("a change that still allows the name")); err != nil {
			t.Fatal(err)
		}
		mark := g.caddy.log.mark()
		g.setPolicy(t, allowing("api.example.com"))
		start := time.Now()
		go func() {
			_ = removed.SetReadDeadline(time.Now().Add(applies))
			_, err := removed.Read(make([]byte, 1))
			kept <- err
		}()
		if err := <-kept; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the open tunnel after %s: %v, want a reset within %s", time.Since(start), err, applies)
		}
		d := g.decided(t, mark, msgRevoked, "echo.example.com")
		if d.Verdict != "deny" || d.Reason != "not_allowed" || d.BytesIn == 0 || d.BytesOut == 0 {
			t.Errorf("the end of the tunnel is recorded as %+v", d)
		}
		if _, err := l.tunnel("echo.example.com"); !errors.Is(err, alertError(alertUnrecognizedName)) {
			t.Errorf("a new tunnel: %v, want unrecognized_name", err)
		}
		g.refuses(t, "three.example.com")
	})

	t.Run("reload-015", func(t *testing.T) {
		for i := range 10 {
			name := fmt.Sprintf("skew%d.example.com", i)
			l.internet.dns.set(name, addrs(otherAddr))
			g.setPolicy(t, allowing("api.example.com", name))
			must(t, applies, "CoreDNS knows "+name, func() bool { return g.knows(t, name) })
			if body, err := l.get(name); err != nil || body != page(name) {
				t.Errorf("CoreDNS steered %s to Caddy, which said %q, %v", name, body, err)
			}
		}
	})

	t.Run("retry", func(t *testing.T) {
		need(t, "curl")
		name := "late.example.com"
		l.internet.dns.set(name, addrs(otherAddr))
		type result struct {
			out string
			err error
		}
		done := make(chan result, 1)
		go func() {
			out, err := l.curl("https://"+name+"/", "--retry", "20", "--retry-delay", "1", "--retry-all-errors")
			done <- result{out, err}
		}()
		must(t, applies, "curl has been denied once", func() bool { return len(g.coredns.log.with(0, name+". NXDOMAIN")) > 0 })
		g.setPolicy(t, allowing("api.example.com", name))
		if r := <-done; r.err != nil || r.out != page(name) {
			t.Errorf("curl after the name was added: %q, %v", r.out, r.err)
		}
	})
}

// A Kubernetes ConfigMap: the document is a link to ..data/policy, and ..data to a folder that is replaced.
func TestConfigMap(t *testing.T) {
	l := reloadLab(t)
	g := l.prepare(t, config{})
	version := func(n int, document string) string {
		t.Helper()
		dir := fmt.Sprintf("..2024_%d", n)
		if err := os.Mkdir(g.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(g.path(dir), "policy"), []byte(document), 0o644); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, g.path(name+"_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(g.path(name+"_tmp"), g.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	link(version(1, allowing("api.example.com")), "..data")
	link("..data/policy", "policy")
	g.run(t, config{})
	g.allows(t, "api.example.com")

	t.Run("reload-002", func(t *testing.T) {
		for i, name := range []string{"one.example.com", "two.example.com"} {
			link(version(i+2, allowing("api.example.com", name)), "..data")
			if err := os.RemoveAll(g.path(fmt.Sprintf("..2024_%d", i+1))); err != nil {
				t.Fatal(err)
			}
			g.allows(t, name)
		}
		g.refuses(t, "one.example.com")
	})
}

// visitors has clients get a page, each time over a new connection, while do runs. Lost are those whose connection is
// reset, or closed.
func (l *lab) visitors(t *testing.T, do func()) (served, lost int64) {
	t.Helper()
	return whileVisited(t, func() (lost bool, err error) {
		body, err := l.get("api.example.com")
		if err == nil && body != page("api.example.com") {
			err = fmt.Errorf("got %q", body)
		}
		return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF), err
	}, do)
}

// whileVisited has four clients visit again and again while do runs. A visit that fails and is not lost ends the client,
// and is an error of the test.
func whileVisited(t *testing.T, visit func() (lost bool, err error), do func()) (served, lost int64) {
	t.Helper()
	done := make(chan struct{})
	var clients sync.WaitGroup
	var good, bad atomic.Int64
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				switch lost, err := visit(); {
				case lost:
					bad.Add(1)
				case err != nil:
					t.Error(err)
					return
				default:
					good.Add(1)
				}
			}
		})
	}
	func() {
		defer close(done) // if do ends the test, too
		do()
	}()
	clients.Wait()
	t.Logf("%d served, %d lost", good.Load(), bad.Load())
	return good.Load(), bad.Load()
}

// reloadCaddy has Caddy take its Caddyfile, whether it has changed or not.
func (g *gateway) reloadCaddy(t *testing.T, env ...string) {
	t.Helper()
	g.inGateway(t, env, "caddy reload --force --config Caddyfile --adapter caddyfile --address unix/"+adminSocket)
}

// The socket of a listen option outlives the configuration: a reload loses nobody.
func TestListenReload(t *testing.T) {
	l := reloadLab(t)
	g := l.start(t, config{policy: allowing("api.example.com")})
	served, lost := l.visitors(t, func() {
		for range 6 {
			g.reloadCaddy(t)
		}
	})
	if served < 50 || lost != 0 {
		t.Errorf("%d served, and %d lost", served, lost)
	}
}

// From a route of layer4 to the option of the app and back, by `caddy reload`: both share the port for a moment. What is
// open goes on. Whoever connects meanwhile is served, but for those who wait at the socket that closes.
func TestWayReload(t *testing.T) {
	l := reloadLab(t)
	g := l.prepare(t, config{policy: allowing("echo.example.com", "api.example.com"), layer4: true})
	route := g.read(t, "Caddyfile")
	listen := strings.NewReplacer(layer4(layer4Route(":443", "sandboxallow", "")), "",
		"policy_file "+g.policyFile, "policy_file "+g.policyFile+"\n\t\tlisten :443").Replace(route)
	g.run(t, config{})

	open := []net.Conn{l.open(t, "echo.example.com")}
	served, lost := l.visitors(t, func() {
		for i := range 6 {
			g.write(t, "Caddyfile", []string{listen, route}[i%2])
			g.reloadCaddy(t)
			open = append(open, l.open(t, "echo.example.com"))
		}
	})
	if served < 50 || lost > served/10 {
		t.Errorf("%d served, and %d lost", served, lost)
	}
	for i, c := range open {
		if err := exchangeBytes(c, []byte("still open")); err != nil {
			t.Errorf("a tunnel from before %d reloads: %v", len(open)-1-i, err)
		}
	}
	// All are the last configuration's.
	g.setPolicy(t, allowing("api.example.com"))
	for i, c := range open {
		_ = c.SetReadDeadline(time.Now().Add(applies))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a tunnel from before %d reloads, after its name was removed: %v, want a reset", len(open)-1-i, err)
		}
	}
}

// Signals and commands with which CoreDNS and Caddy reload their own configuration.
func TestConfigurationReload(t *testing.T) {
	l := reloadLab(t)
	g := l.start(t, config{policy: allowing("api.example.com")})
	g.allows(t, "api.example.com")
	corefile, err := os.ReadFile(g.path("Corefile"))
	if err != nil {
		t.Fatal(err)
	}
	reload := func(t *testing.T, corefile, says string) {
		t.Helper()
		mark := g.coredns.log.mark()
		g.write(t, "Corefile", corefile)
		g.coredns.signal(t, syscall.SIGUSR1)
		must(t, applies, "CoreDNS says "+says, func() bool { return len(g.coredns.log.with(mark, says)) > 0 })
		if !g.knows(t, "api.example.com") || g.ask(t, "denied.example.net", dns.TypeA).Rcode != dns.RcodeNameError {
			t.Error("CoreDNS does not answer as before")
		}
	}

	t.Run("reload-016", func(t *testing.T) {
		taken, err := l.gateway.listen(netip.AddrPortFrom(gatewayAddr, 5300))
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		reload(t, strings.Replace(string(corefile), "answer ", "answer nowhere ", 1), "Corefile:4")
		reload(t, string(corefile)+strings.Replace(string(corefile), ".:53", ".:5300", 1), "address already in use")
		g.setPolicy(t, allowing("api.example.com", "one.example.com"))
		g.allows(t, "one.example.com")
	})
	t.Run("reload-020", func(t *testing.T) {
		reload(t, string(corefile), "Reloading complete")
		g.setPolicy(t, allowing("api.example.com", "two.example.com"))
		g.allows(t, "two.example.com")
		g.refuses(t, "one.example.com")
	})
	t.Run("caddy", func(t *testing.T) {
		g.setPolicy(t, allowing("api.example.com", "echo.example.com"))
		g.inForce(t)
		open := l.open(t, "echo.example.com")
		reloadCaddy := func(caddyfile string) ([]byte, error) {
			g.write(t, "Caddyfile", caddyfile)
			cmd := exec.Command(filepath.Join(built.dir(t), "caddy"), "reload", "--force", "--adapter", "caddyfile",
				"--config", g.path("Caddyfile"), "--address", "unix/"+g.path(adminSocket))
			return cmd.CombinedOutput()
		}
		caddyfile, err := os.ReadFile(g.path("Caddyfile"))
		if err != nil {
			t.Fatal(err)
		}
		if out, err := reloadCaddy(string(caddyfile)); err != nil {
			t.Fatalf("caddy reload: %v\n%s", err, out)
		}
		if err := exchangeBytes(open, []byte("still open")); err != nil {
			t.Errorf("the tunnel that was open: %v", err)
		}
		// A configuration that cannot start leaves the other one in force.
		if out, err := reloadCaddy(strings.Replace(string(caddyfile), "policy_file ", "policy_file /nowhere", 1)); err == nil {
			t.Errorf("caddy reload without a policy: %s", out)
		}
		l.reaches(t, "api.example.com")
		// The new configuration watches, and judges what the old one opened.
		g.setPolicy(t, allowing("api.example.com", "three.example.com"))
		g.allows(t, "three.example.com")
		_ = open.SetReadDeadline(time.Now().Add(applies))
		if _, err := open.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the tunnel after its name was removed: %v, want a reset", err)
		}
	})
}
