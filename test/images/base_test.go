package images

import (
	"archive/tar"
	"os"
	"path/filepath"
	"testing"
)

// TestBase builds on an image that has users of its own, and keeps them.
func TestBase(t *testing.T) {
	im := built(t)
	passwd := "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/app:/bin/sh\n"
	rootfs := filepath.Join(t.TempDir(), "base.tar")
	f, err := os.Create(rootfs)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	if err := w.WriteHeader(&tar.Header{Name: "etc/passwd", Mode: 0o644, Size: int64(len(passwd))}); err != nil {
		t.Fatal(err)
	}
	w.Write([]byte(passwd))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	base := run + "/base:1"
	docker(t, "import", rootfs, base)

	prefix := run + "-on-base"
	if err := makeImages(im.bin, prefix, "BASE="+base, "-o", "build"); err != nil { // with the binaries that are there
		t.Fatal(err)
	}
	for _, tc := range []struct{ image, user string }{
		{prefix + "/coredns:latest", "65532:65532"}, {prefix + "/caddy:latest", ""},
	} {
		files := contents(t, tc.image)
		if got := string(files["etc/passwd"].text); got != passwd {
			t.Errorf("%s: got /etc/passwd %q, want that of the base", tc.image, got)
		}
		if _, ok := files["etc/group"]; ok {
			t.Errorf("%s: got /etc/group, which the base has not", tc.image)
		}
		if got := docker(t, "inspect", "--format", "{{.Config.User}}", tc.image); got != tc.user {
			t.Errorf("%s: got user %q, want %q", tc.image, got, tc.user)
		}
	}
	if got, want := runOnce(t, prefix+"/coredns:latest", "-version"), output(t, "coredns", "-version"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := runOnce(t, "--user", "app", prefix+"/caddy:latest", "caddy", "version"); got != output(t, "caddy", "version") {
		t.Errorf("got %q from the user of the base", got)
	}
}
