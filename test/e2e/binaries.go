//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// built is the folder of the two binaries.
var built binaries

type binaries struct {
	once sync.Once
	path string
	made bool // and so to be removed
	err  error
}

// dir returns the folder, with the binaries in it.
func (b *binaries) dir(tb testing.TB) string {
	tb.Helper()
	b.once.Do(func() {
		if b.path = os.Getenv("E2E_BIN"); b.path != "" {
			b.path, b.err = filepath.Abs(b.path)
			return
		}
		if b.path, b.err = os.MkdirTemp("", "sandboxallow-e2e-bin-"); b.err != nil {
			return
		}
		b.made = true
		reaper.watch(b.path)
		if out, err := exec.Command("make", "-C", "../..", "build", "BIN="+b.path).CombinedOutput(); err != nil {
			b.err = fmt.Errorf("make build: %w\n%s", err, out)
		}
	})
	if b.err != nil {
		tb.Fatal(b.err)
	}
	return b.path
}

func (b *binaries) remove() {
	if b.made {
		_ = os.RemoveAll(b.path)
	}
}
