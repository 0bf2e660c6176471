//go:build linux

package compose

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
)

// projectLabel and a project's name are the filter for what belongs to it. Compose sets the label on what it
// makes; the tests do so on what they make beside it.
const projectLabel = "label=com.docker.compose.project="

// docker runs the client and returns what it wrote to standard output, without white space at its ends.
func docker(args ...string) (string, error) {
	cmd := exec.Command("docker", args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, &said)
	}
	return strings.TrimSpace(out.String()), nil
}
