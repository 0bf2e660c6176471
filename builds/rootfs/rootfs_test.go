package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// machine is a folder with the files that an image is made of.
func machine(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"coredns": "the binary of CoreDNS", "caddy": "the binary of Caddy", "healthcheck": "the check",
		"types": "text/html html\n", "roots": root,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir("../..") // where the command runs
	return dir
}

// makeArchive returns the archive that the command writes for a machine.
func makeArchive(dir string, args ...string) ([]byte, error) {
	var out bytes.Buffer
	files := []string{"-bin", dir, "-ca", filepath.Join(dir, "roots"), "-types", filepath.Join(dir, "types")}
	err := run(append(files, args...), &out)
	return out.Bytes(), err
}

// list returns a line for each entry: name, mode, user, and what its capability is if it has one.
func list(t *testing.T, archive []byte) []string {
	t.Helper()
	var lines []string
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != h.Gid {
			t.Errorf("%s: got user %d and group %d, want one number", h.Name, h.Uid, h.Gid)
		}
		line := fmt.Sprintf("%s %o %d", h.Name, h.Mode, h.Uid)
		if c := h.PAXRecords["SCHILY.xattr.security.capability"]; c != "" {
			line += fmt.Sprintf(" %x", c)
		}
		lines = append(lines, line)
	}
}

// What setcap(8) writes for cap_net_bind_service=ep.
const bind = " 0100000200040000000000000000000000000000"

func TestArchive(t *testing.T) {
	dir := machine(t)
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"coredns", []string{"coredns"}, []string{
			"etc/ 755 0", "etc/group 644 0", "etc/nsswitch.conf 644 0", "etc/passwd 644 0",
			"etc/ssl/ 755 0", "etc/ssl/certs/ 755 0", "etc/ssl/certs/ca-certificates.crt 644 0",
			"healthcheck 755 0", "home/ 755 0", "home/nonroot/ 700 65532", "root/ 700 0", "tmp/ 1777 0",
			"coredns 755 0" + bind,
		}},
		{"caddy", []string{"caddy"}, []string{
			"etc/ 755 0", "etc/group 644 0", "etc/nsswitch.conf 644 0", "etc/passwd 644 0",
			"etc/ssl/ 755 0", "etc/ssl/certs/ 755 0", "etc/ssl/certs/ca-certificates.crt 644 0",
			"healthcheck 755 0", "home/ 755 0", "home/nonroot/ 700 65532", "root/ 700 0", "tmp/ 1777 0",
			"config/ 755 0", "config/caddy/ 1777 0", "data/ 755 0", "data/caddy/ 1777 0",
			"etc/caddy/ 755 0", "etc/caddy/Caddyfile 644 0", "etc/mime.types 644 0", "srv/ 755 0",
			"usr/ 755 0", "usr/bin/ 755 0", "usr/bin/caddy 755 0" + bind,
			"usr/share/ 755 0", "usr/share/caddy/ 755 0", "usr/share/caddy/index.html 644 0",
		}},
		{"on a base", []string{"-base", "alpine:3.22", "coredns"}, []string{
			"etc/ 755 0", "etc/ssl/ 755 0", "etc/ssl/certs/ 755 0", "etc/ssl/certs/ca-certificates.crt 644 0",
			"healthcheck 755 0", "coredns 755 0" + bind,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			archive, err := makeArchive(dir, tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			if got := list(t, archive); !slices.Equal(got, tc.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
			if again, err := makeArchive(dir, tc.args...); err != nil || !bytes.Equal(again, archive) {
				t.Errorf("the second time: got another archive, %v, want the same", err)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		name, image  string
		file, text   string // a file that is written over, or with no text removed
		want, remedy string
	}{
		{name: "no image", image: "", want: `no image ""`, remedy: "want coredns or caddy"},
		{name: "other image", image: "nginx", want: `no image "nginx"`, remedy: "want coredns or caddy"},
		{name: "no binary", image: "coredns", file: "coredns", want: "coredns: open "},
		{name: "no check", image: "caddy", file: "healthcheck", want: "healthcheck: open "},
		{name: "no roots", image: "coredns", file: "roots", want: "CA roots: open ", remedy: "ca-certificates"},
		{name: "empty roots", image: "coredns", file: "roots", text: "\n", want: "no certificate"},
		{name: "a key among the roots", image: "caddy", file: "roots",
			text: root + "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", want: `"PRIVATE KEY"`},
		{name: "roots cut off", image: "caddy", file: "roots", text: root + root[:200], want: "1 of 2 blocks"},
		{name: "no media types", image: "caddy", file: "types", want: "media types: open ", remedy: "media-types"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := machine(t)
			if tc.file != "" {
				path := filepath.Join(dir, tc.file)
				err := os.Remove(path)
				if tc.text != "" {
					err = os.WriteFile(path, []byte(tc.text), 0o640)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			_, err := makeArchive(dir, tc.image)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.remedy) {
				t.Errorf("got error %v, want one with %q and %q", err, tc.want, tc.remedy)
			}
		})
	}
}

// root is a certificate made for this test; its key is nowhere.
const root = `-----BEGIN CERTIFICATE-----
MIIBhDCCASmgAwIBAgIUbs7yrQMPs1DP4L69gjEcZD/ow5MwCgYIKoZIzj0EAwIw
FjEUMBIGA1UEAwwLcm9vdGZzIHRlc3QwIBcNMjYxMTI5MTk0NjI0WhgPMjEyNjEx
MDUxOTQ2MjRaMBYxFDASBgNVBAMMC3Jvb3RmcyB0ZXN0MFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEQHn1GQ7Dew8jJx2XbtQLU6QXihPSFa1B5CzY6Ce+29EpS5W4
F3ZrROOegA6ZVdE7AN20B4RgalgUFDwBSEhucqNTMFEwHQYDVR0OBBYEFAhc8qF9
Fr/j5xJijA4Uj4dNYmBhMB8GA1UdIwQYMBaAFAhc8qF9Fr/j5xJijA4Uj4dNYmBh
MA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSQAwRgIhAJerBIhSquvE1/WQ
972iU9Uf3i/n/9FJeAssMp285RVyAiEArL39nuJQ0HX0wQPSvvjSjl4WdMUFdin1
ZX8IktUGwH0=
-----END CERTIFICATE-----
`
