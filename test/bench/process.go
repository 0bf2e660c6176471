package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a server program with all its children, which form a process group of their own.
type process struct {
	cmd  *exec.Cmd
	out  string        // file of its standard output and error
	done chan struct{} // closed when it has ended
}

// path is that of a file in the folder of the process.
func (p *process) path(name string) string { return filepath.Join(filepath.Dir(p.out), name) }

// startProcess starts a program in dir, where it finds its configuration and leaves what it writes.
func startProcess(dir, program string, args ...string) (*process, error) {
	p := &process{out: filepath.Join(dir, "output"), done: make(chan struct{})}
	out, err := os.Create(p.out)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Dir = dir
	// Caddy keeps its state below these; nothing of the user's own is touched.
	p.cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // Ctrl-C is ours to handle
		Pdeathsig: syscall.SIGTERM, // should the bench be killed
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// await returns when ready does not fail any more, or the process has ended, or a minute is over.
func (p *process) await(ctx context.Context, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("ended by itself: %s", p.lastWords())
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("not ready: %w", err)
			}
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// awaitTCP waits until connections are accepted.
func (p *process) awaitTCP(ctx context.Context, addr string) error {
	return p.await(ctx, func() error {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// lastWords are the last line that the process has printed.
func (p *process) lastWords() string {
	out, err := os.ReadFile(p.out)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// stop ends the process and its children, kindly at first, and returns when they are gone.
func (p *process) stop() {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(3 * time.Second):
	}
	p.signal(syscall.SIGKILL)
	<-p.done
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if pids, err := group(p.cmd.Process.Pid); err != nil || len(pids) == 0 {
			return // children are not ours to wait for
		}
	}
}

// signal goes to the whole group, which exists for as long as any of its processes.
func (p *process) signal(s syscall.Signal) { syscall.Kill(-p.cmd.Process.Pid, s) }
