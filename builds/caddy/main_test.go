package main

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	// version is what the tests have the Makefile stamp.
	version = "v9.8.7-6-gabcdef0"
	// xcaddy is the builder that README.md names.
	xcaddy = "github.com/caddyserver/xcaddy/cmd/xcaddy@v0.4.5"

	caddyModule  = "github.com/caddyserver/caddy/v2"
	layer4Module = "github.com/mholt/caddy-l4"
	ourModule    = "github.com/sandboxallow/sandboxallow"
)

// work holds the binaries until the last test is done.
var work string

func TestMain(m *testing.M) {
	var err error
	if work, err = os.MkdirTemp("", "caddy"); err != nil {
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

// ours is what `make caddy` builds: the test is about what users get.
var ours = sync.OnceValue(func() build {
	return run(exec.Command("make", "-C", "../..", "caddy", "BIN="+work, "VERSION="+version), filepath.Join(work, "caddy"))
})

// stock is Caddy as go.mod names it.
var stock = sync.OnceValue(func() build { return goBuild("stock", caddyModule+"/cmd/caddy") })

// withLayer4 is stock Caddy with caddy-l4, without us.
var withLayer4 = sync.OnceValue(func() build {
	source := filepath.Join(work, "layer4.go")
	if err := os.WriteFile(source, []byte(`package main

import (
	caddycmd "`+caddyModule+`/cmd"
	_ "`+caddyModule+`/modules/standard"
	_ "`+layer4Module+`"
)

func main() { caddycmd.Main() }
`), 0o600); err != nil {
		return build{err: err}
	}
	return goBuild("layer4", source)
})

func goBuild(name, pkg string) build {
	path := filepath.Join(work, name)
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", "nobadger,nomysql,nopgx",
		"-ldflags", "-s -w", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return run(cmd, path)
}

func run(cmd *exec.Cmd, path string) build {
	if out, err := cmd.CombinedOutput(); err != nil {
		return build{err: fmt.Errorf("%s: %w\n%s", cmd, err, out)}
	}
	return build{path: path}
}

// output runs the binary and returns its standard output.
func (b build) output(t *testing.T, args ...string) string {
	t.Helper()
	if b.err != nil {
		t.Fatal(b.err)
	}
	out, err := exec.Command(b.path, args...).Output()
	if err != nil {
		t.Fatalf("%s %v: %v", b.path, args, err)
	}
	return string(out)
}

// modules lists the names that `caddy list-modules` prints, sorted.
func (b build) modules(t *testing.T) []string {
	t.Helper()
	var names []string
	for line := range strings.Lines(b.output(t, "list-modules")) {
		// The indented lines are the totals of each group.
		if name := strings.TrimSuffix(line, "\n"); name != "" && !strings.HasPrefix(name, " ") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// without returns the names in a that b lacks.
func without(a, b []string) []string {
	var out []string
	for _, name := range a {
		if !slices.Contains(b, name) {
			out = append(out, name)
		}
	}
	return out
}

func TestModules(t *testing.T) {
	standard, layer4, got := stock().modules(t), withLayer4().modules(t), ours().modules(t)
	if len(standard) == 0 {
		t.Fatal("stock lists no modules")
	}
	if lost := without(standard, got); len(lost) > 0 {
		t.Errorf("got no %v, which stock has", lost)
	}
	if lost := without(layer4, got); len(lost) > 0 {
		t.Errorf("got no %v, which stock with caddy-l4 has", lost)
	}
	more := without(got, layer4)
	for _, name := range more {
		if !strings.HasPrefix(name, "sandboxallow") && !strings.Contains(name, ".sandboxallow") {
			t.Errorf("got %s, want nothing but layer4 and sandboxallow beside stock", name)
		}
	}
	for _, name := range []string{"sandboxallow", "layer4.handlers.sandboxallow"} {
		if !slices.Contains(more, name) {
			t.Errorf("got no %s among %v", name, more)
		}
	}
}

func TestVersion(t *testing.T) {
	caddyVersion := moduleVersion(t, caddyModule)
	got := ours().output(t, "version")
	// First the version that is ours and compares equal to Caddy's (semver build metadata), then what Caddy
	// prints in any build with plugins.
	want := caddyVersion + "+sandboxallow." + version + " " + caddyVersion + " h1:"
	if !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want it to begin with %q", got, want)
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

// TestXcaddy builds as README.md says and expects the modules of our own binary. It needs the module proxy.
func TestXcaddy(t *testing.T) {
	if testing.Short() && os.Getenv("CI") != "true" {
		t.Skip("-short, and not in CI")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(work, "xcaddy")
	args := strings.Fields(commandLine(t))[1:]
	args[len(args)-1] += "@v0.0.0=" + root // the checkout instead of a release
	cmd := exec.Command("go", append([]string{"run", xcaddy}, append(args, "--output", path)...)...)
	got, want := run(cmd, path).modules(t), ours().modules(t)
	if !slices.Equal(got, want) {
		t.Errorf("xcaddy lacks %v and has %v more", without(want, got), without(got, want))
	}
}

func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	line := commandLine(t)
	for _, want := range []string{
		"go install " + xcaddy,
		line,
		line + "@v0.0.0=.",
	} {
		if !strings.Contains(string(readme), "    "+want+"\n") {
			t.Errorf("README.md lacks the line %q", want)
		}
	}
}

// commandLine is the xcaddy line for the versions in go.mod.
func commandLine(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("xcaddy build %s --with %s@%s --with %s",
		moduleVersion(t, caddyModule), layer4Module, moduleVersion(t, layer4Module), ourModule)
}

func moduleVersion(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", module).Output()
	if err != nil {
		t.Fatalf("go list -m %s: %v", module, err)
	}
	return strings.TrimSpace(string(out))
}
