package main

import (
	"archive/tar"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"
)

// write writes the entries, and each folder that they stand in, as a tar archive.
func write(w io.Writer, entries []entry, scratch bool) error {
	a := archive{Writer: tar.NewWriter(w), folders: map[string]bool{".": true}}
	for _, e := range entries {
		if e.onScratch && !scratch {
			continue
		}
		if err := a.add(e); err != nil {
			return fmt.Errorf("%s: %w", e.path, err)
		}
	}
	return a.Close()
}

type archive struct {
	*tar.Writer
	folders map[string]bool // that are in it
}

// add writes an entry, below folders that anybody may enter.
func (a archive) add(e entry) error {
	name := strings.TrimSuffix(e.path, "/")
	if dir := path.Dir(name); !a.folders[dir] {
		if err := a.add(entry{path: dir + "/", mode: 0o755}); err != nil {
			return err
		}
	}
	if name != e.path {
		a.folders[name] = true
		return a.WriteHeader(header(e, tar.TypeDir, 0))
	}
	if e.file != "" {
		text, err := os.ReadFile(e.file)
		if err != nil {
			return err
		}
		e.text = text
	}
	if err := a.WriteHeader(header(e, tar.TypeReg, len(e.text))); err != nil {
		return err
	}
	_, err := a.Write(e.text)
	return err
}

func header(e entry, kind byte, size int) *tar.Header {
	h := &tar.Header{
		Typeflag: kind, Name: e.path, Mode: e.mode, Uid: e.uid, Gid: e.uid, Size: int64(size),
		ModTime: time.Unix(0, 0), // the same archive for the same files
		Format:  tar.FormatPAX,
	}
	if e.bindsLow {
		h.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": bindCapability()}
	}
	return h
}

// bindCapability is cap_net_bind_service=ep as the kernel keeps it with a file: struct vfs_cap_data,
// revision 2, little-endian on every machine. capabilities(7).
func bindCapability() string {
	const (
		revision2      = 0x02000000
		effective      = 1
		netBindService = 10
	)
	var b []byte
	for _, word := range [...]uint32{
		revision2 | effective,
		1 << netBindService, 0, // permitted and inheritable, 0 to 31
		0, 0, // and 32 to 63
	} {
		b = binary.LittleEndian.AppendUint32(b, word)
	}
	return string(b)
}
