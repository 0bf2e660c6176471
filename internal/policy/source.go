package policy

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Source is where policies come from: a document, or the body of one policy that stands inline in a
// Corefile or Caddyfile and becomes the policy "default". Exactly one of the two is set.
type Source struct {
	File   string // path of the document
	Inline []Line
}

// maxFile bounds a document and each list, in octets; a million rules take some 25 MiB.
const maxFile = 256 << 20

// file is one read of a document or list.
type file struct {
	path   string
	target string // what path leads to through symlinks
	info   os.FileInfo
	sum    [sha256.Size]byte
	data   string // "" once it is no longer needed
}

// complete reports whether the last line has its end, which tells a file from its first part.
func (f *file) complete() bool { return f.data == "" || f.data[len(f.data)-1] == '\n' }

// same reports whether two reads found the same bytes.
func (f *file) same(g *file) bool { return f.path == g.path && f.sum == g.sum }

// replaced reports whether f is another file than g was, not the same one with other bytes.
func (f *file) replaced(g *file) bool {
	return f.target != g.target || !os.SameFile(f.info, g.info)
}

// untouched reports whether nothing suggests that f has changed since g was read.
func (f *file) untouched(g *file) bool {
	return !f.replaced(g) && f.info.Size() == g.info.Size() && f.info.ModTime().Equal(g.info.ModTime())
}

func statFile(path string) (file, error) {
	info, err := os.Stat(path) // first, as its error names the path as written
	if err != nil {
		return file{}, err
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return file{}, err
	}
	if !info.Mode().IsRegular() {
		return file{}, fmt.Errorf("%s: not a regular file", path)
	}
	return file{path: path, target: target, info: info}, nil
}

// digest sets the sum of what is in the file now, without keeping it.
func (f *file) digest() error {
	r, err := os.Open(f.target)
	if err != nil {
		return err
	}
	defer r.Close()
	if f.info, err = r.Stat(); err != nil {
		return err
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(r, maxFile+1)); err != nil {
		return err
	}
	h.Sum(f.sum[:0])
	return nil
}

func readFile(path string) (file, error) {
	f, err := statFile(path)
	if err != nil {
		return f, err
	}
	r, err := os.Open(f.target)
	if err != nil {
		return f, err
	}
	defer r.Close()
	if f.info, err = r.Stat(); err != nil {
		return f, err
	}
	tooLarge := fmt.Errorf("%s: over %d MiB", path, maxFile>>20)
	if f.info.Size() > maxFile {
		return f, tooLarge
	}
	var text strings.Builder // not a slice, of which the string would be a copy
	text.Grow(int(f.info.Size()))
	h := sha256.New()
	switch n, err := io.Copy(io.MultiWriter(&text, h), io.LimitReader(r, maxFile+1)); {
	case err != nil:
		return f, err
	case n > maxFile:
		return f, tooLarge
	}
	h.Sum(f.sum[:0])
	f.data = text.String()
	return f, nil
}

// snapshot is one read of everything that a source names: what is compiled is what was read at once.
type snapshot struct {
	inline bool
	lines  []Line // of the document, or inline
	files  []file // the document first unless inline, then each list once
	err    error  // why it cannot be compiled: bad text, or a list that cannot be read
}

// load reads and compiles a source, as at start: an incomplete last line is a warning.
func (src Source) load() (*snapshot, *Set, error) {
	s, err := src.read()
	if err != nil {
		return nil, nil, err
	}
	set, err := s.compile()
	if err != nil {
		return nil, nil, err
	}
	if place := s.incomplete(); place != "" {
		set.warnings = append(set.warnings, place+": the last line has no line end; is the file complete?")
	}
	return s, set, nil
}

// read takes a snapshot. What a file that is still being written may explain is left to compile to report.
func (src Source) read() (*snapshot, error) {
	s := &snapshot{inline: src.File == "", lines: src.Inline}
	switch {
	case src.File != "" && len(src.Inline) > 0:
		return nil, fmt.Errorf("%s: a policy file and inline policy lines exclude each other", src.Inline[0].place())
	case src.File == "" && src.Inline == nil:
		return nil, fmt.Errorf("no policy: give a policy file or inline policy lines")
	case src.File != "":
		f, err := readFile(src.File)
		if err != nil {
			return nil, fmt.Errorf("policy file: %w", err)
		}
		s.files = append(s.files, f)
		s.lines, s.err = lex(f.path, f.data)
	}
	for _, l := range s.lines {
		if len(l.Words) == 0 || l.Words[0] != "allow_list" {
			continue
		}
		for _, w := range l.Words[1:] {
			path := l.path(w)
			if s.file(path) != nil {
				continue
			}
			f, err := readFile(path)
			if err != nil {
				s.err = l.errorf("allow_list: %w", err)
				return s, nil
			}
			s.files = append(s.files, f)
		}
	}
	return s, nil
}

// path resolves a path that stands in a line, relative to the file of the line.
func (l Line) path(p string) string {
	if filepath.IsAbs(p) {
		return filepath.Clean(p)
	}
	return filepath.Join(filepath.Dir(l.File), p)
}

func (s *snapshot) file(path string) *file {
	for i := range s.files {
		if s.files[i].path == path {
			return &s.files[i]
		}
	}
	return nil
}

// same reports whether two snapshots found the same files with the same bytes.
func (s *snapshot) same(o *snapshot) bool {
	if len(s.files) != len(o.files) {
		return false
	}
	for i := range s.files {
		if !s.files[i].same(&o.files[i]) {
			return false
		}
	}
	return true
}

// replaced reports whether every file with other bytes than in current is another file than the one last
// seen, so that none is being written in place.
func (s *snapshot) replaced(current, seen *snapshot) bool {
	for i := range s.files {
		f := &s.files[i]
		if g := current.file(f.path); g != nil && f.same(g) {
			continue
		}
		if g := seen.file(f.path); g != nil && !f.replaced(g) {
			return false
		}
	}
	return true
}

// incomplete returns the file:line of a last line that has no end, "" if there is none.
func (s *snapshot) incomplete() string {
	for i := range s.files {
		if f := &s.files[i]; !f.complete() {
			return fmt.Sprintf("%s:%d", f.path, strings.Count(f.data, "\n")+1)
		}
	}
	return ""
}

// forget drops the bytes, which are of no use once compiled.
func (s *snapshot) forget() {
	for i := range s.files {
		s.files[i].data = ""
	}
	s.lines = nil
}
