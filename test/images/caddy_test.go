package images

import (
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// respond is a Caddyfile that answers every request with a text.
func respond(text string) string { return ":80 {\n\trespond " + text + "\n}\n" }

func TestCaddyCommands(t *testing.T) {
	im := built(t)
	for _, args := range [][]string{
		{"version"}, {"list-modules", "--versions"}, {"build-info"}, {"help"},
	} {
		want := output(t, "caddy", args...)
		if got := runOnce(t, append([]string{im.caddy, "caddy"}, args...)...); got != want {
			t.Errorf("%v: got %q, want %q", args, got, want)
		}
	}
	modules := strings.Fields(runOnce(t, im.caddy, "caddy", "list-modules"))
	for _, name := range []string{"sandboxallow", "layer4.handlers.sandboxallow", "http.handlers.file_server"} {
		if !slices.Contains(modules, name) {
			t.Errorf("got no %s among the modules", name)
		}
	}

	dir := folder(t, map[string]string{"Caddyfile": ":80 {\nrespond hello\n}\n", "bad": ":80 {\n\tno-such-directive\n}\n"})
	mounted := func(args ...string) []string {
		return append([]string{"-v", dir + ":/etc/caddy", im.caddy, "caddy"}, args...)
	}
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"validate", mounted("validate", "--config", "/etc/caddy/Caddyfile"), "Valid configuration"},
		{"validate what came with the image", []string{im.caddy, "caddy", "validate", "--config", "/etc/caddy/Caddyfile"},
			"Valid configuration"},
		{"adapt", mounted("adapt", "--config", "/etc/caddy/Caddyfile"), `"handler":"static_response"`},
		{"adapt, in the folder", append([]string{"-w", "/etc/caddy"}, mounted("adapt")...), `"body":"hello"`},
		{"hash-password", []string{im.caddy, "caddy", "hash-password", "--plaintext", "secret"}, "$2a$14$"},
		{"environ, data", []string{im.caddy, "caddy", "environ"}, "caddy.AppDataDir=/data/caddy\n"},
		{"environ, configuration", []string{im.caddy, "caddy", "environ"}, "caddy.AppConfigDir=/config/caddy\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := runOnce(t, tc.args...) + "\n"; !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q in it", got, tc.want)
			}
		})
	}

	t.Run("validate a bad one", func(t *testing.T) {
		out, err := tryOnce("", mounted("validate", "--config", "/etc/caddy/bad", "--adapter", "caddyfile")...)
		if err == nil || !strings.Contains(out, "/etc/caddy/bad:2: unrecognized directive: no-such-directive") {
			t.Errorf("got %q, %v, want an error", out, err)
		}
	})

	t.Run("fmt", func(t *testing.T) {
		runOnce(t, mounted("fmt", "--overwrite", "/etc/caddy/Caddyfile")...)
		if got, err := os.ReadFile(filepath.Join(dir, "Caddyfile")); err != nil || string(got) != respond("hello") {
			t.Errorf("got %q, %v, want %q", got, err, respond("hello"))
		}
	})

	t.Run("hash-password from standard input", func(t *testing.T) {
		out, err := tryOnce("secret\n", im.caddy, "caddy", "hash-password")
		if err != nil || !strings.HasPrefix(out, "$2a$14$") {
			t.Errorf("got %q, %v, want a hash", out, err)
		}
	})
}

// TestCaddyDefault serves what came with the image, and then a page in its place.
func TestCaddyDefault(t *testing.T) {
	im := built(t)
	c := start(t, onNetwork(t, im.caddy)...)
	if got := get(t, c.at(80), "/", nil, ""); got.status != 200 || got.mediaType != "text/html; charset=utf-8" ||
		!strings.Contains(got.text, "/etc/caddy/Caddyfile") {
		t.Errorf("got %+v, want the page of the image", got)
	}

	dir := folder(t, map[string]string{"index.html": "hello world\n"})
	c = start(t, onNetwork(t, "-v", dir+"/index.html:/usr/share/caddy/index.html",
		"-v", volume(t, "page")+":/data", im.caddy)...)
	if got := get(t, c.at(80), "/", nil, ""); got.status != 200 || got.text != "hello world\n" {
		t.Errorf("got %+v, want the page that was mounted", got)
	}
}

// TestCaddyReload changes the Caddyfile of a container that runs.
func TestCaddyReload(t *testing.T) {
	im := built(t)
	for _, tc := range []struct {
		name   string
		reload []string // of docker exec
	}{
		{"in the folder", []string{"exec", "-w", "/etc/caddy", "ID", "caddy", "reload"}},
		{"by its path", []string{"exec", "ID", "caddy", "reload", "--config", "/etc/caddy/Caddyfile"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := folder(t, map[string]string{"Caddyfile": respond("before")})
			c := start(t, onNetwork(t, "-v", dir+"/Caddyfile:/etc/caddy/Caddyfile",
				"-v", volume(t, "reload")+":/data", im.caddy)...)
			if got := get(t, c.at(80), "/", nil, "").text; got != "before" {
				t.Fatalf("got %q, want what the Caddyfile says", got)
			}
			// In place: a file that was mounted alone stays what it was when another is renamed over it.
			if err := os.WriteFile(filepath.Join(dir, "Caddyfile"), []byte(respond("after")), 0o644); err != nil {
				t.Fatal(err)
			}
			reload := append([]string(nil), tc.reload...)
			for i, arg := range reload {
				if arg == "ID" {
					reload[i] = c.id
				}
			}
			docker(t, reload...)
			if got := get(t, c.at(80), "/", nil, "").text; got != "after" {
				t.Errorf("got %q, want what the new Caddyfile says", got)
			}
		})
	}
}

// TestCaddySite serves a site by HTTPS, and keeps its certificates in a volume. As documented, but for the
// name: Caddy's own CA issues for localhost.
func TestCaddySite(t *testing.T) {
	im := built(t)
	site := folder(t, map[string]string{"index.html": "a site\n", "font.woff2": "wOF2", "film.mp4": "mp4"})
	data := volume(t, "data")
	args := onNetwork(t, "-v", site+":/srv", "-v", data+":/data", "-v", volume(t, "config")+":/config",
		im.caddy, "caddy", "file-server", "--domain", "localhost")
	// Each of the two runs has its own container, and both the same volume.
	var roots [2]string
	for i := range roots {
		c := start(t, args...)
		file := filepath.Join(t.TempDir(), "root.crt")
		eventually(t, func() error {
			_, err := command("", "docker", "cp", c.id+":/data/caddy/pki/authorities/local/root.crt", file)
			return err
		})
		cert, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		roots[i] = string(cert)
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(cert) {
			t.Fatalf("got no certificate in %q", cert)
		}
		for _, want := range []struct{ path, mediaType, text string }{
			{"/", "text/html; charset=utf-8", "a site\n"},
			{"/font.woff2", "font/woff2", "wOF2"}, // neither is known without /etc/mime.types
			{"/film.mp4", "video/mp4", "mp4"},
		} {
			got := get(t, c.at(443), want.path, pool, "localhost")
			if got != (page{200, want.mediaType, want.text}) {
				t.Errorf("%s: got %+v, want %+v", want.path, got, want)
			}
		}
		docker(t, "stop", c.id)
	}
	if roots[0] != roots[1] {
		t.Error("got another CA from the second container, want that of the volume")
	}
}

// TestDerived builds images on ours as users do on stock ones.
func TestDerived(t *testing.T) {
	im := built(t)
	for _, tc := range []struct {
		name, file string
		check      func(c container)
	}{
		{"caddy", "FROM " + im.caddy + "\nCOPY Caddyfile /etc/caddy/Caddyfile\nCOPY site /srv\n", func(c container) {
			if got := get(t, c.at(80), "/", nil, "").text; got != "derived" {
				t.Errorf("got %q, want what the Caddyfile says", got)
			}
		}},
		{"coredns", "FROM " + im.coredns + "\nCOPY Corefile /Corefile\n", func(c container) {
			answers(t, c.at(53), "one.example", "NOERROR", "192.0.2.7")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := folder(t, map[string]string{"Dockerfile": tc.file, "Caddyfile": respond("derived"),
				"Corefile": hosts, "site/index.html": ""})
			image := run + "/derived:" + tc.name
			if out, err := exec.Command("docker", "build", "-t", image, dir).CombinedOutput(); err != nil {
				t.Fatalf("docker build: %v\n%s", err, out)
			}
			tc.check(start(t, onNetwork(t, image)...))
		})
	}
}
