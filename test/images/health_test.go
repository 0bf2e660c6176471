package images

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// startFirewall starts an image with the files of the firewall, and has its health checked often.
func startFirewall(t *testing.T, args ...string) container {
	t.Helper()
	dir := folder(t, firewall)
	mounts := []string{"-v", dir + ":/etc/sandboxallow:ro", "-v", dir + "/Caddyfile:/etc/caddy/Caddyfile:ro"}
	return start(t, onNetwork(t, slices.Concat(mounts, often, args)...)...)
}

// checked waits for a number of health checks, five at most, that all succeeded.
func (c container) checked(n int) {
	c.tb.Helper()
	eventually(c.tb, func() error {
		_, probes := c.health()
		for _, p := range probes {
			if p.ExitCode != 0 {
				return fmt.Errorf("exit code %d: %s", p.ExitCode, p.Output)
			}
		}
		if len(probes) < n {
			return fmt.Errorf("%d checks, want %d", len(probes), n)
		}
		return nil
	})
}

// TestHealthSilent has the checks leave no trace: not in the logs, and not in the metrics.
func TestHealthSilent(t *testing.T) {
	im := built(t)
	t.Run("coredns", func(t *testing.T) {
		c := startFirewall(t, im.coredns, "-conf", "/etc/sandboxallow/Corefile")
		c.checked(4)
		before := c.log()
		if strings.Contains(before, "[ERROR]") || strings.Contains(before, `"STATUS`) || strings.Contains(before, "NOTIMP") {
			t.Errorf("got a line about a check in\n%s", before)
		}
		at := c.at(9153)
		if got := metric(t, at, "coredns_dns_requests_total"); len(got) > 0 {
			t.Errorf("got %q, want no request counted", got)
		}
		// The log and the count do take what is a query.
		answers(t, c.at(53), "denied.example", "NXDOMAIN")
		c.says("denied.example.")
		if got := metric(t, at, "coredns_dns_requests_total"); len(got) == 0 {
			t.Error("got no count, want one")
		}
	})
	t.Run("caddy", func(t *testing.T) {
		c := startFirewall(t, im.caddy)
		c.checked(4)
		for line := range strings.Lines(c.log()) {
			if strings.Contains(line, `"level":"error"`) || strings.Contains(line, `"verdict"`) {
				t.Errorf("got %s", line)
			}
		}
		at := c.at(9154)
		if got := metric(t, at, "caddy_sandboxallow_decisions_total"); len(got) > 0 {
			t.Errorf("got %q, want no decision counted", got)
		}
		refused(t, c.at(443), "denied.example")
		c.says(`"verdict":"deny"`)
		if got := metric(t, at, "caddy_sandboxallow_decisions_total"); len(got) == 0 {
			t.Error("got no count, want one")
		}
	})
}

// TestHealthStopped stops the server in a container, and lets it go on. The kernel goes on taking connections.
func TestHealthStopped(t *testing.T) {
	im := built(t)
	for _, tc := range []struct {
		name string
		args []string
		want string // from the check while it is stopped
	}{
		{"coredns", []string{im.coredns, "-conf", "/etc/sandboxallow/Corefile"}, "[::]:53: did not answer a DNS query: "},
		{"caddy", []string{im.caddy}, "[::]:443: did not close a connection that had ended: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := startFirewall(t, tc.args...)
			c.becomes("healthy")
			pid := c.pid()
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			got := c.becomes("unhealthy")
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(got, tc.want) || !strings.Contains(got, "i/o timeout") {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			c.becomes("healthy")
		})
	}
}

// TestHealthNothing has a server that listens on nothing. Docker's own resolver, which does listen in the
// container, is not taken for one.
func TestHealthNothing(t *testing.T) {
	im := built(t)
	dir := folder(t, map[string]string{"Caddyfile": "{\n\tadmin off\n}\n"})
	mount := []string{"-v", dir + "/Caddyfile:/etc/caddy/Caddyfile:ro"}
	c := start(t, onNetwork(t, slices.Concat(mount, often, []string{im.caddy})...)...)
	if got := c.becomes("unhealthy"); got != "nothing listens for TCP" {
		t.Errorf("got %q, want that nothing listens", got)
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", c.pid()))
	if err != nil || !strings.Contains(string(table), " 0B00007F:") {
		t.Errorf("got no listener of Docker's on 127.0.0.11, %v, in\n%s", err, table)
	}
}

// TestHealthOwn has two containers in one network namespace. Each is checked for itself.
func TestHealthOwn(t *testing.T) {
	im := built(t)
	first := startFirewall(t, im.coredns, "-conf", "/etc/sandboxallow/Corefile")
	first.becomes("healthy")
	second := start(t, slices.Concat([]string{"--network", "container:" + first.id}, often, []string{im.caddy})...)
	second.becomes("healthy")
	pid := first.pid()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
	}()
	first.becomes("unhealthy")
	if got := second.becomes("healthy"); got != "answered: 127.0.0.1:2019 [::]:80" {
		t.Errorf("got %q, want what the second container listens on", got)
	}
}

// TestHealthCommand calls the check as a Compose file does.
func TestHealthCommand(t *testing.T) {
	im := built(t)
	c := start(t, im.coredns, "-dns.port=1053")
	c.says("CoreDNS-")
	for _, tc := range []struct {
		args []string
		code string
		want string
	}{
		{nil, "", "answered: [::]:1053"},
		{[]string{"-dns", "1053"}, "", "answered: [::]:1053"},
		{[]string{"-dns", "0"}, "", "answered: [::]:1053"},
		{[]string{"-dns", "65536"}, "exit status 2", "Usage of /healthcheck"},
		{[]string{"-dns", "x"}, "exit status 2", "invalid value"},
		{[]string{"more"}, "exit status 2", "Usage of /healthcheck"},
	} {
		out, err := command("", append([]string{"docker", "exec", c.id, "/healthcheck"}, tc.args...)...)
		if !strings.Contains(out, tc.want) || (err == nil) != (tc.code == "") ||
			err != nil && !strings.Contains(err.Error(), tc.code) {
			t.Errorf("%v: got %q, %v, want %q %s", tc.args, out, err, tc.want, tc.code)
		}
	}
}
