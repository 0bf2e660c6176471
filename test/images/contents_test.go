package images

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// bind is what setcap(8) writes for cap_net_bind_service=ep, as the stock images have it on their binaries.
const bind = " 0100000200040000000000000000000000000000"

func TestContents(t *testing.T) {
	im := built(t)
	common := map[string]string{
		"etc/": "755 0", "etc/group": "644 0", "etc/nsswitch.conf": "644 0", "etc/passwd": "644 0",
		"etc/ssl/": "755 0", "etc/ssl/certs/": "755 0", "etc/ssl/certs/ca-certificates.crt": "644 0",
		"healthcheck": "755 0", "home/": "755 0", "home/nonroot/": "700 65532", "root/": "700 0", "tmp/": "1777 0",
	}
	for _, tc := range []struct {
		name, image, binary string
		more                map[string]string
	}{
		{"coredns", im.coredns, "coredns", map[string]string{"coredns": "755 0" + bind}},
		{"caddy", im.caddy, "usr/bin/caddy", map[string]string{
			"config/": "755 0", "config/caddy/": "1777 0", "data/": "755 0", "data/caddy/": "1777 0",
			"etc/caddy/": "755 0", "etc/caddy/Caddyfile": "644 0", "etc/mime.types": "644 0", "srv/": "755 0",
			"usr/": "755 0", "usr/bin/": "755 0", "usr/bin/caddy": "755 0" + bind,
			"usr/share/": "755 0", "usr/share/caddy/": "755 0", "usr/share/caddy/index.html": "644 0",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			files := contents(t, tc.image)
			want := maps.Clone(common)
			maps.Copy(want, tc.more)
			for _, name := range slices.Sorted(maps.Keys(files)) {
				if got := files[name].String(); got != want[name] {
					t.Errorf("%s: got %s, want %q", name, got, want[name])
				}
				delete(want, name)
			}
			for name := range want {
				t.Errorf("%s: got no such file", name)
			}

			binary, err := os.ReadFile(filepath.Join(im.bin, filepath.Base(tc.binary)))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(files[tc.binary].text, binary) {
				t.Errorf("%s: got another binary than `make build` made", tc.binary)
			}
			testRoots(t, files["etc/ssl/certs/ca-certificates.crt"].text)
		})
	}
}

// testRoots expects the CA roots of this machine: enough of them for the public internet.
func testRoots(t *testing.T, bundle []byte) {
	t.Helper()
	machine, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bundle, machine) {
		t.Error("got other CA roots than this machine's")
	}
	authorities := 0
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && cert.IsCA {
			authorities++
		}
	}
	if authorities < 50 {
		t.Errorf("got %d CA roots, want 50 or more", authorities)
	}
}
