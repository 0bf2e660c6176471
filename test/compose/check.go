//go:build linux

package compose

import (
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// soon is what a client may take to be told no, the start of a program in a container of a busy machine included.
const soon = 5 * time.Second

// must waits until a condition holds.
func must(tb testing.TB, d time.Duration, what string, holds func() bool) {
	tb.Helper()
	for end := time.Now().Add(d); !holds(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("%s: not within %s", what, d)
		}
	}
}

// gets fails the test unless a client of the sandbox gets what is wanted.
func (s sandbox) gets(tb testing.TB, want string, client ...string) {
	tb.Helper()
	if out, _, err := s.run(client...); err != nil || !strings.Contains(out, want) {
		tb.Errorf("%s: %q, %v, want %q", strings.Join(client, " "), out, err, want)
	}
}

// fails fails the test unless a client of the sandbox fails soon and says why.
func (s sandbox) fails(tb testing.TB, says string, client ...string) {
	tb.Helper()
	out, took, err := s.run(client...)
	if err == nil || !strings.Contains(err.Error(), says) {
		tb.Errorf("%s: %q, %v, want a failure that says %q", strings.Join(client, " "), out, err, says)
	}
	if took > soon {
		tb.Errorf("%s: failed after %s", strings.Join(client, " "), took)
	}
}

// answers fails the test unless curl gets an answer that was made by the gateway: a status and a reason.
func (s sandbox) answers(tb testing.TB, status int, reason, url string, options ...string) {
	tb.Helper()
	out, took, err := s.curl(url, append([]string{"--include"}, options...)...)
	head, body, _ := strings.Cut(strings.ReplaceAll(out, "\r\n", "\n"), "\n\n")
	if err != nil || !strings.HasPrefix(head, fmt.Sprintf("HTTP/1.1 %d ", status)) ||
		!strings.Contains(strings.ToLower(head)+"\n", "\nx-sandboxallow-reason: "+reason+"\n") ||
		!strings.HasPrefix(body, "sandboxallow: "+reason+": ") {
		tb.Errorf("%s: %v\n%s\nwant %d and the reason %s", url, err, out, status, reason)
	}
	if took > soon {
		tb.Errorf("%s: denied after %s", url, took)
	}
}

// client is a program that fetches a URL and knows nothing of the gateway.
type client struct {
	name         string
	line         func(url string) []string
	ignoresProxy bool // HTTP_PROXY and its like
}

var clients = []client{
	{name: "curl", line: func(url string) []string {
		return []string{"curl", "--silent", "--show-error", "--max-time", "25", url}
	}},
	{name: "python", line: func(url string) []string {
		return []string{"/usr/bin/python3", "-c", "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=25).read().decode())", url}
	}},
	{name: "git", line: func(url string) []string {
		return []string{"sh", "-c", `d=$(mktemp -d) && git clone --quiet "$1code.git" "$d" && cat "$d/page"`, "sh", url}
	}},
	{name: "node", ignoresProxy: true, line: func(url string) []string {
		return []string{"node", "-e", "fetch(process.argv[1]).then(r => r.text()).then(console.log)", url}
	}},
}

// fetches fails the test unless every client fetches https://NAME/ and http://NAME/ in the sandbox.
func (s sandbox) fetches(t *testing.T, name string) {
	t.Helper()
	for _, c := range clients {
		if c.ignoresProxy && s.d.lab.proxied {
			continue
		}
		for _, scheme := range []string{"https", "http"} {
			t.Run(c.name+"-"+scheme, func(t *testing.T) {
				want := page(name)
				if c.name == "git" {
					want = page("the repository")
				}
				s.gets(t, want, c.line(scheme+"://"+name+"/")...)
			})
		}
	}
}

// hasNoWayOut proves that a sandbox reaches nothing but the gateway: no other address, no other name server, not
// the host, nothing over IPv6.
func (s sandbox) hasNoWayOut(t *testing.T) {
	t.Helper()
	internet := s.d.lab.internet().String()
	t.Run("ops-018", func(t *testing.T) {
		s.unreachable(t, append(listenOnHost(t),
			internet+":443", internet+":53", "8.8.8.8:53", "169.254.169.254:80", "10.0.0.5:443")...)
		for _, to := range []string{internet + ":53", "169.254.169.254:53"} {
			if got := s.probe("dns", to, "raw.example.com"); got != probeUnreachable && got != probeTimeout {
				t.Errorf("UDP %s: %s", to, got)
			}
		}
		if got := s.d.arrived("dns raw.example.com"); len(got) > 0 {
			t.Errorf("a datagram got out: %v", got)
		}
	})
	t.Run("ops-020", func(t *testing.T) {
		if out, _, err := s.run("cat", "/proc/net/if_inet6"); err != nil || out != "" {
			t.Errorf("the sandbox has IPv6 addresses: %v\n%s", err, out)
		}
		for _, to := range []string{"[2606:4700::1]:443", "[fe80::1]:443"} {
			if got := s.probe("tcp", to); got == probeConnected || got == probeTimeout {
				t.Errorf("TCP %s: %s", to, got)
			}
		}
	})
}

// unreachable fails the test unless the sandbox has no way to each address, TCP. An engine before 25 gives it a
// route by which nobody is, and that takes the three seconds of ARP: all at once.
func (s sandbox) unreachable(tb testing.TB, addrs ...string) {
	tb.Helper()
	var wait sync.WaitGroup
	for _, a := range addrs {
		wait.Go(func() {
			if got := s.probe("tcp", a); got != probeUnreachable {
				tb.Errorf("TCP %s: %s, want %s", a, got, probeUnreachable)
			}
		})
	}
	wait.Wait()
}

// listenOnHost listens for the time of a test and returns the addresses and port: those of the host but loopback.
func listenOnHost(tb testing.TB) (addrs []string) {
	tb.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	all, err := net.InterfaceAddrs()
	if err != nil {
		tb.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			addrs = append(addrs, net.JoinHostPort(n.IP.String(), port))
		}
	}
	if len(addrs) == 0 {
		tb.Fatal("the host has no address")
	}
	return addrs
}

// router is a sandbox that may do what none should be able to: it sets itself routes.
type router struct{ sandbox }

func (d *deployment) startRouter(network string) router {
	d.tb.Helper()
	return router{d.start("--network", network, "--cap-drop", "ALL", "--cap-add", "NET_ADMIN")}
}

// route sets a route.
func (r router) route(tb testing.TB, to, via string) {
	tb.Helper()
	if out, err := docker("exec", "--user", "0", r.id, "/usr/sbin/ip", "route", "replace", to, "via", via); err != nil {
		tb.Fatal(out, err)
	}
}

// isNoRouter proves that a container that stands in several networks forwards nothing: a sandbox sends a question
// through it.
func (r router) isNoRouter(tb testing.TB, service, addr string) {
	tb.Helper()
	var pid int
	r.d.inspect(r.d.container(service), ".State.Pid", &pid)
	b, err := exec.Command("nsenter", "--net", "--target", strconv.Itoa(pid), "cat", "/proc/sys/net/ipv4/ip_forward").CombinedOutput()
	if err != nil || strings.TrimSpace(string(b)) != "0" {
		tb.Errorf("%s: ip_forward is %q, %v, want 0", service, b, err)
	}
	r.route(tb, "default", addr)
	if got := r.probe("dns", r.d.lab.internet().String()+":53", "routed.example.com"); got != probeUnreachable && got != probeTimeout {
		tb.Errorf("by way of %s: %s", service, got)
	}
	if got := r.d.arrived("dns routed.example.com"); len(got) > 0 {
		tb.Errorf("%s routed %v", service, got)
	}
}

// isHardened proves how the containers of the product run, and that all networks of the project are internal.
func (d *deployment) isHardened(t *testing.T, services ...string) {
	t.Helper()
	for _, service := range services {
		var c struct {
			Config struct {
				User        string
				Healthcheck *struct{ Test []string }
			}
			HostConfig struct {
				ReadonlyRootfs bool
				CapDrop        []string
				CapAdd         []string
				SecurityOpt    []string
				Privileged     bool
			}
			State struct{ Health *struct{ Status string } }
		}
		d.inspect(d.container(service), ".", &c)
		h := c.HostConfig
		if c.Config.User != "65532:65532" || !h.ReadonlyRootfs || h.Privileged ||
			strings.Join(h.CapDrop, " ") != "ALL" || !strings.Contains(strings.Join(h.SecurityOpt, " "), "no-new-privileges") {
			t.Errorf("%s runs with %+v", service, c)
		}
		for _, name := range h.CapAdd {
			if strings.TrimPrefix(name, "CAP_") != "NET_BIND_SERVICE" {
				t.Errorf("%s has capability %s", service, name)
			}
		}
		if c.State.Health == nil || c.State.Health.Status != "healthy" {
			t.Errorf("%s: health %+v", service, c.State.Health)
		}
	}
}

// leadsNowhere ends the test unless every network of the project is internal.
func (d *deployment) leadsNowhere() {
	d.tb.Helper()
	out, err := docker("network", "ls", "--quiet", "--filter", projectLabel+d.project)
	if err != nil || out == "" {
		d.tb.Fatalf("networks of %s: %q, %v", d.project, out, err)
	}
	for network := range strings.FieldsSeq(out) {
		var internal bool
		if d.inspect(network, ".Internal", &internal); !internal {
			d.tb.Fatalf("network %s is not internal", network)
		}
	}
}

// dnsIsTight proves that a name which is not allowed does not exist, whichever server is asked, and that no other
// DNS server hears of it: not the internet's, and not the host's through Docker's resolver.
func (s sandbox) dnsIsTight(t *testing.T, servers ...string) {
	t.Helper()
	const name = "secret.example.org"
	for _, server := range append(servers, "127.0.0.11") {
		if got := s.probe("dns", server+":53", name); got != "NXDOMAIN" {
			t.Errorf("%s of %s: %s, want NXDOMAIN", name, server, got)
		}
	}
	if got := s.d.arrived("dns " + name); len(got) > 0 {
		t.Errorf("the internet was asked: %v", got)
	}
}
