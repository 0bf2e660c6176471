// Package need ends tests on machines that lack something they need: as failed where everything is meant to be
// there, which CI says, as skipped on a developer's machine.
package need

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A Thing returns what the machine lacks, and "" if it is there.
type Thing func() string

// All ends a test if a thing is missing, and says which are.
func All(tb testing.TB, things ...Thing) {
	tb.Helper()
	var missing []string
	for _, thing := range things {
		if what := thing(); what != "" {
			missing = append(missing, what)
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

// Root is a Thing.
func Root() string {
	if os.Geteuid() != 0 {
		return "root"
	}
	return ""
}

// Program is a Thing: a program in the PATH.
func Program(name string) Thing {
	return func() string {
		if _, err := exec.LookPath(name); err != nil {
			return name
		}
		return ""
	}
}

// File is a Thing.
func File(path string) Thing {
	return func() string {
		if _, err := os.Stat(path); err != nil {
			return path
		}
		return ""
	}
}

// Docker is a Thing: the client and an engine that answers it.
func Docker() string {
	if out, err := exec.Command("docker", "version", "--format", "{{.Server.Version}}").CombinedOutput(); err != nil {
		return strings.TrimSpace("a Docker engine (" + err.Error() + ") " + string(out))
	}
	return ""
}
