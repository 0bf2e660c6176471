package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// once runs a build only the first time that it is asked for: make and go take a second to find that all is up to date.
func (l *lab) once(path string, build func() error) (string, error) {
	if l.built[path] {
		return path, nil
	}
	if err := build(); err != nil {
		return "", err
	}
	if l.built == nil {
		l.built = make(map[string]bool)
	}
	l.built[path] = true
	return path, nil
}

// makeOurs makes one of our binaries as users get it, in bin.
func (l *lab) makeOurs(ctx context.Context, target string) (string, error) {
	return l.once(filepath.Join(l.root, "bin", target), func() error {
		cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "-C", l.root, target)
		cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
			return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") // of the `make bench` around us
		})
		return quietly(cmd)
	})
}

// buildStock builds a program of somebody else, in the versions of our go.mod and with the flags that our
// Makefile has for our own. It is kept beside ours, so that the next run finds it up to date.
func (l *lab) buildStock(ctx context.Context, name, tags, pkg string) (string, error) {
	path := filepath.Join(l.root, "bin", "bench", name)
	return l.once(path, func() error {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", tags,
			"-ldflags", "-s -w", "-o", path, pkg)
		cmd.Dir = l.root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		return quietly(cmd)
	})
}

// quietly runs a command whose output is of interest only if it fails, and then only the end of it.
func quietly(cmd *exec.Cmd) error {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // which make and go pass on
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.Join(lines[max(0, len(lines)-3):], "; "))
	}
	return nil
}

// version asks a program for its version and returns what it prints as one line.
func version(program string, args ...string) (string, error) {
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return strings.TrimSuffix(strings.Join(strings.Fields(string(out)), " "), ","), nil
}
