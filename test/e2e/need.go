//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// need ends a test that lacks root or one of the programs: as failed where everything is meant to be there,
// which CI says, as skipped on a developer's machine.
func need(tb testing.TB, programs ...string) {
	tb.Helper()
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	lack(tb, missing...)
}

// lack ends a test that lacks something; without anything it does nothing.
func lack(tb testing.TB, missing ...string) {
	tb.Helper()
	if len(missing) == 0 {
		return
	}
	what := "missing here: " + strings.Join(missing, ", ")
	if os.Getenv("CI") != "" {
		tb.Fatal(what)
	}
	tb.Skip(what + "; with CI set this fails")
}
