package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// program is what Debian packages.
type program struct {
	name string
	pkg  string   // the package, or several
	file string   // that has to be there besides, if not empty
	asks []string // arguments that have it print its version in the first line
}

var (
	nginxProgram    = program{"nginx", "nginx libnginx-mod-stream", nginxStream, []string{"-v"}}
	haproxyProgram  = program{"haproxy", "haproxy", "", []string{"-v"}}
	sniproxyProgram = program{"sniproxy", "sniproxy", "", []string{"-V"}}
	dnsmasqProgram  = program{"dnsmasq", "dnsmasq-base", "", []string{"--version"}}
	unboundProgram  = program{"unbound", "unbound", "", []string{"-V"}}
	squidProgram    = program{"squid", "squid", "", []string{"-v"}}
	dnsperfProgram  = program{"dnsperf", "dnsperf", "", []string{"-h"}}

	programs = []program{nginxProgram, haproxyProgram, sniproxyProgram, dnsmasqProgram, unboundProgram, squidProgram, dnsperfProgram}
)

// nginxStream is where Debian has the module.
const nginxStream = "/usr/lib/nginx/modules/ngx_stream_module.so"

// errNotInstalled is wrapped by the error of a program that is not on this machine.
var errNotInstalled = errors.New("not installed")

// find returns the path of the program.
func (p program) find() (string, error) {
	path, err := exec.LookPath(p.name)
	if errors.Is(err, exec.ErrNotFound) {
		path, err = exec.LookPath("/usr/sbin/" + p.name) // not in the path of most users
	}
	if err != nil {
		return "", fmt.Errorf("%w: no %s, try apt-get install %s", errNotInstalled, p.name, p.pkg)
	}
	if p.file != "" {
		if _, err := os.Stat(p.file); err != nil {
			return "", fmt.Errorf("%w: no %s, try apt-get install %s", errNotInstalled, p.file, p.pkg)
		}
	}
	return path, nil
}

// version is the first line that the program prints when it is asked.
func (p program) version(path string) (string, error) {
	out, err := exec.Command(path, p.asks...).CombinedOutput()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if line == "" {
		return "", fmt.Errorf("%s %s: %w", path, strings.Join(p.asks, " "), err)
	}
	line = strings.TrimPrefix(line, "nginx version: ")
	line, _, _ = strings.Cut(line, "  Copyright") // of dnsmasq
	line, _, _ = strings.Cut(line, " - http")     // of haproxy
	return strings.TrimSpace(line), nil
}

// install installs with apt-get what is missing: as root, else it says what to type. Debian may start the services of
// what it installs; none of them is used here. That nothing is installed is
// no error, the peers in question say so themselves.
func install(ctx context.Context, programs []program, say func(format string, a ...any)) {
	var missing []string
	for _, p := range programs {
		if _, err := p.find(); err != nil {
			missing = append(missing, strings.Fields(p.pkg)...)
		}
	}
	if len(missing) == 0 {
		return
	}
	command := append([]string{"apt-get", "install", "-q", "-y", "--no-install-recommends"}, missing...)
	if os.Geteuid() != 0 {
		say("not installed, and not measured; as root: %s", strings.Join(command, " "))
		return
	}
	for _, command := range [][]string{{"apt-get", "update", "-q"}, command} {
		say("running %s", strings.Join(command, " "))
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if err := quietly(cmd); err != nil {
			say("%v", err)
			return
		}
	}
}
