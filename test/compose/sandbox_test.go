//go:build linux

package compose

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// sandbox.yaml: a network and a policy for each sandbox.
func TestSandbox(t *testing.T) {
	setUp(t)
	t.Parallel()
	d := deploy(t, "sandbox", lab{uplink: "uplink", nth: 2, services: []string{
		machineService("sandbox-a"), machineService("sandbox-b"), machineService("sandbox-c"), impatient("dns", "gateway"),
	}}, "sandbox.yaml")
	d.addThird()
	d.up()
	d.leadsNowhere()
	a, b, c := d.sandbox("sandbox-a"), d.sandbox("sandbox-b"), d.sandbox("sandbox-c")
	const (
		dnsA, gatewayA = "172.31.1.2", "172.31.1.3"
		dnsB, gatewayB = "172.31.2.2", "172.31.2.3"
	)

	t.Run("containers", func(t *testing.T) { d.isHardened(t, "dns", "gateway") })
	t.Run("a", func(t *testing.T) { a.fetches(t, "api.github.com") })
	t.Run("b", func(t *testing.T) { b.fetches(t, "www.example.org") }) // mode learn
	t.Run("c", func(t *testing.T) { c.fetches(t, "pypi.org") })
	t.Run("doctor", func(t *testing.T) {
		out, err := d.sh("docker compose exec -T gateway caddy sandboxallow doctor --config /etc/sandboxallow/Caddyfile " +
			"--coredns-metrics http://172.31.0.2:9153/metrics || [ $? -eq 1 ]")
		if err != nil || !strings.Contains(out, "both binaries hold policy ") {
			t.Errorf("%v\n%s", err, out)
		}
	})

	t.Run("denied", func(t *testing.T) {
		a.fails(t, "Could not resolve host", "curl", "-sS", "https://www.example.org/")
		a.fails(t, "unrecognized name", "curl", "-sS", "--resolve", "www.example.org:443:"+gatewayA, "https://www.example.org/")
		a.answers(t, 403, "not_allowed", "http://www.example.org/", "--resolve", "www.example.org:80:"+gatewayA)
	})
	t.Run("private", func(t *testing.T) {
		// The last one is the sandbox's own: the gateway would reach it.
		for _, addr := range []string{"10-0-0-5", "169-254-169-254", strings.ReplaceAll(b.addr("_sandbox-b"), ".", "-")} {
			name := addr + ".addr.example.org"
			b.fails(t, "access denied", "curl", "-sS", "https://"+name+"/")
			b.answers(t, 403, "private_address", "http://"+name+"/")
		}
	})
	t.Run("no-way-out", func(t *testing.T) { a.hasNoWayOut(t) })
	t.Run("dns", func(t *testing.T) { a.dnsIsTight(t, dnsA) })

	t.Run("a-and-b", func(t *testing.T) {
		// The last one are the metrics of dns.
		a.unreachable(t, b.addr("_sandbox-b")+":443", gatewayB+":443", gatewayB+":80", dnsB+":53", "172.31.0.2:9153")
	})
	t.Run("routed", func(t *testing.T) {
		// With a route to the network of b the addresses of gateway and name server there may be reached by way of
		// those here, where the host's rules do not drop the packets before. Who asks is still who it is.
		r := d.startRouter(d.project + "_sandbox-a")
		r.route(t, "172.31.2.0/24", gatewayA)
		r.fails(t, "curl: ", "curl", "-sS", "--max-time", "2", "--resolve", "www.example.org:443:"+gatewayB, "https://www.example.org/")
		if got := r.probe("tcp", b.addr("_sandbox-b")+":443"); got == probeConnected || got == probeRefused {
			t.Errorf("the gateway routes to b: %s", got)
		}
		r.isNoRouter(t, "gateway", gatewayA)
		r.route(t, "172.31.2.0/24", dnsA)
		if got := r.probe("dns", dnsB+":53", "www.example.org"); got == "NOERROR" {
			t.Errorf("the name server of b answers a by the policy of b")
		}
		r.isNoRouter(t, "dns", dnsA)
	})
	t.Run("reload", func(t *testing.T) {
		file := filepath.Join(d.dir, "sandbox", "policy")
		doc, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		d.replace("sandbox/policy", strings.Replace(string(doc), "preset agents-wide", "allow www.example.org", 1))
		must(t, 10*time.Second, "both know the new policy", func() bool {
			_, _, err := a.curl("https://www.example.org/")
			return err == nil
		})
		a.fails(t, "Could not resolve host", "curl", "-sS", "https://api.github.com/")
		a.fails(t, "unrecognized name", "curl", "-sS", "--resolve", "api.github.com:443:"+gatewayA, "https://api.github.com/")
	})
}

// addThird adds a third sandbox to the files, as sandbox.yaml says: what is there for sandbox-b, once more.
func (d *deployment) addThird() {
	d.tb.Helper()
	third := strings.NewReplacer("sandbox-b", "sandbox-c", "172.31.2.", "172.31.3.")
	for name, hunks := range map[string][]string{
		"sandbox.yaml": {
			"      sandbox-b: {ipv4_address: 172.31.2.2}\n",
			"      sandbox-b: {ipv4_address: 172.31.2.3}\n",
			"  sandbox-b:\n    <<: *sandbox\n    dns: 172.31.2.2\n    networks: [sandbox-b]\n",
			"  sandbox-b:\n    <<: *closed\n    ipam: {config: [{subnet: 172.31.2.0/24}]}\n",
		},
		"sandbox/Corefile": {
			".:53 {\n    bind 172.31.2.2 # sandbox-b\n    sandboxallow {\n        answer      172.31.2.3\n" +
				"        policy_file /etc/sandboxallow/policy\n    }\n    import service\n}\n",
		},
		"sandbox/policy": {
			"policy sandbox-b {\n    client 172.31.2.0/24\n    mode learn\n}\n",
		},
	} {
		text, err := os.ReadFile(filepath.Join(d.dir, name))
		if err != nil {
			d.tb.Fatal(err)
		}
		for _, hunk := range hunks {
			if strings.Count(string(text), hunk) != 1 {
				d.tb.Fatalf("%s has not what is to be copied for a third sandbox:\n%s", name, hunk)
			}
			text = []byte(strings.Replace(string(text), hunk, hunk+third.Replace(hunk), 1))
		}
		d.replace(name, string(text))
	}
}
