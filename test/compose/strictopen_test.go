//go:build linux

package compose

import (
	"testing"
	"time"
)

// strict-open.yaml, as docs/replace-nginx.md sets it up.
func TestStrictOpen(t *testing.T) {
	setUp(t)
	t.Parallel()
	services := []string{"dns-strict", "dns-open", "gateway-strict", "gateway-open"}
	d := deploy(t, "strict-open", lab{uplink: "uplink", nth: 0, services: []string{impatient(services...)}}, "strict-open.yaml")
	g := readGuide(t, "replace-nginx.md")
	d.follow(t, g, "Start it")
	d.leadsNowhere()
	network := d.project + "_sandboxes"
	var (
		strict = d.start("--network", network, "--dns", "172.30.0.10", "--cap-drop", "ALL")
		pinned = d.start("--network", network, "--dns", "172.30.0.10", "--cap-drop", "ALL", "--ip", "172.30.0.65")
		open   = d.start("--network", network, "--dns", "172.30.0.11", "--cap-drop", "ALL")
	)

	t.Run("containers", func(t *testing.T) {
		d.isHardened(t, services...)
	})
	t.Run("guide", func(t *testing.T) { d.follow(t, g, "Check it") })
	t.Run("strict", func(t *testing.T) { strict.fetches(t, "api.github.com") })
	t.Run("pinned", func(t *testing.T) { pinned.fetches(t, "pypi.org") })
	t.Run("open", func(t *testing.T) { open.fetches(t, "www.example.org") })

	t.Run("denied", func(t *testing.T) {
		for name, s := range map[string]sandbox{"strict": strict, "pinned": pinned} {
			t.Run(name, func(t *testing.T) {
				s.fails(t, "Could not resolve host", "curl", "-sS", "https://www.example.org/")
				s.fails(t, "unrecognized name", "curl", "-sS", "--resolve", "www.example.org:443:172.30.0.20", "https://www.example.org/")
				s.answers(t, 403, "not_allowed", "http://www.example.org/", "--resolve", "www.example.org:80:172.30.0.20")
			})
		}
	})
	t.Run("the-other-gateway", func(t *testing.T) {
		to := []string{"--resolve", "www.example.org:443:172.30.0.21", "--resolve", "www.example.org:80:172.30.0.21"}
		https := append([]string{"curl", "-sS", "https://www.example.org/"}, to...)
		pinned.fails(t, "unrecognized name", https...)
		pinned.answers(t, 403, "not_allowed", "http://www.example.org/", to...)
		if got := pinned.probe("dns", "172.30.0.11:53", "www.example.org"); got != "NXDOMAIN" {
			t.Errorf("the open name server: %s, want NXDOMAIN", got)
		}
		// The open one is held to the strict policy by the strict gateway, too.
		open.fails(t, "unrecognized name", "curl", "-sS", "--resolve", "www.example.org:443:172.30.0.20", "https://www.example.org/")
		// What the file says it does not close.
		strict.gets(t, page("www.example.org"), https...)
	})
	t.Run("private", func(t *testing.T) {
		for _, a := range []string{"10-0-0-5", "169-254-169-254", "127-0-0-1", "172-30-0-11"} {
			name := a + ".addr.example.org"
			open.fails(t, "access denied", "curl", "-sS", "https://"+name+"/")
			open.answers(t, 403, "private_address", "http://"+name+"/")
		}
	})
	t.Run("metadata", func(t *testing.T) {
		open.fails(t, "Could not resolve host", "curl", "-sS", "http://metadata.google.internal/")
		open.answers(t, 403, "not_allowed", "http://metadata.google.internal/", "--resolve", "metadata.google.internal:80:172.30.0.21")
	})
	t.Run("no-way-out", func(t *testing.T) { open.hasNoWayOut(t) })
	t.Run("dns", func(t *testing.T) {
		strict.dnsIsTight(t, "172.30.0.10")
		pinned.dnsIsTight(t, "172.30.0.10", "172.30.0.11")
	})
	t.Run("no-router", func(t *testing.T) {
		r := d.startRouter(network)
		r.isNoRouter(t, "gateway-strict", "172.30.0.20")
		r.isNoRouter(t, "gateway-open", "172.30.0.21")
	})

	t.Run("reload", func(t *testing.T) {
		const name = "internal-docs.example.net"
		strict.fails(t, "Could not resolve host", "curl", "-sS", "https://"+name+"/")
		d.follow(t, g, "Change the policy")
		must(t, 10*time.Second, name+" is allowed", func() bool {
			_, _, err := strict.curl("https://" + name + "/")
			return err == nil
		})
		strict.fetches(t, name)
	})
	t.Run("strict-unless-open", func(t *testing.T) {
		d.replace("strict-open/policy", g.below(t, "Check it", "policy"))
		https := []string{"curl", "-sS", "--resolve", "www.example.org:443:172.30.0.21", "https://www.example.org/"}
		must(t, 10*time.Second, "the gateway has the new policy", func() bool {
			_, _, err := open.run(https...)
			return err != nil
		})
		open.fails(t, "unrecognized name", https...)
		must(t, 10*time.Second, "the name server has the new policy", func() bool {
			return open.probe("dns", "172.30.0.11:53", "www.example.org") == "NXDOMAIN"
		})
		d.start("--network", network, "--dns", "172.30.0.11", "--cap-drop", "ALL", "--ip", "172.30.0.32").fetches(t, "www.example.org")
	})
	t.Run("sandbox-to-sandbox", func(t *testing.T) {
		server := open.serve("_sandboxes")
		if got := strict.probe("tcp", server); got != probeConnected {
			t.Fatalf("without rules another sandbox is %s: the rest would prove nothing", got)
		}
		d.follow(t, g, "What stays open")
		if got := strict.probe("tcp", server); got != probeRefused {
			t.Errorf("with rules another sandbox is %s, want %s", got, probeRefused)
		}
		strict.fetches(t, "api.github.com")
		strict.dnsIsTight(t, "172.30.0.10")
	})
	t.Run("go-back", func(t *testing.T) {
		d.end()
		d.follow(t, g, "Go back")
	})
	g.done(t)
}
