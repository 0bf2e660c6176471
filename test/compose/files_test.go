//go:build linux

package compose

import (
	"os"
	"os/exec"
	"testing"
)

// Every file is one that Compose takes, v2 and, where it is installed, v1.
func TestFilesParse(t *testing.T) {
	setUp(t)
	composes := [][]string{{"docker", "compose"}}
	if _, err := exec.LookPath("docker-compose"); err == nil {
		composes = append(composes, []string{"docker-compose"})
	}
	for _, files := range [][]string{
		{"-f", "strict-open.yaml"},
		{"-f", "sandbox.yaml"},
		{"-f", "example-app.yaml"},
		{"-f", "example-app.yaml", "-f", "forward-proxy.yaml"},
	} {
		for _, compose := range composes {
			args := append(append(compose[1:len(compose):len(compose)], files...), "config", "--quiet")
			cmd := exec.Command(compose[0], args...)
			cmd.Dir = folder
			cmd.Env = append(clientEnv(), "SANDBOX_IMAGE=example/agent")
			// It says what it does not like and goes on.
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%v: %v\n%s", cmd.Args, err, out)
			}
		}
	}
	cmd := exec.Command("docker", "compose", "-f", "sandbox.yaml", "config", "--quiet")
	cmd.Dir, cmd.Env = folder, clientEnv()
	if _, set := os.LookupEnv("SANDBOX_IMAGE"); !set && cmd.Run() == nil {
		t.Error("sandbox.yaml is taken without an image for the sandboxes")
	}
}

// The scripts are what shellcheck likes.
func TestShellcheck(t *testing.T) {
	need(t, "shellcheck")
	if out, err := exec.Command("shellcheck", folder+"/isolate.sh").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
