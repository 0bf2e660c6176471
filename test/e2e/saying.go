//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// failure is a client that has failed.
type failure struct {
	program string
	err     error
	said    string // all that it wrote
}

// Error implements error.
func (f *failure) Error() string { return fmt.Sprintf("%s: %v: %s", f.program, f.err, f.said) }

// Unwrap returns how the program ended.
func (f *failure) Unwrap() error { return f.err }

// saying is what a client says of a denial.
type saying struct {
	words []string // that it must have, each in a line
	lines []string // with these words, without what differs from run to run
}

// said is all that a client wrote that ended with an error.
func said(err error) string {
	if f := (*failure)(nil); errors.As(err, &f) {
		return f.said
	}
	return err.Error()
}

// sayingOf finds words in what a client said about a host. It returns those that are not there, too.
func sayingOf(said, host string, words []string) (s saying, missing []string) {
	lines := strings.Split(said, "\n")
	s.words = words
	for _, text := range words {
		// What comes last is what the user sees: Python's traceback ends with it.
		i := len(lines) - 1
		for i >= 0 && !strings.Contains(lines[i], text) {
			i--
		}
		if i < 0 {
			missing = append(missing, text)
			continue
		}
		if line := settled(lines[i], host); !slices.Contains(s.lines, line) {
			s.lines = append(s.lines, line)
		}
	}
	return s, missing
}

// in reports whether a cell has the words too.
func (s saying) in(cell string) bool {
	return !slices.ContainsFunc(s.words, func(text string) bool { return !strings.Contains(cell, text) })
}

// cell is the saying in Markdown.
func (s saying) cell() string {
	var spans []string
	for _, line := range s.lines {
		line = strings.ReplaceAll(line, "|", `\|`)
		if strings.Contains(line, "`") {
			line = "` " + line + " `" // between two of them
		}
		spans = append(spans, "`"+line+"`")
	}
	return strings.Join(spans, "<br>")
}

// unsettled is what differs from one run to the next, or from one build of a client to another.
var unsettled = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d `), ""},               // wget
	{regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d+ \S+\.c:\d+ +(<= )?`), ""},        // the trace of git
	{regexp.MustCompile(`\b[0-9A-F]{12,16}:error:`), "error:"},                 // OpenSSL: a thread
	{regexp.MustCompile(`:[\w./-]+\.c:\d+\b`), ""},                             // OpenSSL: a line of its source
	{regexp.MustCompile(` \(_ssl\.c:\d+\)`), ""},                               // the same of Python
	{regexp.MustCompile(`\bOpenSSL/[\w.]+`), "OpenSSL"},                        // curl
	{regexp.MustCompile(` after \d+ ms\b`), ""},                                // curl
	{regexp.MustCompile(`\b` + regexp.QuoteMeta(proxyHost) + `\b`), "GATEWAY"}, // whose ports do not change
}

// settled is a line of a client's without what differs, and with NAME for the host.
func settled(line, host string) string {
	if host != "" {
		line = strings.ReplaceAll(line, host, "NAME")
	}
	for _, u := range unsettled {
		line = u.what.ReplaceAllString(line, u.with)
	}
	return strings.TrimSpace(line)
}

var versionNumber = regexp.MustCompile(`\d+(\.\d+)+`)

// versionOf makes a client.version of a command that prints it first.
func versionOf(command ...string) func() string {
	return sync.OnceValue(func() string {
		out, _ := exec.Command(command[0], command[1:]...).CombinedOutput() // musl's loader ends with an error
		return versionNumber.FindString(string(out))
	})
}

func goVersion() string { return versionNumber.FindString(runtime.Version()) }

// muslVersion is what the loader says of itself; it is there although pipe does not need it.
func muslVersion() string {
	loaders, _ := filepath.Glob("/lib/ld-musl-*.so.1")
	if len(loaders) == 0 {
		return ""
	}
	return versionOf(loaders[0])()
}
