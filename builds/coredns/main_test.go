package main

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
)

// version is what the tests have the Makefile stamp.
const version = "v9.8.7-6-gabcdef0"

// work holds the binaries until the last test is done.
var work string

func TestMain(m *testing.M) {
	var err error
	if work, err = os.MkdirTemp("", "coredns"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(work)
	os.Exit(code)
}

// build is a binary under test, or the reason why there is none.
type build struct {
	path string
	err  error
}

// ours is what `make coredns` builds: the test is about what users get.
var ours = sync.OnceValue(func() build {
	return run(exec.Command("make", "-C", "../..", "coredns", "BIN="+work, "VERSION="+version), filepath.Join(work, "coredns"))
})

// stock is CoreDNS as go.mod names it, without us.
var stock = sync.OnceValue(func() build {
	path := filepath.Join(work, "stock")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace",
		"-ldflags", "-s -w", "-o", path, "github.com/coredns/coredns")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return run(cmd, path)
})

func run(cmd *exec.Cmd, path string) build {
	if out, err := cmd.CombinedOutput(); err != nil {
		return build{err: fmt.Errorf("%s: %w\n%s", cmd, err, out)}
	}
	return build{path: path}
}

// lines runs the binary and returns the lines of its standard output.
func (b build) lines(t *testing.T, args ...string) []string {
	t.Helper()
	if b.err != nil {
		t.Fatal(b.err)
	}
	out, err := exec.Command(b.path, args...).Output()
	if err != nil {
		t.Fatalf("%s %v: %v", b.path, args, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func TestDirectives(t *testing.T) {
	got := slices.DeleteFunc(slices.Clone(directives), func(name string) bool { return name == "sandboxallow" })
	if !slices.Equal(got, dnsserver.Directives) {
		t.Errorf("without ours: got %v, want the order of stock %v", got, dnsserver.Directives)
	}
	if i := slices.Index(directives, "sandboxallow"); i < 1 || directives[i-1] != "acl" {
		t.Errorf("got sandboxallow at %d of %v, want it directly after acl", i, directives)
	}
}

func TestPlugins(t *testing.T) {
	want := append(stock().lines(t, "-plugins"), "sandboxallow")
	got := ours().lines(t, "-plugins")
	slices.Sort(want) // printed in the order of "dns.acl", which is not that of "acl"
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestVersion(t *testing.T) {
	want := []string{
		"CoreDNS-" + coremain.CoreVersion,
		fmt.Sprintf("%s/%s, %s, sandboxallow-%s", runtime.GOOS, runtime.GOARCH, runtime.Version(), version),
	}
	got := ours().lines(t, "-version")
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if theirs := stock().lines(t, "-version"); theirs[0] != got[0] {
		t.Errorf("got first line %q, want that of stock %q", got[0], theirs[0])
	}
}

func TestStatic(t *testing.T) {
	b := ours()
	if b.err != nil {
		t.Fatal(b.err)
	}
	f, err := elf.Open(b.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("got a segment %v, want a static binary", p.Type)
		}
	}
}
