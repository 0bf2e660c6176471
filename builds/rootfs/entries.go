package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// entry is a file or a folder of an image.
type entry struct {
	path string // from the root on; with a slash at the end it is a folder
	mode int64
	uid  int // and gid

	file string // what it holds: a file of this machine, or
	text []byte // a text

	bindsLow  bool // has the file capability that lets any user listen below port 1024
	onScratch bool // only where there is no base image, which has its own
}

// sources are the files of this machine that images are made of.
type sources struct {
	bin, roots, types string
}

// nonroot is the user of that name in distroless images, among them the stock image of CoreDNS.
const nonroot = 65532

// Who can be named in --user, docker exec and ls. Nobody logs in, and there is nothing to log in with.
const (
	passwd = `root:x:0:0:root:/root:/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin
nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin
`
	group = `root:x:0:
nobody:x:65534:
nonroot:x:65532:
`
	// nsswitch has Go's resolver read /etc/hosts before it asks DNS.
	nsswitch = "hosts: files dns\n"
)

// entries returns what an image holds, folders before what is in them.
func (s sources) entries(image string) ([]entry, error) {
	roots, err := readRoots(s.roots)
	if err != nil {
		return nil, err
	}
	common := []entry{
		{path: "etc/group", mode: 0o644, text: []byte(group), onScratch: true},
		{path: "etc/nsswitch.conf", mode: 0o644, text: []byte(nsswitch), onScratch: true},
		{path: "etc/passwd", mode: 0o644, text: []byte(passwd), onScratch: true},
		{path: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, text: roots},
		{path: "healthcheck", mode: 0o755, file: filepath.Join(s.bin, "healthcheck")},
		{path: "home/nonroot/", mode: 0o700, uid: nonroot, onScratch: true},
		{path: "root/", mode: 0o700, onScratch: true},
		{path: "tmp/", mode: 0o1777, onScratch: true},
	}
	switch image {
	case "coredns":
		return append(common,
			entry{path: "coredns", mode: 0o755, file: filepath.Join(s.bin, "coredns"), bindsLow: true},
		), nil
	case "caddy":
		// A server that serves every picture as application/octet-stream is no drop-in.
		types, err := os.ReadFile(s.types)
		if err != nil {
			return nil, fmt.Errorf("media types: %w; install the package media-types (mailcap elsewhere)", err)
		}
		return append(common,
			entry{path: "config/caddy/", mode: 0o1777}, // for any --user
			entry{path: "data/caddy/", mode: 0o1777},
			entry{path: "etc/caddy/Caddyfile", mode: 0o644, file: "builds/caddy/image/Caddyfile"},
			entry{path: "etc/mime.types", mode: 0o644, text: types},
			entry{path: "srv/", mode: 0o755},
			entry{path: "usr/bin/caddy", mode: 0o755, file: filepath.Join(s.bin, "caddy"), bindsLow: true},
			entry{path: "usr/share/caddy/index.html", mode: 0o644, file: "builds/caddy/image/index.html"},
		), nil
	}
	return nil, fmt.Errorf("no image %q; want coredns or caddy", image)
}
