//go:build linux

package compose

import (
	"fmt"
	"os/exec"
	"path/filepath"
)

// buildProduct makes the images of both binaries as users do, under names of their own.
func buildProduct() error {
	cmd := exec.Command("make", "-C", "../..", "images", "BIN="+filepath.Join(suite.dir, "bin"), "IMAGES="+suite.name)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make images: %w: %s", err, out)
	}
	return nil
}
