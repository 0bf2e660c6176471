package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func TestProcess(t *testing.T) {
	// A shell that keeps busy in a child, and ignores being asked to end.
	p, err := startProcess(t.TempDir(), "sh", "-c", "trap '' TERM; echo first; echo last; (while :; do :; done) & wait; wait")
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			p.stop()
		}
	}()
	err = p.await(t.Context(), func() error {
		if pids, err := group(p.cmd.Process.Pid); err != nil || len(pids) < 2 || p.lastWords() != "last" {
			return errors.New("the child has not been started")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	before, err := p.cpu()
	if err != nil {
		t.Fatal(err)
	}
	err = p.await(t.Context(), func() error {
		after, err := p.cpu()
		if err == nil && after-before < 20*time.Millisecond {
			err = errors.New("the child's CPU time is not counted")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}

	p.stop()
	stopped = true
	if pids := must(group(p.cmd.Process.Pid)); len(pids) > 0 {
		t.Errorf("processes %v still run", pids)
	}
	if _, err := p.cpu(); err == nil {
		t.Error("got the CPU time of a process that has ended, want an error")
	}
}

func TestProcessEnds(t *testing.T) {
	p, err := startProcess(t.TempDir(), "sh", "-c", "echo no such directive >&2; exit 1")
	if err != nil {
		t.Fatal(err)
	}
	err = p.awaitTCP(t.Context(), "127.0.0.1:1")
	if err == nil || !strings.Contains(err.Error(), "no such directive") {
		t.Errorf("got %v, want what the process has printed", err)
	}
}

func TestCPU(t *testing.T) {
	before := must(cpuOf(os.Getpid()))
	for end := time.Now().Add(10 * time.Second); must(cpuOf(os.Getpid()))-before < 10*time.Millisecond; {
		if time.Now().After(end) {
			t.Fatal("the CPU time of this process does not advance")
		}
	}
}

func TestGroupIn(t *testing.T) {
	for _, tc := range []struct {
		name, stat string
		want       int
		ok         bool
	}{
		{"process", "12 (nginx) S 11 10 10 0 -1", 10, true},
		{"parentheses", "12 (a) Z 1 (b) R 11 10 10 0 -1", 10, true},
		{"zombie", "12 (nginx) Z 11 10 10 0 -1", 0, false},
		{"empty", "", 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, ok := groupIn([]byte(tc.stat)); got != tc.want || ok != tc.ok {
				t.Errorf("got %d %v, want %d %v", got, ok, tc.want, tc.ok)
			}
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
