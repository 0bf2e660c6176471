package images

import (
	"slices"
	"strings"
	"testing"
)

// The firewall, in the paths that builds/README.md has.
var firewall = map[string]string{
	"policy": "policy default {\n\tallow allowed.example\n}\n",
	"Corefile": `.:53 {
	sandboxallow {
		answer 192.0.2.10
		policy_file /etc/sandboxallow/policy
	}
	log
	errors
	prometheus :9153
}
`,
	"Caddyfile": `{
	admin unix//tmp/admin.sock
	sandboxallow {
		policy_file /etc/sandboxallow/policy
		listen :443
	}
}
http://:9154 {
	metrics
}
`,
}

// often has Docker check every second, from the start, and believe the first check.
var often = []string{"--health-interval", "1s", "--health-start-period", "1ms", "--health-retries", "1"}

// unprivileged are the arguments of docker run that builds/README.md has.
var unprivileged = strings.Fields("--read-only --cap-drop ALL --cap-add NET_BIND_SERVICE " +
	"--user 65532:65532 --security-opt no-new-privileges")

// portsFromHost is how a container finds the low ports where Docker does not free them: in older engines, in
// most Kubernetes clusters, and on the host's network.
var portsFromHost = []string{"--sysctl", "net.ipv4.ip_unprivileged_port_start=1024"}

// TestPrivileges runs the firewall with as little as it needs.
func TestPrivileges(t *testing.T) {
	im := built(t)
	dir := folder(t, firewall)
	for _, tc := range []struct {
		name string
		args []string
	}{
		{"as the stock images", nil},
		{"read-only and unprivileged", unprivileged},
		{"with temporary folders", slices.Concat(unprivileged, []string{"--tmpfs", "/data", "--tmpfs", "/config"})},
		{"an ordinary user, low ports by the file's capability", slices.Concat(portsFromHost, []string{"--user", "1000:1000",
			"--cap-drop", "ALL", "--cap-add", "NET_BIND_SERVICE"})},
		{"root without capabilities but one", slices.Concat(portsFromHost, []string{"--user", "0:0",
			"--cap-drop", "ALL", "--cap-add", "NET_BIND_SERVICE", "--security-opt", "no-new-privileges"})},
	} {
		args := slices.Concat([]string{"-v", dir + ":/etc/sandboxallow:ro"}, often, tc.args)
		t.Run("coredns, "+tc.name, func(t *testing.T) {
			c := start(t, onNetwork(t, slices.Concat(args, []string{im.coredns, "-conf", "/etc/sandboxallow/Corefile"})...)...)
			answers(t, c.at(53), "allowed.example", "NOERROR", "192.0.2.10")
			answers(t, c.at(53), "denied.example", "NXDOMAIN")
			if got := c.becomes("healthy"); got != "answered: [::]:53 [::]:9153" {
				t.Errorf("got %q from the health check", got)
			}
		})
		t.Run("caddy, "+tc.name, func(t *testing.T) {
			// The admin socket goes where every user may write.
			c := start(t, onNetwork(t, slices.Concat(args, []string{"-v", dir + "/Caddyfile:/etc/caddy/Caddyfile:ro",
				"--tmpfs", "/tmp", im.caddy})...)...)
			if got := refused(t, c.at(443), "denied.example"); got != "unrecognized name" {
				t.Errorf("got the alert %q, want unrecognized name", got)
			}
			c.says(`"reason":"not_allowed"`)
			if got := c.becomes("healthy"); got != "answered: [::]:443 [::]:9154" {
				t.Errorf("got %q from the health check", got)
			}
		})
	}
}

// TestPrivilegesLack has what builds/README.md says does not start, and why.
func TestPrivilegesLack(t *testing.T) {
	im := built(t)
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"low ports, but not the capability of the file", slices.Concat(unprivileged, portsFromHost),
			"listen tcp :53: bind: permission denied"},
		{"not the capability", []string{"--cap-drop", "ALL"}, "operation not permitted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if out, err := tryOnce("", append(slices.Clone(tc.args), im.coredns)...); err == nil || !strings.Contains(out, tc.want) {
				t.Errorf("got %q, %v, want %q", out, err, tc.want)
			}
		})
	}
}
