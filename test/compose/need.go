//go:build linux

package compose

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// need ends a test that lacks root, the engine or one of the programs: as failed where everything is meant to be
// there, which CI says, as skipped on a developer's machine.
func need(tb testing.TB, programs ...string) {
	tb.Helper()
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	for _, p := range append([]string{"docker"}, programs...) {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		if out, err := exec.Command("docker", "version", "--format", "{{.Server.Os}}").CombinedOutput(); err != nil {
			missing = append(missing, "a Docker Engine ("+strings.TrimSpace(string(out))+")")
		}
	}
	if len(missing) == 0 {
		return
	}
	what := "missing here: " + strings.Join(missing, ", ")
	if os.Getenv("CI") != "" {
		tb.Fatal(what)
	}
	tb.Skip(what + "; with CI set this fails")
}
