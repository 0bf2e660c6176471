//go:build linux

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// reaper removes the namespaces of a test process that ended without doing so: by the time limit of go test,
// by a panic in a goroutine, by a signal. It is this program once more, and learns of the end by the end of
// its standard input.
var reaper reaperProcess

type reaperProcess struct {
	stdin io.WriteCloser
	cmd   *exec.Cmd
}

func (r *reaperProcess) start() error {
	r.cmd = exec.Command("/proc/self/exe")
	r.cmd.Env = append(os.Environ(), roleVar+"="+roleReaper)
	r.cmd.Stderr = os.Stderr
	// A Ctrl-C at the terminal ends the test, not its reaper.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		return err
	}
	return r.cmd.Start()
}

// watch has a namespace, or a folder if the name has a slash, removed at the end.
func (r *reaperProcess) watch(name string) {
	if r.stdin != nil {
		fmt.Fprintln(r.stdin, name)
	}
}

// stop lets it finish its work.
func (r *reaperProcess) stop() {
	if r.stdin != nil {
		_ = r.stdin.Close()
		_ = r.cmd.Wait()
	}
}

// reap is what the reaper does.
func reap(r io.Reader) {
	var names []string
	for lines := bufio.NewScanner(r); lines.Scan(); {
		names = append(names, lines.Text())
	}
	for _, name := range names {
		if name[0] == '/' {
			_ = os.RemoveAll(name)
		} else {
			removeNamespace(name)
		}
	}
}
