//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a program that runs in a namespace, and what it has logged.
type process struct {
	name string
	cmd  *exec.Cmd
	log  journal

	exited chan struct{}
	err    error // of Wait, once exited is closed
}

// spawn starts a program in a namespace for the time of a test. Its log is shown if the test fails.
func spawn(tb testing.TB, n *namespace, env []string, args ...string) *process {
	tb.Helper()
	p := &process{name: args[0][strings.LastIndexByte(args[0], '/')+1:], exited: make(chan struct{})}
	// No resolver or proxy of the environment's: only what the test says.
	p.cmd = n.command(context.Background(), args...)
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	tb.Cleanup(func() {
		if !p.stop(10 * time.Second) {
			tb.Errorf("%s did not end on SIGTERM", p.name)
		}
		if tb.Failed() {
			tb.Logf("the end of the log of %s:\n%s", p.name, p.log.tail(30))
		}
	})
	return p
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) signal(tb testing.TB, s os.Signal) {
	tb.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		tb.Fatalf("%s: %v", p.name, err)
	}
}

// stop asks a process to end, and ends it after d if it has not. It reports whether it ended by itself.
func (p *process) stop(d time.Duration) bool {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		return true
	case <-time.After(d):
		_ = p.cmd.Process.Kill()
		<-p.exited
		return false
	}
}

// running reports whether a process has not ended.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// ended waits for the end of a process and returns its exit code.
func (p *process) ended(tb testing.TB, d time.Duration) int {
	tb.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(d):
		tb.Fatalf("%s still runs after %s", p.name, d)
		return 0
	}
}

// descriptors returns how many descriptors a process has open, and how many of them are sockets.
func (p *process) descriptors(tb testing.TB) (all, sockets int) {
	tb.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", p.pid())
	entries, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range entries {
		// One that has been closed meanwhile is none.
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			all++
			if strings.HasPrefix(target, "socket:") {
				sockets++
			}
		}
	}
	return all, sockets
}

// io returns how many octets a process has read and written by system calls other than splice(2).
func (p *process) io(tb testing.TB) (read, written int64) {
	tb.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", p.pid()))
	if err != nil {
		tb.Fatal(err)
	}
	values := make(map[string]int64)
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		values[key], _ = strconv.ParseInt(value, 10, 64)
	}
	if values["rchar"] == 0 || values["wchar"] == 0 {
		tb.Fatalf("/proc/PID/io has no rchar and wchar: %s", b)
	}
	return values["rchar"], values["wchar"]
}

// journal keeps the lines that are written to it.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

// mark is a place in a journal: the end of it now.
func (j *journal) mark() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Len()
}

// lines returns the complete lines behind a mark; 0 is the beginning.
func (j *journal) lines(mark int) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	text := j.text.String()[mark:]
	end := strings.LastIndexByte(text, '\n')
	if end < 0 {
		return nil
	}
	return strings.Split(text[:end], "\n")
}

// with returns the lines behind a mark that have a text.
func (j *journal) with(mark int, text string) (lines []string) {
	for _, line := range j.lines(mark) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// tail returns the last n lines.
func (j *journal) tail(n int) string {
	lines := j.lines(0)
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
