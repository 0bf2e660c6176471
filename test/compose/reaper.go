//go:build linux

package compose

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

// reaper removes what test processes that ended badly left on the engine: by the time limit of go test, by a
// panic, by a signal. It is this program once more, and learns of the end by the end of its standard input.
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

// watch has a project removed at the end, or a folder if what is named is an absolute path.
func (r *reaperProcess) watch(name string) { fmt.Fprintln(r.stdin, name) }

// stop lets it finish its work.
func (r *reaperProcess) stop() {
	_ = r.stdin.Close()
	_ = r.cmd.Wait()
}

// reap is what the reaper does.
func reap(r io.Reader) (code int) {
	var names []string
	for lines := bufio.NewScanner(r); lines.Scan(); {
		names = append(names, lines.Text())
	}
	for _, name := range slices.Backward(names) { // the images last, when no container uses them
		remove := removeProject
		if name[0] == '/' {
			remove = os.RemoveAll
		}
		if err := remove(name); err != nil {
			fmt.Fprintln(os.Stderr, "reaper:", err)
			code = 1
		}
	}
	return code
}

// removeProject removes everything on the engine, and every rule of the host, that belongs to a project, and the
// images below its name.
func removeProject(project string) error {
	var errs []error
	networks, err := docker("network", "ls", "--format", "{{.Name}}", "--filter", projectLabel+project)
	errs = append(errs, err)
	for network := range strings.FieldsSeq(networks) {
		out, err := exec.Command("sh", "../../builds/compose/isolate.sh", "remove", network).CombinedOutput()
		if err != nil {
			errs = append(errs, fmt.Errorf("isolate.sh remove %s: %w: %s", network, err, out))
		}
	}
	for _, kind := range []struct {
		filter       string
		list, remove []string
	}{
		{projectLabel + project, []string{"ps", "--all"}, []string{"rm", "--force", "--volumes"}},
		{projectLabel + project, []string{"network", "ls"}, []string{"network", "rm"}},
		{projectLabel + project, []string{"volume", "ls"}, []string{"volume", "rm", "--force"}},
		{"reference=" + project + "/*", []string{"image", "ls"}, []string{"image", "rm", "--force"}},
	} {
		ids, err := docker(append(kind.list, "--quiet", "--filter", kind.filter)...)
		if err == nil && ids != "" {
			_, err = docker(append(kind.remove, strings.Fields(ids)...)...)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
