//go:build linux

package e2e

import (
	"crypto/tls"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tunnelCalls are the system calls that a tunnel is made of. The others are the runtime's, whose number depends on
// what else the machine does, and those of the watch over files and listeners, of which there are some a second.
var tunnelCalls = []string{
	"accept4", "getsockname", "getpeername", "setsockopt", "getsockopt", "fcntl", "socket", "connect", "epoll_ctl",
	"read", "write", "splice", "shutdown", "close",
}

// What test/bench/SYSCALLS.md explains, and two more.
func TestSyscalls(t *testing.T) {
	need(t, "strace")
	t.Run("listen", func(t *testing.T) { takesCalls(t, config{}, 22) })
	t.Run("layer4", func(t *testing.T) { takesCalls(t, config{layer4: true}, 32) })
}

// takesCalls fails the test if a tunnel that carries a hello there and back takes more than most system calls.
func takesCalls(t *testing.T, c config, most float64) {
	t.Helper()
	const tunnels = 200
	const name = "echo.example.com"
	c.options = "poll 1h"
	l, g := limitLab(t, c)
	hello := realHello(&tls.Config{ServerName: name})
	run := func(n int) {
		t.Helper()
		for range n {
			c, err := l.sandbox.dial("tcp", gatewayTLS)
			if err != nil {
				t.Fatal(err)
			}
			if err := exchangeBytes(c, hello); err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
		}
		must(t, 10*time.Second, "no tunnel is left", func() bool { return g.metric(t, "caddy_sandboxallow_open_tunnels") == 0 })
	}
	run(20) // what is made once
	table := g.caddy.trace(t, func() { run(tunnels) })
	t.Logf("%d tunnels:\n%s", tunnels, table)
	calls := countCalls(table)
	if calls["accept4"] < tunnels {
		t.Fatalf("%d calls of accept4 were seen for %d tunnels", calls["accept4"], tunnels)
	}
	sum := 0
	for _, call := range tunnelCalls {
		sum += calls[call]
		t.Logf("%-12s %5.2f", call, float64(calls[call])/tunnels)
	}
	got := float64(sum) / tunnels
	t.Logf("%-12s %5.2f", "sum", got)
	if got > most {
		t.Errorf("%.1f system calls a tunnel, want %v at most", got, most)
	}
}

// trace counts the system calls of a process while do runs, and returns strace's table of them.
func (p *process) trace(t *testing.T, do func()) string {
	t.Helper()
	out, said := filepath.Join(t.TempDir(), "table"), filepath.Join(t.TempDir(), "said")
	stderr, err := os.Create(said)
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd := exec.Command("strace", "-f", "-c", "-U", "calls,name", "-o", out, "-p", strconv.Itoa(p.pid()))
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // an error, as it is interrupted
	}()
	read := func(path string) string {
		b, _ := os.ReadFile(path)
		return string(b)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	must(t, 10*time.Second, "strace is attached: "+read(said), func() bool { return strings.Contains(read(said), "attached") })
	do()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("strace does not end")
	}
	return read(out)
}

var callLine = regexp.MustCompile(`(?m)^\s*(\d+)\s+(\w+)$`)

// countCalls reads a table of strace.
func countCalls(table string) map[string]int {
	calls := make(map[string]int)
	for _, m := range callLine.FindAllStringSubmatch(table, -1) {
		calls[m[2]], _ = strconv.Atoi(m[1])
	}
	return calls
}
