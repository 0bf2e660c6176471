package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const manual = "../../caddymodule/commands.md"

// block is a fenced block of a Markdown text.
type block struct {
	info string // what stands behind the fence, such as "console"
	text string
}

func blocks(markdown string) []block {
	var all []block
	in := false
	for line := range strings.Lines(markdown) {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && in:
			in = false
		case fence:
			in = true
			all = append(all, block{info: strings.TrimSpace(info)})
		case in:
			all[len(all)-1].text += line
		}
	}
	return all
}

// TestManual runs the commands of the manual, one after the other in one directory, and compares what they
// print. A block with a second word behind the fence is a file of that name. A Caddy runs, for those that ask one.
func TestManual(t *testing.T) {
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	for _, log := range []string{"sandboxallow.log", "coredns.log"} {
		if err := os.Symlink(filepath.Join(recorded, log), log); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile("Caddyfile", []byte("{\n\tadmin unix/"+adminSocket+"\n\tskip_install_trust\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	stop, err := startCaddy(dir, os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	ran := make(map[string]bool)
	status := 0
	for _, b := range blocks(string(text)) {
		if _, file, ok := strings.Cut(b.info, " "); ok {
			if err := os.WriteFile(file, []byte(b.text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if b.info != "console" {
			continue
		}
		for _, step := range strings.Split("\n"+b.text, "\n$ ")[1:] {
			command, want, _ := strings.Cut(step, "\n")
			if command == "echo $?" {
				command = fmt.Sprint("echo ", status)
			}
			got, err := exec.Command("sh", "-c", command).CombinedOutput()
			status = statusOf(err)
			if strings.TrimRight(string(got), "\n") != strings.TrimRight(want, "\n") {
				t.Errorf("$ %s\n%s\nwant\n%s", command, got, want)
			}
			if w := strings.Fields(command); len(w) > 2 && w[1] == "sandboxallow" {
				ran[w[2]] = true
			}
		}
	}
	for _, name := range commands(t) {
		if name != "doctor" && !ran[name] { // which has a page of its own
			t.Errorf("no example of %s", name)
		}
	}
}

// commands returns the names of all subcommands.
func commands(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("caddy", "sandboxallow", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(out), "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	var names []string
	for l := range strings.Lines(list) {
		names = append(names, strings.Fields(l)[0])
	}
	if len(names) < 6 {
		t.Fatalf("got commands %q", names)
	}
	return names
}

// TestHelp holds what an operator looks for in the help of each command, and that it fits a terminal.
func TestHelp(t *testing.T) {
	for _, name := range commands(t) {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command("caddy", "sandboxallow", name, "--help").Output()
			if err != nil {
				t.Fatal(err)
			}
			help := string(out)
			for _, want := range []string{"\nUsage:\n  caddy sandboxallow " + name, "\nExamples:\n  $ ", "\nThe exit status is 0", "\nFlags:\n"} {
				if !strings.Contains(help, want) {
					t.Errorf("no %q in\n%s", want, help)
				}
			}
			text, _, _ := strings.Cut(help, "\nUsage:")
			for l := range strings.Lines(text) {
				if len(l) > 81 {
					t.Errorf("%d columns: %s", len(l)-1, l)
				}
			}
		})
	}
}
