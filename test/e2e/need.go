//go:build linux

package e2e

import (
	"testing"

	machine "github.com/sandboxallow/sandboxallow/test/need"
)

// need ends a test that lacks root or one of the programs.
func need(tb testing.TB, programs ...string) {
	tb.Helper()
	things := []machine.Thing{machine.Root}
	for _, p := range programs {
		things = append(things, machine.Program(p))
	}
	machine.All(tb, things...)
}
