package images

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// internal is a network without a way out of it, on which the test reaches the containers. Docker's resolver
// has only the container itself to ask there, as --dns says. It has a subnet of its own: those that Docker picks go round,
// and come to what the Compose files have, sooner or later.
var internal = sync.OnceValues(func() (string, error) {
	_, err := command("", "docker", "network", "create", "--internal", "--subnet", "10.89.77.0/24", "--label", label, run)
	return run, err
})

// onNetwork returns the arguments that have a container reached by the test.
func onNetwork(tb testing.TB, args ...string) []string {
	tb.Helper()
	name, err := internal()
	if err != nil {
		tb.Fatal(err)
	}
	return append([]string{"--network", name, "--dns", "127.0.0.1"}, args...)
}

// volume makes an empty volume.
func volume(tb testing.TB, name string) string {
	tb.Helper()
	name = fmt.Sprintf("%s-%s", run, name)
	docker(tb, "volume", "create", "--label", label, name)
	tb.Cleanup(func() { docker(tb, "volume", "rm", name) })
	return name
}

// tryOnce runs a command in a container until it ends, with arguments as after `docker run`, and returns what it
// writes.
func tryOnce(stdin string, args ...string) (string, error) {
	return command(stdin, append([]string{"docker", "run", "-i", "--rm", "--label", label, "--network", "none"}, args...)...)
}

// runOnce is tryOnce for a command that must succeed. White space at the end is cut off.
func runOnce(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := tryOnce("", args...)
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// container is one that runs.
type container struct {
	tb testing.TB
	id string
}

// start has a container run for the time of a test, with arguments as after `docker run -d`. Its log is shown
// if the test fails.
func start(tb testing.TB, args ...string) container {
	tb.Helper()
	if !slices.Contains(args, "--network") {
		args = append([]string{"--network", "none"}, args...)
	}
	c := container{tb, docker(tb, append([]string{"run", "-d", "--label", label}, args...)...)}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the log of %v:\n%s", args, c.log())
		}
		docker(tb, "rm", "-f", c.id)
	})
	return c
}

// log returns what the container has written.
func (c container) log() string {
	c.tb.Helper()
	out, err := command("", "sh", "-c", "docker logs "+c.id+" 2>&1")
	if err != nil {
		c.tb.Fatal(err)
	}
	return out
}

// look returns what docker inspect has, by a template.
func (c container) look(template string) string {
	c.tb.Helper()
	return docker(c.tb, "inspect", "--format", template, c.id)
}

// at returns the container's address on the test's network, with a port.
func (c container) at(port int) string {
	c.tb.Helper()
	host := c.look("{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
	if host == "" {
		c.tb.Fatal("the container has no address")
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// pid returns the process of the container that is its first, as this machine numbers it.
func (c container) pid() int {
	c.tb.Helper()
	pid, err := strconv.Atoi(c.look("{{.State.Pid}}"))
	if err != nil || pid <= 1 {
		c.tb.Fatalf("got process %d, %v", pid, err)
	}
	return pid
}

// probe is a health check that was run.
type probe struct {
	ExitCode int
	Output   string
}

// health returns what Docker thinks of the container, and the last probes: it keeps five.
func (c container) health() (status string, probes []probe) {
	c.tb.Helper()
	var h struct {
		Status string
		Log    []probe
	}
	if err := json.Unmarshal([]byte(c.look("{{json .State.Health}}")), &h); err != nil {
		c.tb.Fatal(err)
	}
	return h.Status, h.Log
}

// becomes waits until the health check says so, and returns what it said last.
func (c container) becomes(status string) string {
	c.tb.Helper()
	var last probe
	eventually(c.tb, func() error {
		got, probes := c.health()
		if len(probes) > 0 {
			last = probes[len(probes)-1]
		}
		if got != status {
			return fmt.Errorf("got %s, want %s; %d %s; %s", got, status, last.ExitCode, last.Output, c.look("{{.State.Status}}"))
		}
		return nil
	})
	return strings.TrimSpace(last.Output)
}

// says waits for a text in the log.
func (c container) says(text string) {
	c.tb.Helper()
	eventually(c.tb, func() error {
		if log := c.log(); !strings.Contains(log, text) {
			return fmt.Errorf("got no %q in the log of a container that is %s:\n%s", text, c.look("{{.State.Status}}"), log)
		}
		return nil
	})
}
