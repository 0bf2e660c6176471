//go:build linux

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// doctored is a run of `caddy sandboxallow doctor`.
type doctored struct {
	out  string
	code int
}

// notOK returns the checks that found something, each once.
func (d doctored) notOK() (checks []string) {
	for line := range strings.Lines(d.out) {
		if f := strings.Fields(line); len(f) > 2 && f[0] != "ok" && !slices.Contains(checks, f[1]) {
			checks = append(checks, f[1])
		}
	}
	return checks
}

// runDoctor runs it in a namespace, behind other programs if before names some.
func runDoctor(t *testing.T, n *namespace, before []string, args ...string) doctored {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	line := append(slices.Clone(before), filepath.Join(built.dir(t), "caddy"), "sandboxallow", "doctor", "--timeout", "1s")
	cmd := n.command(ctx, append(line, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if t.Cleanup(func() {
		if t.Failed() {
			t.Logf("doctor %s\n%s%s", strings.Join(args, " "), &stdout, &stderr)
		}
	}); ctx.Err() != nil {
		t.Fatal("doctor did not end")
	}
	return doctored{stdout.String(), cmd.ProcessState.ExitCode()}
}

// expect expects a line that begins with a status and a check and has a text, no other check to have found
// anything, and the exit status of the worst.
func (d doctored) expect(t *testing.T, code int, status, check, text string) {
	t.Helper()
	begin := fmt.Sprintf("%-8s %-13s ", status, check)
	hit := false
	for line := range strings.Lines(d.out) {
		hit = hit || strings.HasPrefix(line, begin) && strings.Contains(line, text)
	}
	if !hit {
		t.Errorf("no line %q with %q", begin, text)
	}
	if got := d.notOK(); code != 0 && !slices.Equal(got, []string{check}) {
		t.Errorf("findings of %q, want those of %q alone", got, check)
	}
	if d.code != code {
		t.Errorf("exit status %d, want %d", d.code, code)
	}
}

// The first process of a container without capabilities, as a sandbox should be started.
var bare = []string{"unshare", "--pid", "--fork", "--mount-proc", "setpriv", "--bounding-set=-all", "--inh-caps=-all"}

// do runs iproute2 for the time of a test, and undoes it.
func do(t *testing.T, n *namespace, add, undo string) {
	t.Helper()
	if err := n.ip(strings.Fields(add)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.ip(strings.Fields(undo)...); err != nil {
			t.Error(err)
		}
	})
}

// A sandbox as it should be is all right, and doctor finds each thing that is wrong with one.
func TestDoctorFromSandbox(t *testing.T) {
	need(t, "unshare", "setpriv")
	l := newLab(t)
	const document = "policy default {\n\tallow api.example.com\n}\n"
	g := l.start(t, config{policy: document})
	for _, family := range []string{"-4", "-6"} { // the lab's, for attackers
		if err := l.sandbox.ip(family, "route", "del", "default"); err != nil {
			t.Fatal(err)
		}
	}
	look := func(t *testing.T, args ...string) doctored {
		args = append([]string{"--from-sandbox", "--name", "api.example.com", "--docker-version", "28.2.2"}, args...)
		return runDoctor(t, l.sandbox, bare, args...)
	}
	resolvConf := func(t *testing.T, content string) {
		if err := l.sandbox.etc("resolv.conf", content); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.sandbox.etc("resolv.conf", "nameserver "+gatewayAddr.String()+"\n") })
	}

	t.Run("all right", func(t *testing.T) {
		d := look(t, "--probe", "93.184.215.14:443")
		d.expect(t, 0, "ok", "nameserver", "172.30.0.20 is sandboxallow (not_allowed: sandboxallow-doctor.invalid is not in policy default)")
		d.expect(t, 0, "ok", "route", "no default route")
		d.expect(t, 0, "ok", "ipv6", "api.example.com has an AAAA")
		d.expect(t, 0, "ok", "probe", "93.184.215.14:443 is not reached")
		d.expect(t, 0, "ok", "service", "fd00:30::20 shows nothing")
		if got := d.notOK(); got != nil {
			t.Errorf("findings of %q, want none", got)
		}
	})
	t.Run("default route", func(t *testing.T) {
		do(t, l.sandbox, "route add default via 172.30.0.20", "route del default")
		look(t).expect(t, 1, "warning", "route", "route default via 172.30.0.20 dev gw, but 9.9.9.9:443 is not reached (no answer in time); keep the packet filter")
	})
	t.Run("default route that leads out", func(t *testing.T) {
		do(t, l.sandbox, "route add default via 172.30.0.20", "route del default")
		do(t, l.internet.ns, "route add 172.30.0.0/24 via "+publicAddr.String(), "route del 172.30.0.0/24")
		if err := l.gateway.sysctl("net/ipv4/ip_forward", "1"); err != nil {
			t.Fatal(err)
		}
		defer l.gateway.sysctl("net/ipv4/ip_forward", "0")
		if _, err := l.internet.count(l.internet.ns, netip.AddrPortFrom(resolverAddr, 443)); err != nil {
			t.Fatal(err)
		}
		look(t).expect(t, 2, "failure", "route", "route default via 172.30.0.20 dev gw, and 9.9.9.9:443 is reached; put the sandbox on an internal network")
	})
	t.Run("IPv6 default route", func(t *testing.T) {
		do(t, l.sandbox, "-6 route add default via fd00:30::20", "-6 route del default")
		look(t).expect(t, 1, "warning", "route", "route default via fd00:30::20 dev gw, but [2620:fe::fe]:443 is not reached")
	})
	t.Run("default route in another table", func(t *testing.T) {
		do(t, l.sandbox, "route add default via 172.30.0.20 table 100", "route del default table 100")
		do(t, l.sandbox, "rule add table 100", "rule del table 100")
		look(t).expect(t, 1, "warning", "route", "in another table than the main one, but 9.9.9.9:443 is not reached")
	})
	t.Run("second network", func(t *testing.T) {
		do(t, l.sandbox, "link add control type veth peer name other", "link del control")
		for _, step := range []string{"addr add 172.31.0.2/24 dev control", "link set control addrgenmode none up", "link set other addrgenmode none up"} {
			if err := l.sandbox.ip(strings.Fields(step)...); err != nil {
				t.Fatal(err)
			}
		}
		look(t).expect(t, 1, "warning", "network", "172.31.0.0/24 (control)")
	})
	t.Run("second nameserver", func(t *testing.T) {
		resolvConf(t, "nameserver 172.30.0.20\nnameserver 8.8.8.8\n")
		look(t).expect(t, 2, "failure", "nameserver", "second nameserver 8.8.8.8 in /etc/resolv.conf: clients ask all they have; start the sandbox with one --dns")
	})
	t.Run("both nameservers are ours", func(t *testing.T) {
		resolvConf(t, "nameserver 172.30.0.20\nnameserver fd00:30::20\n")
		look(t).expect(t, 0, "ok", "nameserver", "nameserver fd00:30::20 is sandboxallow")
	})
	t.Run("another nameserver", func(t *testing.T) {
		if err := l.internet.dns.serve(l.sandbox, netip.MustParseAddrPort("127.0.0.53:53")); err != nil {
			t.Fatal(err)
		}
		resolvConf(t, "nameserver 127.0.0.53\n")
		d := look(t, "--gateway", gatewayAddr.String())
		if d.code != 2 || !strings.Contains(d.out, "nameserver 127.0.0.53 in /etc/resolv.conf is not sandboxallow: it answers NXDOMAIN") {
			t.Errorf("exit status %d", d.code)
		}
	})
	t.Run("no policy for the sandbox", func(t *testing.T) {
		g.setPolicy(t, "policy other {\n\tclient 10.0.0.0/8\n}\n")
		g.inForce(t)
		d := look(t)
		if d.code != 1 || !strings.Contains(d.out, "172.30.0.20 is sandboxallow, and has no policy for this sandbox; give the policy document a client line") {
			t.Errorf("exit status %d", d.code)
		}
		g.setPolicy(t, document)
		g.inForce(t)
	})
	t.Run("open policy", func(t *testing.T) {
		g.setPolicy(t, "policy default {\n\tmode open\n}\n")
		g.inForce(t)
		look(t).expect(t, 0, "ok", "nameserver", "172.30.0.20 is sandboxallow")
		g.setPolicy(t, document)
		g.inForce(t)
	})
	t.Run("metadata service", func(t *testing.T) {
		const name = "169.254.169.253" // of Amazon's name server
		do(t, l.gateway, "addr add "+name+"/32 dev "+linkSandbox, "addr del "+name+"/32 dev "+linkSandbox)
		do(t, l.sandbox, "route add "+name+" dev "+linkGateway, "route del "+name)
		if _, err := l.internet.count(l.gateway, netip.MustParseAddrPort(name+":53")); err != nil {
			t.Fatal(err)
		}
		look(t).expect(t, 2, "failure", "metadata", name+":53")
	})
	t.Run("probe", func(t *testing.T) {
		if _, err := l.internet.count(l.gateway, netip.AddrPortFrom(gatewayAddr6, 22)); err != nil {
			t.Fatal(err)
		}
		look(t, "--probe", "93.184.215.14:22", "--probe", "[fd00:30::20]:22").expect(t, 2, "failure", "probe", "connected to [fd00:30::20]:22")
	})
	t.Run("capabilities", func(t *testing.T) {
		own := []string{"unshare", "--pid", "--fork", "--mount-proc", "setpriv", "--bounding-set=-all,+net_raw"}
		d := runDoctor(t, l.sandbox, own, "--from-sandbox", "--name", "api.example.com", "--docker-version", "28.2.2")
		d.expect(t, 1, "warning", "capabilities", "process 1 can have NET_RAW: it can send from another sandbox's address; start the sandbox with --cap-drop ALL")
	})
	t.Run("admin endpoint", func(t *testing.T) {
		second := l.prepare(t, config{policy: document})
		second.write(t, "Caddyfile", "{\n\tadmin 172.30.0.20:2019\n}\n")
		serving(t, second.startCaddy(t, config{}), "serving initial configuration")
		look(t).expect(t, 2, "failure", "admin", "an admin endpoint answers on 172.30.0.20:2019 (200)")
	})
	t.Run("other services of CoreDNS", func(t *testing.T) {
		second := l.prepare(t, config{policy: document})
		second.write(t, "Corefile", ".:5300 {\n\tbind 127.0.0.1\n\twhoami\n\tprometheus 172.30.0.20:9153\n\thealth 172.30.0.20:8080\n\tready 172.30.0.20:8181\n\tpprof 172.30.0.20:6053\n}\n")
		serving(t, second.startCoreDNS(t, nil), "CoreDNS-")
		d := look(t)
		for _, what := range []string{"metrics at http://172.30.0.20:9153/metrics", "health at http://172.30.0.20:8080/health", "ready at http://172.30.0.20:8181/ready", "profiles at http://172.30.0.20:6053/debug/pprof/"} {
			d.expect(t, 1, "warning", "service", "CoreDNS's "+what+" are open to the sandbox")
		}
	})
}

// serving waits until a process says so.
func serving(t *testing.T, p *process, line string) {
	t.Helper()
	must(t, startTimeout, p.name+" serves", func() bool { return len(p.log.with(0, line)) > 0 })
}

// A gateway as it should be is all right, and doctor finds each thing that is wrong with one.
func TestDoctorInGateway(t *testing.T) {
	need(t, "prlimit", "unshare", "setpriv")
	l := newLab(t)
	const document = "policy default {\n\tallow api.example.com\n}\n"
	g := l.start(t, config{policy: document, ipv4Only: true})
	look := func(t *testing.T, args ...string) doctored {
		return runDoctor(t, l.gateway, nil, append([]string{"--config", g.path("Caddyfile"), "--docker-version", "28.2.2"}, args...)...)
	}
	// A further Caddyfile, with one more line of the sandboxallow option and another admin line.
	caddyfile := func(t *testing.T, option, admin string) *gateway {
		second := l.prepare(t, config{policy: document, options: option, listen: ":444"})
		if admin != "" {
			b, err := os.ReadFile(second.path("Caddyfile"))
			if err != nil {
				t.Fatal(err)
			}
			second.write(t, "Caddyfile", strings.Replace(string(b), "admin unix/"+second.path(adminSocket), admin, 1))
		}
		return second
	}

	t.Run("all right", func(t *testing.T) {
		d := look(t)
		d.expect(t, 0, "ok", "policy", "both binaries hold policy "+g.hash(t, "caddy"))
		d.expect(t, 0, "ok", "admin", "the admin endpoint is the socket "+g.path(adminSocket))
		d.expect(t, 0, "ok", "resolver", "resolver 9.9.9.9:53 answers (NXDOMAIN)")
		d.expect(t, 0, "ok", "forwarding", "nothing is forwarded")
		if got := d.notOK(); got != nil {
			t.Errorf("findings of %q, want none", got)
		}
	})
	t.Run("as JSON", func(t *testing.T) {
		d := look(t, "--json")
		if !strings.HasPrefix(d.out, `{"status":"ok","check":"policy","found":"both binaries hold policy `) || d.code != 0 {
			t.Errorf("exit status %d", d.code)
		}
	})
	t.Run("two policies", func(t *testing.T) {
		second := l.prepare(t, config{policy: "policy default {\n\tmode open\n}\n"})
		second.write(t, "Corefile", fmt.Sprintf(".:5301 {\n\tbind 127.0.0.1\n\tsandboxallow {\n\t\tanswer 172.30.0.20\n\t\tpolicy_file %s\n\t}\n\tprometheus 127.0.0.1:9154\n}\n", second.policyFile))
		serving(t, second.startCoreDNS(t, nil), "CoreDNS-")
		look(t, "--coredns-metrics", "http://127.0.0.1:9154/metrics").expect(t, 2, "failure", "policy", ", Caddy "+g.hash(t, "caddy")+"; have both binaries read the same document")
	})
	t.Run("stale policy", func(t *testing.T) {
		g.setPolicy(t, "policy default {\n\tallwo api.example.com\n}\n")
		must(t, 5*time.Second, "both hold the older policy", func() bool {
			return g.metric(t, "coredns_sandboxallow_policy_stale") == 1 && g.metric(t, "caddy_sandboxallow_policy_stale") == 1
		})
		d := look(t)
		d.expect(t, 1, "warning", "policy", "CoreDNS holds an older policy")
		d.expect(t, 1, "warning", "policy", "Caddy holds an older policy")
		g.setPolicy(t, document)
		must(t, 5*time.Second, "both hold the new policy", func() bool {
			return g.metric(t, "coredns_sandboxallow_policy_stale") == 0 && g.metric(t, "caddy_sandboxallow_policy_stale") == 0
		})
	})
	t.Run("no CoreDNS", func(t *testing.T) {
		look(t, "--coredns-metrics", "http://127.0.0.1:9155/metrics").expect(t, 1, "warning", "policy", "CoreDNS's policy is not known: http://127.0.0.1:9155/metrics: connection refused; give --coredns-metrics")
	})
	for _, tc := range []struct {
		admin  string
		code   int
		status string
		says   string
	}{
		{"admin :2019", 2, "failure", "the admin endpoint is :2019"},
		{"admin 172.30.0.20:2019", 2, "failure", "the admin endpoint is 172.30.0.20:2019"},
		{"admin localhost:2019", 1, "warning", "the admin endpoint is localhost:2019"},
		{"# no admin line", 1, "warning", "the admin endpoint is localhost:2019"},
	} {
		t.Run(tc.admin, func(t *testing.T) {
			second := caddyfile(t, "", tc.admin)
			p := second.startCaddy(t, config{})
			serving(t, p, "serving initial configuration")
			look(t, "--config", second.path("Caddyfile")).expect(t, tc.code, tc.status, "admin", tc.says)
			p.stop(10 * time.Second)
		})
	}
	t.Run("admin off", func(t *testing.T) {
		second := caddyfile(t, "", "admin off")
		look(t, "--config", second.path("Caddyfile")).expect(t, 1, "warning", "policy", "Caddy's policy is not known: its admin endpoint is off; give --caddy-metrics")
	})
	t.Run("no configuration", func(t *testing.T) {
		d := runDoctor(t, l.gateway, nil, "--docker-version", "28.2.2")
		if got, want := d.notOK(), []string{"policy", "admin"}; !slices.Equal(got, want) || d.code != 1 {
			t.Errorf("findings of %q with exit status %d, want those of %q with 1", got, d.code, want)
		}
	})
	t.Run("resolver is the sandboxes'", func(t *testing.T) {
		second := caddyfile(t, "resolvers 172.30.0.20", "admin unix/"+g.path(adminSocket))
		look(t, "--config", second.path("Caddyfile")).expect(t, 2, "failure", "resolver", "resolver 172.30.0.20:53 is the CoreDNS of the sandboxes")
	})
	t.Run("metadata service", func(t *testing.T) {
		s, err := l.internet.count(l.internet.ns, netip.MustParseAddrPort("169.254.169.254:80"))
		if err != nil {
			t.Fatal(err)
		}
		look(t).expect(t, 1, "warning", "metadata", "connected to 169.254.169.254:80")
		_ = s.l.Close()
	})
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		t.Run(name, func(t *testing.T) {
			if err := l.gateway.sysctl(name, "1"); err != nil {
				t.Fatal(err)
			}
			sysctl := strings.ReplaceAll(name, "/", ".")
			look(t).expect(t, 1, "warning", "forwarding", sysctl+" is on: packets of a sandbox can pass the gateway by; start the gateway with --sysctl "+sysctl+"=0")
			if err := l.gateway.sysctl(name, "0"); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("few descriptors", func(t *testing.T) {
		d := runDoctor(t, l.gateway, []string{"prlimit", "--nofile=1024:1024"}, "--config", g.path("Caddyfile"), "--docker-version", "28.2.2")
		d.expect(t, 1, "warning", "descriptors", "1024 descriptors may be open")
	})
	for version, want := range map[string]doctored{
		"25.0.4":         {"failure", 2},
		"20.10.24+dfsg1": {"warning", 1},
		"26.1.2":         {"warning", 1},
	} {
		t.Run("Docker "+version, func(t *testing.T) {
			l, err := net.Listen("unix", filepath.Join(g.dir, "docker.sock"))
			if err != nil {
				t.Fatal(err)
			}
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/version" {
					_, _ = io.WriteString(w, `{"Version":"`+version+`"}`)
				}
			})}
			go func() { _ = srv.Serve(l) }()
			defer srv.Close()
			d := look(t, "--docker-version", "", "--docker", l.Addr().String())
			d.expect(t, want.code, want.out, "docker", "Docker "+version)
		})
	}
	for name, args := range map[string][]string{
		"unknown flag":               {"--cofnig", "x"},
		"argument":                   {"gateway"},
		"no such file":               {"--config", "/nonexistent/Caddyfile"},
		"flag of the other side":     {"--from-sandbox"},
		"flag of a sandbox":          {"--name", "api.example.com"},
		"no duration":                {"--timeout", "0"},
		"admin endpoint of no sense": {"--admin", "tcp/:1-99999"},
	} {
		t.Run(name, func(t *testing.T) {
			if d := look(t, args...); d.code != 3 || d.out != "" {
				t.Errorf("exit status %d, want 3 and no report", d.code)
			}
		})
	}
	t.Run("IPv6 that the gateway lacks", func(t *testing.T) {
		d := runDoctor(t, l.sandbox, bare, "--from-sandbox", "--name", "api.example.com", "--docker-version", "28.2.2")
		if d.code != 1 || !strings.Contains(d.out, "fd00:30::100 (gw), but api.example.com has no AAAA") {
			t.Errorf("exit status %d", d.code)
		}
	})
}
