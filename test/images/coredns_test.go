package images

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// hosts is a Corefile that answers for one name.
const hosts = `.:53 {
	hosts {
		192.0.2.7 one.example
	}
}
`

// output is what one of the binaries in the images prints on this machine.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := command("", append([]string{filepath.Join(built(t).bin, name)}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

func TestCoreDNSCommands(t *testing.T) {
	im := built(t)
	for _, flag := range []string{"-version", "-plugins"} {
		if got, want := runOnce(t, im.coredns, flag), output(t, "coredns", flag); got != want {
			t.Errorf("%s: got %q, want %q", flag, got, want)
		}
	}
	if got := runOnce(t, im.coredns, "-plugins"); !slices.Contains(strings.Fields(got), "sandboxallow") {
		t.Errorf("got no sandboxallow among %q", got)
	}
	bad := folder(t, map[string]string{"Corefile": ".:53 {\n\tno-such-plugin\n}\n"})
	out, err := tryOnce("", "-v", bad+":/etc/coredns", im.coredns, "-conf", "/etc/coredns/Corefile")
	want := "/etc/coredns/Corefile:2 - Error during parsing: Unknown directive 'no-such-plugin'"
	if err == nil || !strings.Contains(out, want) {
		t.Errorf("bad Corefile: got %q, %v, want %q", out, err, want)
	}
}

func TestCoreDNSServes(t *testing.T) {
	im := built(t)
	dir := folder(t, map[string]string{"Corefile": hosts})
	for _, tc := range []struct {
		name string
		args []string // of docker run
		port int
	}{
		{"-conf", []string{"-v", dir + "/Corefile:/Corefile", im.coredns, "-conf", "/Corefile"}, 53},
		{"Corefile in the working directory", []string{"-v", dir + "/Corefile:/Corefile", im.coredns}, 53},
		{"as in Kubernetes", []string{"--read-only", "--cap-drop", "ALL", "--cap-add", "NET_BIND_SERVICE",
			"-v", dir + ":/etc/coredns:ro", im.coredns, "-conf", "/etc/coredns/Corefile"}, 53},
		{"as root", []string{"--user", "0", "-v", dir + ":/etc/coredns:ro", im.coredns, "-conf", "/etc/coredns/Corefile"}, 53},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, onNetwork(t, tc.args...)...)
			answers(t, c.at(tc.port), "one.example", "NOERROR", "192.0.2.7")
		})
	}

	t.Run("no Corefile", func(t *testing.T) { // whoami, on the default port and on another
		for _, tc := range []struct {
			port int
			args []string
		}{{53, nil}, {1053, []string{"-dns.port=1053"}}} {
			c := start(t, onNetwork(t, append([]string{im.coredns}, tc.args...)...)...)
			answers(t, c.at(tc.port), "whoami.example", "NOERROR")
		}
	})

	t.Run("Corefile on standard input", func(t *testing.T) {
		args := onNetwork(t, "--name", run+"-stdin", im.coredns, "-conf", "stdin")
		cmd := exec.CommandContext(t.Context(), "docker", append([]string{"run", "-i", "--rm", "--label", label}, args...)...)
		cmd.Stdin = strings.NewReader(hosts)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		c := container{t, run + "-stdin"}
		eventually(t, func() error {
			_, err := command("", "docker", "inspect", c.id)
			return err
		})
		answers(t, c.at(53), "one.example", "NOERROR", "192.0.2.7")
		docker(t, "stop", c.id)
		if err := cmd.Wait(); err != nil {
			t.Errorf("got %v, want exit code 0:\n%s", err, &out)
		}
	})
}

// TestStop ends both with the signal that docker stop sends, and not with the kill that follows after 10 s.
func TestStop(t *testing.T) {
	im := built(t)
	for _, tc := range []struct{ name, image, up string }{
		{"coredns", im.coredns, "CoreDNS-"},
		{"caddy", im.caddy, "serving initial configuration"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, tc.image)
			c.says(tc.up)
			began := time.Now()
			docker(t, "stop", c.id)
			if took := time.Since(began); took > 8*time.Second {
				t.Errorf("took %s", took)
			}
			if code := c.look("{{.State.ExitCode}}"); code != "0" {
				t.Errorf("got exit code %s, want 0", code)
			}
		})
	}
}
