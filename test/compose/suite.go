//go:build linux

package compose

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// suite is what all tests share: the images, the client with its Compose, the files of the lab.
var suite struct {
	once sync.Once
	err  error

	name    string // of all that is made on the engine begins with it
	dir     string
	machine string // the image of the sandboxes and the internet
	coredns string
	caddy   string
}

// setUp sets the suite up once, or ends the test.
func setUp(tb testing.TB) {
	tb.Helper()
	need(tb, "curl", "git", "ip", "ip6tables", "iptables", "make", "node", "nsenter", "python3", "setpriv", "unshare")
	suite.once.Do(func() { suite.err = makeSuite() })
	if suite.err != nil {
		tb.Fatal(suite.err)
	}
}

func makeSuite() (err error) {
	if suite.dir, err = os.MkdirTemp("", "sandboxallow-compose-"); err != nil {
		return err
	}
	reaper.watch(suite.dir)
	if err := os.Chmod(suite.dir, 0o755); err != nil { // the sandboxes are nobody in particular
		return err
	}
	suite.name = filepath.Base(suite.dir)
	suite.machine, suite.coredns, suite.caddy = suite.name+"/machine", suite.name+"/coredns", suite.name+"/caddy"
	reaper.watch(suite.name)
	for _, step := range []func() error{makeInternet, importMachine, buildProduct, installCompose} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// makeInternet makes the folder of the internet: the authority, and a repository of one commit with one file,
// page, which says what the page of a name says.
func makeInternet() error {
	dir := filepath.Join(suite.dir, "internet")
	repo := filepath.Join(dir, "code.git")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := makeAuthority(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")); err != nil {
		return err
	}
	// The stream of `git fast-import`: neither a work tree nor a configured author is needed.
	text := page("the repository")
	stream := fmt.Sprintf("commit refs/heads/main\ncommitter lab <lab@example.com> 0 +0000\ndata 0\nM 644 inline page\ndata %d\n%s\ndone\n",
		len(text), text)
	for _, args := range [][]string{
		{"init", "--quiet", "--bare", "--initial-branch=main", repo},
		{"--git-dir", repo, "fast-import", "--quiet", "--done"},
		{"--git-dir", repo, "update-server-info"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Stdin = strings.NewReader(stream)
		cmd.Env = append(os.Environ(), "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// clientEnv is the environment of the docker client: with the Compose of the suite, and no project but the one
// that the deployment names.
func clientEnv() []string {
	return append(os.Environ(), "DOCKER_CONFIG="+filepath.Join(suite.dir, "docker"))
}

// installCompose makes `docker compose` work: as installed on this machine, or built from the module in tool.
func installCompose() error {
	dir := filepath.Join(suite.dir, "docker", "cli-plugins")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	cmd := exec.Command("docker", "compose", "version")
	cmd.Env = clientEnv()
	if cmd.Run() == nil {
		return nil
	}
	// go tool builds it when it has to, and says where it is.
	cmd = exec.Command("go", "-C", "tool", "tool", "-n", "github.com/docker/compose/v2/cmd")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, &said)
	}
	return os.Symlink(strings.TrimSpace(string(out)), filepath.Join(dir, "docker-compose"))
}
