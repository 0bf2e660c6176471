package main

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHalves(t *testing.T) {
	var before, after unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	h, err := divide()
	if err != nil {
		t.Fatal(err)
	}
	started := func(keep func() error) string {
		if err := keep(); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("grep", "Cpus_allowed_list", "/proc/self/status").Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	if s, c := started(h.forServers), started(h.forClients); runtime.NumCPU() > 1 && s == c {
		t.Errorf("servers and clients have the same processors, %s", s)
	}
	if got := h.servers.Count() + h.clients.Count(); runtime.NumCPU() > 1 && got != h.all.Count() {
		t.Errorf("%d of %d processors are in use", got, h.all.Count())
	}
	h.join()
	if err := unix.SchedGetaffinity(0, &after); err != nil || after != before {
		t.Errorf("the processors are %v after it and were %v, %v", after, before, err)
	}
}
