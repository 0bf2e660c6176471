//go:build linux

package compose

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// folder is where the files under test are.
const folder = "../../builds/compose"

// deployment is one Compose project: a copy of builds/compose, of which some files are in use, and an overlay of
// the lab's.
type deployment struct {
	tb      testing.TB
	project string
	dir     string
	env     []string // of the docker client
	lab     lab
	started []string // containers beside the file
}

// deploy prepares a project and starts nothing. At the end of the test everything of it is removed.
func deploy(tb testing.TB, name string, l lab, files ...string) *deployment {
	tb.Helper()
	d := &deployment{tb: tb, project: suite.name + "-" + name, dir: filepath.Join(suite.dir, name), lab: l}
	if err := os.CopyFS(d.dir, os.DirFS(folder)); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.dir, "lab.yaml"), []byte(l.yaml()), 0o644); err != nil {
		tb.Fatal(err)
	}
	d.env = append(clientEnv(),
		"COMPOSE_PROJECT_NAME="+d.project,
		"COMPOSE_FILE="+strings.Join(append(files, "lab.yaml"), ":"),
		"SANDBOXALLOW_COREDNS_IMAGE="+suite.coredns,
		"SANDBOXALLOW_CADDY_IMAGE="+suite.caddy,
		"SANDBOXALLOW_RESOLVERS="+l.internet().String(),
		"SANDBOX_NETWORK="+d.project+"_sandboxes",
		"SANDBOX_IMAGE="+suite.machine,
		// With its options: what the pages in docs put after $IMAGE runs in a machine.
		"IMAGE="+strings.Join(append(machineOptions(), suite.machine), " "),
	)
	reaper.watch(d.project)
	tb.Cleanup(func() {
		if tb.Failed() {
			out, err := d.sh("docker compose ps --all; docker compose logs --no-color --tail 15")
			tb.Logf("%s: %v\n%s", d.project, err, out)
		}
		if err := removeProject(d.project); err != nil {
			tb.Error(err)
		}
		if left, err := docker("ps", "--all", "--quiet", "--filter", projectLabel+d.project); err != nil || left != "" {
			tb.Errorf("containers are left: %s %v", left, err)
		}
	})
	return d
}

// sh runs a script in the folder of the deployment and returns all that it wrote.
func (d *deployment) sh(script string) (string, error) {
	cmd := exec.Command("sh", "-eu", "-c", script)
	cmd.Dir, cmd.Env = d.dir, d.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return string(out), err
}

// up starts the project and waits until every service that can tell is healthy.
func (d *deployment) up() {
	d.tb.Helper()
	if _, err := d.sh("docker compose up --detach --wait --wait-timeout 60"); err != nil {
		d.tb.Fatal(err)
	}
}

// container returns the id of the container of a service.
func (d *deployment) container(service string) string {
	d.tb.Helper()
	id, err := d.sh("docker compose ps --quiet " + service)
	if id = strings.TrimSpace(id); err != nil || id == "" {
		d.tb.Fatalf("service %s has no container: %v", service, err)
	}
	return id
}

// inspect reads a property of a container or a network, by a Go template.
func (d *deployment) inspect(what, format string, v any) {
	d.tb.Helper()
	out, err := docker("inspect", "--format", "{{json "+format+"}}", what)
	if err == nil {
		err = json.Unmarshal([]byte(out), v)
	}
	if err != nil {
		d.tb.Fatalf("%s of %s: %v", format, what, err)
	}
}

// arrived returns what came to the internet that begins with the words of prefix.
func (d *deployment) arrived(prefix string) (lines []string) {
	d.tb.Helper()
	out, err := docker("logs", d.container("internet"))
	if err != nil {
		d.tb.Fatal(err)
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, prefix+" ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// replace puts a file in the place of one of the deployment's, by rename.
func (d *deployment) replace(name, content string) {
	d.tb.Helper()
	path := filepath.Join(d.dir, name)
	if err := os.WriteFile(path+".tmp", []byte(content), 0o644); err != nil {
		d.tb.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		d.tb.Fatal(err)
	}
}

// sandbox is a container that is a machine, in which the tests are the attacker.
type sandbox struct {
	d  *deployment
	id string
}

// sandbox returns the sandbox that is a service of the file.
func (d *deployment) sandbox(service string) sandbox { return sandbox{d, d.container(service)} }

// start starts a sandbox beside the file, with options of `docker run`.
func (d *deployment) start(options ...string) sandbox {
	d.tb.Helper()
	args := append([]string{"run", "--detach", "--label", strings.TrimPrefix(projectLabel, "label=") + d.project}, options...)
	args = append(args, machineOptions()...)
	id, err := docker(append(args, suite.machine, "sleep", "infinity")...)
	if err != nil {
		d.tb.Fatal(err)
	}
	d.started = append(d.started, id)
	return sandbox{d, id}
}

// end removes what start has started.
func (d *deployment) end() {
	d.tb.Helper()
	if _, err := docker(append([]string{"rm", "--force"}, d.started...)...); err != nil {
		d.tb.Fatal(err)
	}
	d.started = nil
}

// serve starts a web server in a sandbox and returns its address and port.
func (s sandbox) serve(network string) string {
	s.d.tb.Helper()
	if _, err := docker("exec", "--detach", s.id, "/usr/bin/python3", "-m", "http.server", "--directory", "/tmp", "--bind", "::", "9000"); err != nil {
		s.d.tb.Fatal(err)
	}
	addr := s.addr(network) + ":9000"
	must(s.d.tb, 10*time.Second, "a server in the sandbox", func() bool { return s.probe("tcp", addr) == probeConnected })
	return addr
}

// addr is the address of a sandbox on the network of the project whose name ends so.
func (s sandbox) addr(network string) (addr string) {
	s.d.tb.Helper()
	s.d.inspect(s.id, fmt.Sprintf("(index .NetworkSettings.Networks %q).IPAddress", s.d.project+network), &addr)
	return addr
}

// run runs a program in a sandbox, at most half a minute. It returns what it wrote to standard output, or an
// error with all that it wrote; and how long it took, starting it included.
func (s sandbox) run(args ...string) (string, time.Duration, error) {
	cmd := exec.Command("docker", append([]string{"exec", s.id, "timeout", "30"}, args...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	if err != nil {
		err = fmt.Errorf("%s: %w: %s%s", strings.Join(args, " "), err, &said, &out)
	}
	return out.String(), took, err
}

// probe runs the probe in a sandbox.
func (s sandbox) probe(args ...string) string {
	s.d.tb.Helper()
	out, _, err := s.run(append([]string{"env", roleVar + "=" + roleProbe, "/lab/self"}, args...)...)
	if err != nil {
		s.d.tb.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// curl fetches a URL with curl, which says nothing but what went wrong.
func (s sandbox) curl(url string, options ...string) (string, time.Duration, error) {
	return s.run(append(append([]string{"curl", "--silent", "--show-error", "--max-time", "25"}, options...), url)...)
}
