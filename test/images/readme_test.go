package images

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestReadme runs the commands of builds/README.md that start a container, on the test's network.
func TestReadme(t *testing.T) {
	im := built(t)
	text, err := os.ReadFile("../../builds/README.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := folder(t, firewall)
	images := strings.NewReplacer("sandboxallow/coredns", im.coredns, "sandboxallow/caddy", im.caddy, "$PWD", dir)
	started := 0
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", "")) {
		rest, ok := strings.CutPrefix(line, "    docker run -d --network sandboxes ")
		if !ok {
			continue
		}
		started++
		if !strings.HasPrefix(strings.Join(strings.Fields(rest), " "), strings.Join(unprivileged, " ")) {
			t.Errorf("got %q, want it as unprivileged as TestPrivileges", rest)
		}
		args := slices.Concat(often, strings.Fields(images.Replace(rest)))
		start(t, onNetwork(t, args...)...).becomes("healthy")
	}
	if started != 2 {
		t.Errorf("got %d commands in the README, want 2", started)
	}
}
