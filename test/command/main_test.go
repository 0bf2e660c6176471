// Package command runs the subcommands of `caddy sandboxallow` as an operator does: as a program, with files,
// looking at what it prints and at its exit status.
package command

import (
	"errors"
	"io"
	golog "log"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/rogpeppe/go-internal/testscript"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/sandboxallow/sandboxallow"
	_ "github.com/sandboxallow/sandboxallow/plugin"
)

func TestMain(m *testing.M) {
	caddy.Quiet, dnsserver.Quiet = true, true
	golog.SetOutput(io.Discard) // what CoreDNS logs
	d := slices.Clone(dnsserver.Directives)
	dnsserver.Directives = slices.Insert(d, slices.Index(d, "acl")+1, "sandboxallow") // as builds/coredns does
	testscript.Main(m, map[string]func(){"caddy": caddycmd.Main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status": status,
			"serve":  serve,
		},
		Condition: func(cond string) (bool, error) {
			if cond != "stock-config" { // what a Caddy on this machine would run
				return false, errors.New("unknown condition")
			}
			_, err := os.Stat("/etc/caddy/Caddyfile")
			return err == nil, nil
		},
	})
}

// status is a command of scripts: `status N program argument...` runs a program that has to end with status N.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N program argument...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := statusOf(ts.Exec(args[1], args[2:]...)); got != want {
		ts.Fatalf("got status %d, want %d", got, want)
	}
}

// statusOf returns the exit status that a command has ended with, -1 if it has not.
func statusOf(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}
