package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// file is a file or a folder of an image.
type file struct {
	mode       int64
	uid        int
	capability string // security.capability
	text       []byte
}

// String describes a file, but for what it holds.
func (f file) String() string {
	s := fmt.Sprintf("%o %d", f.mode, f.uid)
	if f.capability != "" {
		s += fmt.Sprintf(" %x", f.capability)
	}
	return s
}

// contents returns what an image holds: its layers, one over the other.
func contents(tb testing.TB, image string) map[string]file {
	tb.Helper()
	saved := filepath.Join(tb.TempDir(), "image.tar")
	docker(tb, "save", "-o", saved, image)
	outer, err := os.ReadFile(saved)
	if err != nil {
		tb.Fatal(err)
	}
	parts, err := readArchive(outer)
	if err != nil {
		tb.Fatal(err)
	}
	var manifest []struct{ Layers []string }
	if err := json.Unmarshal(parts["manifest.json"].text, &manifest); err != nil || len(manifest) != 1 {
		tb.Fatalf("got %d images, %v, want one", len(manifest), err)
	}
	all := make(map[string]file)
	for _, layer := range manifest[0].Layers {
		files, err := readArchive(parts[layer].text)
		if err != nil {
			tb.Fatal(err)
		}
		for name, f := range files {
			if strings.Contains(name, ".wh.") {
				tb.Fatalf("got a layer that removes %s, want only some that add", name)
			}
			all[name] = f
		}
	}
	return all
}

func readArchive(b []byte) (map[string]file, error) {
	files := make(map[string]file)
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		files[h.Name] = file{h.Mode & 0o7777, h.Uid, h.PAXRecords["SCHILY.xattr.security.capability"], text}
	}
}
