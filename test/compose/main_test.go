//go:build linux

package compose

import (
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if code, played := play(); played {
		os.Exit(code)
	}
	if err := reaper.start(); err != nil {
		fmt.Fprintln(os.Stderr, "reaper:", err)
		os.Exit(1)
	}
	code := m.Run()
	reaper.stop()
	os.Exit(code)
}
