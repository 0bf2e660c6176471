//go:build linux

package compose

import (
	"strings"
	"testing"
	"time"
)

// appServices are the application of example-app.yaml: every part of it is a machine, and both servers listen on
// a port that the runner may use and on one that it should not.
func appServices() []string {
	serve := func(name string) string {
		return service(name, "1000:1000", machineMounts(), "sh", "-c",
			"cd /tmp; python3 -m http.server 9000 & exec python3 -m http.server 8000")
	}
	return []string{serve("backend") + "    ports: !reset []\n", serve("worker"), serve("runner")}
}

// forward-proxy.yaml, as docs/replace-forward-proxy.md sets it up.
func TestForwardProxy(t *testing.T) {
	setUp(t)
	t.Parallel()
	d := deploy(t, "app", lab{
		uplink:   "sandbox-egress-uplink",
		nth:      1,
		services: append(appServices(), impatient("sandbox-egress-proxy")),
		// Subnets that Docker does not pick: its own go round, and come to those of the other files.
		networks: "  public: {internal: true, ipam: {config: [{subnet: 10.89.79.0/24}]}}\n" +
			"  control: {ipam: {config: [{subnet: 10.89.80.0/24}]}}\n" +
			"  egress: {ipam: {config: [{subnet: 10.89.81.0/24}]}}\n",
		proxied: true,
	}, "example-app.yaml", "forward-proxy.yaml")
	g := readGuide(t, "replace-forward-proxy.md")
	d.follow(t, g, "Start it")
	d.leadsNowhere()
	runner := d.sandbox("runner")

	t.Run("containers", func(t *testing.T) { d.isHardened(t, "sandbox-egress-proxy") })
	t.Run("public", func(t *testing.T) { runner.fetches(t, "www.example.org") })
	t.Run("no-proxy", func(t *testing.T) { runner.gets(t, "Directory listing", "curl", "-sS", "http://backend:8000/") })

	t.Run("private", func(t *testing.T) {
		// The last one is the runner's own: the proxy would reach it.
		for _, a := range []string{"10-0-0-5", "169-254-169-254", "127-0-0-1", strings.ReplaceAll(runner.addr("_egress"), ".", "-")} {
			name := a + ".addr.example.org"
			runner.answers(t, 403, "private_address", "http://"+name+"/")
			runner.refusesTunnel(t, "private_address", name)
		}
	})
	t.Run("literal", func(t *testing.T) {
		for _, a := range []string{"10.0.0.5", "169.254.169.254", "127.0.0.1", "[::1]", "2130706433", runner.addr("_egress")} {
			runner.answers(t, 403, "bad_name", "http://"+a+"/", "--noproxy", "")
			runner.refusesTunnel(t, "bad_name", a)
		}
	})
	t.Run("metadata", func(t *testing.T) {
		runner.answers(t, 403, "not_allowed", "http://metadata.google.internal/")
		runner.refusesTunnel(t, "not_allowed", "metadata.google.internal")
	})
	t.Run("ignores-the-proxy", func(t *testing.T) {
		runner.fails(t, "Could not resolve host", "curl", "-sS", "--noproxy", "*", "https://www.example.org/")
	})
	t.Run("no-way-out", func(t *testing.T) { runner.hasNoWayOut(t) })
	t.Run("dns", func(t *testing.T) {
		// Docker's resolver, which has nobody to ask. An older engine says nothing then.
		if got := runner.probe("dns", "127.0.0.11:53", "secret.example.org"); got != "SERVFAIL" && got != probeTimeout {
			t.Errorf("a name that is no container: %s", got)
		}
		if got := d.arrived("dns secret.example.org"); len(got) > 0 {
			t.Errorf("the internet was asked: %v", got)
		}
	})
	t.Run("no-router", func(t *testing.T) {
		d.startRouter(d.project+"_egress").isNoRouter(t, "sandbox-egress-proxy", d.sandbox("sandbox-egress-proxy").addr("_egress"))
	})
	t.Run("isolate", func(t *testing.T) { isolate(t, d, runner) })
	t.Run("isolate-ipv6", func(t *testing.T) { isolateIPv6(t, d) })
	t.Run("guide", func(t *testing.T) {
		d.follow(t, g, "Close the control network")
		d.follow(t, g, "Check it")
	})
	t.Run("learn", func(t *testing.T) {
		learn := g.below(t, "From open to strict", "policy")
		d.replace("sandbox-egress-proxy/policy", learn)
		must(t, 10*time.Second, "would_deny is logged", func() bool {
			runner.gets(t, page("www.example.org"), "curl", "-sS", "https://www.example.org/")
			out, err := d.sh("docker compose logs --no-log-prefix sandbox-egress-proxy")
			return err == nil && strings.Contains(out, `"verdict":"would_deny"`)
		})
		d.follow(t, g, "From open to strict")
		d.replace("sandbox-egress-proxy/policy", strings.Replace(learn, "    mode learn\n", "", 1))
		must(t, 10*time.Second, "www.example.org is denied", func() bool {
			out, _, _ := runner.curl("http://www.example.org/")
			return strings.HasPrefix(out, "sandboxallow: not_allowed: ")
		})
		runner.refusesTunnel(t, "not_allowed", "www.example.org")
		runner.fetches(t, "api.github.com")
	})
	t.Run("go-back", func(t *testing.T) {
		d.end()
		d.follow(t, g, "Go back")
	})
	g.done(t)
}

// refusesTunnel fails the test unless the proxy refuses a CONNECT to port 443 of a host, soon and with a reason.
func (s sandbox) refusesTunnel(tb testing.TB, reason, host string) {
	tb.Helper()
	s.fails(tb, "response 403", "curl", "--silent", "--show-error", "--noproxy", "", "https://"+host+"/")
	// curl has written the head of the refusal to standard output if it was asked to.
	_, _, err := s.curl("https://"+host+"/", "--include", "--noproxy", "")
	if err == nil || !strings.Contains(strings.ToLower(err.Error()), "x-sandboxallow-reason: "+reason+"\r\n") {
		tb.Errorf("CONNECT %s: %v, want the reason %s", host, err, reason)
	}
}
