package images

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// config is what an image says of how it is to be run.
type config struct {
	User, WorkingDir, StopSignal string
	Entrypoint, Cmd, Env, Shell  []string
	ExposedPorts, Volumes        map[string]struct{}
}

func moduleOf(t *testing.T, module, field string) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{."+field+"}}", module).Output()
	if err != nil {
		t.Fatalf("go list -m %s: %v", module, err)
	}
	return strings.TrimSpace(string(out))
}

const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// TestConfig compares with the stock images: what they are built from, for coredns 1.15 on distroless/static,
// and for caddy 2.11 on Alpine.
func TestConfig(t *testing.T) {
	im := built(t)
	for _, tc := range []struct {
		name, image string
		want        config
	}{
		{"coredns", im.coredns, config{
			User:       "65532:65532",
			WorkingDir: "/",
			Entrypoint: []string{"/coredns"},
			Env:        []string{path, "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
			ExposedPorts: map[string]struct{}{
				"53/tcp": {}, "53/udp": {},
			},
		}},
		{"caddy", im.caddy, config{
			WorkingDir: "/srv",
			Cmd:        []string{"caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"},
			Env: []string{path, "CADDY_VERSION=" + moduleOf(t, "github.com/caddyserver/caddy/v2", "Version"),
				"XDG_CONFIG_HOME=/config", "XDG_DATA_HOME=/data"},
			ExposedPorts: map[string]struct{}{
				"80/tcp": {}, "443/tcp": {}, "443/udp": {}, "2019/tcp": {},
			},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got config
			if err := json.Unmarshal([]byte(docker(t, "inspect", "--format", "{{json .Config}}", tc.image)), &got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got\n%+v\nwant\n%+v", got, tc.want)
			}
		})
	}
}

// TestStockDockerfile fails when an upgrade of CoreDNS brings another image than the one that TestConfig has.
func TestStockDockerfile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(moduleOf(t, "github.com/coredns/coredns", "Dir"), "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		switch word, _, _ := strings.Cut(line, " "); word {
		case "USER", "WORKDIR", "EXPOSE", "ENTRYPOINT", "CMD", "ENV", "VOLUME", "STOPSIGNAL", "HEALTHCHECK":
			got = append(got, strings.TrimSpace(line))
		}
		if strings.Contains(line, "setcap") || strings.HasPrefix(line, "ARG BASE=") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{
		"ARG BASE=gcr.io/distroless/static-debian12:nonroot",
		"RUN setcap cap_net_bind_service=+ep /coredns",
		"USER 65532:65532", "WORKDIR /", "EXPOSE 53 53/udp", `ENTRYPOINT ["/coredns"]`,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestLabels(t *testing.T) {
	im := built(t)
	for _, image := range []string{im.coredns, im.caddy} {
		var got map[string]string
		if err := json.Unmarshal([]byte(docker(t, "inspect", "--format", "{{json .Config.Labels}}", image)), &got); err != nil {
			t.Fatal(err)
		}
		for key, want := range map[string]string{
			"version": version, "licenses": "Apache-2.0", "source": "https://github.com/sandboxallow/sandboxallow",
		} {
			if got["org.opencontainers.image."+key] != want {
				t.Errorf("%s: got %s %q, want %q", image, key, got["org.opencontainers.image."+key], want)
			}
		}
	}
}

// TestTags has `make images` name each image twice.
func TestTags(t *testing.T) {
	built(t)
	for _, name := range []string{"coredns", "caddy"} {
		stamped := docker(t, "inspect", "--format", "{{.Id}}", run+"/"+name+":"+version)
		if latest := docker(t, "inspect", "--format", "{{.Id}}", run+"/"+name+":latest"); latest != stamped {
			t.Errorf("%s: got %s as latest, want %s", name, latest, stamped)
		}
	}
}
