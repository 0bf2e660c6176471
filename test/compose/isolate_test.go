//go:build linux

package compose

import (
	"os/exec"
	"strings"
	"testing"
)

// isolate.sh: the runner reaches the port that it was given on the control network and nothing else there.
func isolate(t *testing.T, d *deployment, runner sandbox) {
	control := d.project + "_control"
	add := "sh isolate.sh add " + control + " runner backend:8000"
	status := "sh isolate.sh status " + control + " runner backend:8000"
	backend, worker := d.sandbox("backend"), d.sandbox("worker")
	to := func(s sandbox, port string) string { return s.addr("_control") + ":" + port }
	t.Run("the-gap", func(t *testing.T) {
		for _, a := range []string{to(backend, "8000"), to(backend, "9000"), to(worker, "9000")} {
			if got := runner.probe("tcp", a); got != probeConnected {
				t.Fatalf("without rules %s is %s: the other tests would prove nothing", a, got)
			}
		}
	})

	for _, tc := range []struct {
		name, script, says string
	}{
		{"no-network", "sh isolate.sh add no-such-network runner backend:8000", "network no-such-network cannot be looked up"},
		{"no-from", "sh isolate.sh add " + control + " nobody backend:8000", "no running container or service nobody"},
		{"no-to", "sh isolate.sh add " + control + " runner nobody:8000", "no running container or service nobody"},
		{"no-port", "sh isolate.sh add " + control + " runner backend", "accepted is TO:PORT"},
		{"bad-port", "sh isolate.sh add " + control + " runner backend:80000", "accepted are ports 1 to 65535"},
		{"no-target", "sh isolate.sh add " + control + " runner", "accepted are: add NETWORK FROM"},
		{"no-rules", status, "missing or stale"},
		{"no-docker", "mkdir -p none; for p in sh id cksum cut sed; do ln -sf \"$(command -v $p)\" none; done; PATH=$PWD/none; " + add, "docker is missing"},
		{"no-iptables", "IPTABLES=no-such-iptables " + add, "no-such-iptables is missing"},
		{"not-root", "setpriv --reuid 65534 --clear-groups " + add, "must be root"},
		{"bridge-not-filtered", `echo 0 >off; unshare --mount sh -eu -c 'mount --bind off /proc/sys/net/bridge/bridge-nf-call-iptables; ` + add + "'",
			"packets within a bridge are not filtered"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if out, err := d.sh(tc.script); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: %q, %v, want a failure that says %q", tc.script, out, err, tc.says)
			}
			if got := rules(t, control); got != "" {
				t.Errorf("it failed and has made the rules\n%s", got)
			}
		})
	}

	t.Run("add", func(t *testing.T) {
		for range 2 { // adds them once
			if _, err := d.sh(add + "; " + status); err != nil {
				t.Fatal(err)
			}
			for _, hook := range []string{"-A DOCKER-USER -i ", "-A INPUT -i "} {
				if got := rules(t, control); strings.Count(got, hook) != 1 {
					t.Errorf("want one rule that begins %q, got\n%s", hook, got)
				}
			}
		}
		if got := runner.probe("tcp", to(backend, "8000")); got != probeConnected {
			t.Errorf("the port that was given: %s", got)
		}
		for _, a := range []string{to(backend, "9000"), to(worker, "9000"), to(worker, "8000")} {
			if got := runner.probe("tcp", a); got != probeRefused {
				t.Errorf("%s: %s, want %s", a, got, probeRefused)
			}
		}
		for _, s := range []sandbox{backend, worker} {
			if got := s.probe("tcp", to(runner, "9000")); got != probeConnected {
				t.Errorf("from the others to the runner: %s", got)
			}
		}
		if got := worker.probe("tcp", to(backend, "9000")); got != probeConnected {
			t.Errorf("between the others: %s", got)
		}
		runner.fetches(t, "www.example.org")
	})
	t.Run("stranger", func(t *testing.T) {
		// Who joins later is not trusted, and the rules are stale.
		stranger := d.start("--network", control, "--cap-drop", "ALL")
		if got := stranger.probe("tcp", to(worker, "9000")); got != probeRefused {
			t.Errorf("%s, want %s", got, probeRefused)
		}
		if _, err := d.sh(status); err == nil || !strings.Contains(err.Error(), "missing or stale") {
			t.Errorf("status: %v", err)
		}
		if _, err := d.sh(add + "; " + status); err != nil {
			t.Error(err)
		}
	})
	t.Run("any", func(t *testing.T) {
		if _, err := d.sh("sh isolate.sh add " + control + " any backend:8000"); err != nil {
			t.Fatal(err)
		}
		if got := worker.probe("tcp", to(backend, "8000")); got != probeConnected {
			t.Errorf("the port that was given: %s", got)
		}
		if got := worker.probe("tcp", to(runner, "9000")); got != probeRefused {
			t.Errorf("another one: %s, want %s", got, probeRefused)
		}
	})
	t.Run("remove", func(t *testing.T) {
		for range 2 {
			if _, err := d.sh("sh isolate.sh remove " + control); err != nil {
				t.Fatal(err)
			}
			if got := rules(t, control); got != "" {
				t.Errorf("left are\n%s", got)
			}
		}
		if got := runner.probe("tcp", to(worker, "9000")); got != probeConnected {
			t.Errorf("without rules: %s", got)
		}
	})
}

// rules are the rules of the host for a network, IPv4. Others test at the same time.
func rules(tb testing.TB, network string) (ours string) {
	tb.Helper()
	chain, err := exec.Command("sh", "-c", "printf %s \"$1\" | cksum | cut -d ' ' -f 1", "sh", network).Output()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := exec.Command("iptables", "-w", "-S").Output()
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "SANDBOXALLOW-"+strings.TrimSpace(string(chain))) {
			ours += line
		}
	}
	return ours
}

// isolateIPv6 is isolate for a network with both families, which Docker filters as soon as it has the chain for it.
func isolateIPv6(t *testing.T, d *deployment) {
	network := d.project + "_six"
	if _, err := docker("network", "create", "--internal", "--ipv6", "--subnet", "fd00:5a11::/64", "--subnet", "10.89.78.0/24",
		"--label", strings.TrimPrefix(projectLabel, "label=")+d.project, network); err != nil {
		t.Fatal(err)
	}
	from, to := d.start("--network", network, "--name", d.project+"-from"), d.start("--network", network, "--name", d.project+"-to")
	var addr string
	d.inspect(to.id, "(index .NetworkSettings.Networks \""+network+"\").GlobalIPv6Address", &addr)
	to.serve("_six")
	open := "[" + addr + "]:9000"
	add := "sh isolate.sh add " + network + " " + d.project + "-from " + d.project + "-to:9000"

	ip6tables := func(args ...string) error { return exec.Command("ip6tables", append([]string{"-w"}, args...)...).Run() }
	if ip6tables("-S", "DOCKER-USER") != nil {
		if _, err := d.sh(add); err == nil || !strings.Contains(err.Error(), "ip6tables has no chain DOCKER-USER") {
			t.Errorf("without the chain: %v", err)
		}
		if got := rules(t, network); got != "" {
			t.Errorf("it failed and has made the rules\n%s", got)
		}
		// As an engine has it that filters IPv6.
		for _, args := range [][]string{{"-N", "DOCKER-USER"}, {"-I", "FORWARD", "-j", "DOCKER-USER"}} {
			if err := ip6tables(args...); err != nil {
				t.Fatal(args, err)
			}
		}
		t.Cleanup(func() {
			for _, args := range [][]string{{"-D", "FORWARD", "-j", "DOCKER-USER"}, {"-F", "DOCKER-USER"}, {"-X", "DOCKER-USER"}} {
				if err := ip6tables(args...); err != nil {
					t.Error(args, err)
				}
			}
		})
	}
	if got := from.probe("tcp", open); got != probeConnected {
		t.Fatalf("without rules: %s", got)
	}
	if _, err := d.sh(add + "; " + strings.Replace(add, " add ", " status ", 1)); err != nil {
		t.Fatal(err)
	}
	if got := from.probe("tcp", open); got != probeConnected {
		t.Errorf("the port that was given: %s", got)
	}
	if _, err := d.sh(strings.Replace(add, ":9000", ":9001", 1)); err != nil {
		t.Fatal(err)
	}
	if got := from.probe("tcp", open); got != probeRefused {
		t.Errorf("a port that was not given: %s, want %s", got, probeRefused)
	}
	if _, err := d.sh("sh isolate.sh remove " + network); err != nil {
		t.Fatal(err)
	}
	if got := from.probe("tcp", open); got != probeConnected {
		t.Errorf("after remove: %s", got)
	}
}
