// Package builds tests what starts the two binaries together.
package builds

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// started is a run.sh that says that both binaries answer.
type started struct {
	cmd *exec.Cmd
	out *output
	tmp string

	dns, gateway, http, proxy string // host:port
}

// output collects what a process writes, while others look at it.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// install lays out a tree in which an ordinary user can run run.sh, with both binaries.
func install(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "run") // and not t.TempDir, whose parent only we may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cmd := exec.Command("make", "-C", "..", "build", "BIN="+filepath.Join(dir, "bin"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	if err := os.Mkdir(filepath.Join(dir, "builds"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"builds/run.sh", "Corefile.example", "Caddyfile.example", "policy.example"} {
		text, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tmp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(tmp, 0o777)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// start runs run.sh on free ports, as nobody if we are root, and waits until it says what to try.
func start(t *testing.T, dir string) *started {
	t.Helper()
	s := &started{out: &output{}, tmp: filepath.Join(dir, "tmp")}
	s.dns, s.gateway, s.http, s.proxy = freePort(t), freePort(t), freePort(t), freePort(t)
	port := func(addr string) string {
		_, port, _ := net.SplitHostPort(addr)
		return port
	}
	s.cmd = exec.Command("sh", filepath.Join(dir, "builds/run.sh"))
	s.cmd.Env = append(os.Environ(), "TMPDIR="+s.tmp, "SANDBOXALLOW_DNS_PORT="+port(s.dns), "SANDBOXALLOW_TLS_LISTEN="+s.gateway,
		"SANDBOXALLOW_HTTP_PORT="+port(s.http), "SANDBOXALLOW_PROXY_PORT="+port(s.proxy))
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		s.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(s.out.String(), "Ctrl-C stops both"); {
		if time.Now().After(deadline) {
			t.Fatalf("got no word that both answer:\n%s", s.out)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return s
}

// freePort returns a loopback address whose port is free for TCP and UDP.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		u, err := net.ListenPacket("udp", addr)
		l.Close()
		if err == nil {
			u.Close()
			return addr
		}
	}
	t.Fatal("got no free port")
	return ""
}

// wait returns the exit code of run.sh, which has 20 s to end.
func (s *started) wait(t *testing.T) int {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.cmd.Wait() }()
	select {
	case <-done:
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(20 * time.Second):
		t.Fatalf("run.sh has not ended:\n%s", s.out)
		return -1
	}
}

// nothingLeft fails if a process of run.sh's group is alive, or a file of it is there.
func (s *started) nothingLeft(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(-s.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("got a process that is left of run.sh (%v):\n%s", err, s.out)
	}
	if files, err := os.ReadDir(s.tmp); err != nil || len(files) > 0 {
		t.Errorf("got %v, %v in the temporary folder, want nothing", files, err)
	}
}

// child returns the id of the process of run.sh that runs the binary.
func (s *started) child(t *testing.T, name string) int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended since
		}
		var pid, parent, group int
		var comm, state string
		if _, err := fmt.Sscan(string(stat), &pid, &comm, &state, &parent, &group); err == nil &&
			comm == "("+name+")" && group == s.cmd.Process.Pid {
			return pid
		}
	}
	t.Fatalf("got no process %s of run.sh:\n%s", name, s.out)
	return 0
}

// ask sends a request to a listener of HTTP and returns the head of the answer.
func ask(t *testing.T, addr, request string) *http.Response {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte(request)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp
}

func TestRun(t *testing.T) {
	dir := install(t)

	t.Run("answers", func(t *testing.T) {
		s := start(t, dir)
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, s.dns)
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if got, err := r.LookupHost(ctx, "api.github.com."); err != nil || !slices.Equal(got, []string{"127.0.0.1"}) {
			t.Errorf("allowed name: got %v, %v, want the gateway 127.0.0.1", got, err)
		}
		var notFound *net.DNSError
		if got, err := r.LookupHost(ctx, "example.org."); !errors.As(err, &notFound) || !notFound.IsNotFound {
			t.Errorf("other name: got %v, %v, want no such host", got, err)
		}
		d := tls.Dialer{Config: &tls.Config{ServerName: "example.org"}}
		if _, err := d.DialContext(ctx, "tcp", s.gateway); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("other name: got error %v, want the alert unrecognized_name", err)
		}
		for addr, request := range map[string]string{
			s.http:  "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
			s.proxy: "CONNECT example.org:443 HTTP/1.1\r\n\r\n",
		} {
			if got := ask(t, addr, request); got.StatusCode != 403 || got.Header.Get("X-Sandboxallow-Reason") != "not_allowed" {
				t.Errorf("other name: got %s, %v to %q, want 403 and why", got.Status, got.Header, request)
			}
		}
		syscall.Kill(s.cmd.Process.Pid, syscall.SIGTERM)
		if got := s.wait(t); got != 0 {
			t.Errorf("got exit code %d, want 0:\n%s", got, s.out)
		}
		s.nothingLeft(t)
		for _, want := range []string{
			"dig @127.0.0.1 -p ", "curl --connect-to ::" + s.gateway + " https://api.github.com/",
			"curl --connect-to ::" + s.http + " http://api.github.com/", "curl --proxy http://" + s.proxy + " https://api.github.com/",
			"coredns | ", "caddy   | ", "example.org", "not_allowed",
		} {
			if !strings.Contains(s.out.String(), want) {
				t.Errorf("got no %q in\n%s", want, s.out)
			}
		}
	})

	t.Run("Ctrl-C", func(t *testing.T) {
		s := start(t, dir)
		syscall.Kill(-s.cmd.Process.Pid, syscall.SIGINT) // a terminal signals the whole group
		if got := s.wait(t); got != 0 {
			t.Errorf("got exit code %d, want 0:\n%s", got, s.out)
		}
		s.nothingLeft(t)
	})

	for _, name := range []string{"coredns", "caddy"} {
		t.Run(name+" dies", func(t *testing.T) {
			s := start(t, dir)
			syscall.Kill(s.child(t, name), syscall.SIGKILL)
			if got := s.wait(t); got != 1 {
				t.Errorf("got exit code %d, want 1:\n%s", got, s.out)
			}
			s.nothingLeft(t)
			if want := name + " ended by itself"; !strings.Contains(s.out.String(), want) {
				t.Errorf("got no %q in\n%s", want, s.out)
			}
		})
	}
}
