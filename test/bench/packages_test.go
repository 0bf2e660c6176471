package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestInstall has something else be apt-get.
func TestInstall(t *testing.T) {
	there := program{name: "sh", pkg: "dash"}
	absent := program{name: "no-such-program", pkg: "no-such-package and-a-module"}
	half := program{name: "sh", pkg: "half-a-package", file: "/no/such/file"}
	for _, tc := range []struct {
		name     string
		programs []program
		fails    bool
		want     string // packages; nothing is run if empty
	}{
		{"nothing missing", []program{there}, false, ""},
		{"missing", []program{there, absent, half}, false, "no-such-package and-a-module half-a-package"},
		{"fails", []program{absent}, true, "no-such-package and-a-module"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			ran := filepath.Join(dir, "ran")
			script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >>%s\n", ran)
			if tc.fails {
				script += "echo no network; exit 100\n"
			}
			if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			var said strings.Builder
			install(t.Context(), tc.programs, func(format string, a ...any) { fmt.Fprintf(&said, format+"\n", a...) })
			commands, _ := os.ReadFile(ran)
			switch {
			case tc.want == "" && (len(commands) > 0 || said.Len() > 0):
				t.Errorf("ran %s, said %s, want nothing", commands, &said)
			case tc.want != "" && os.Geteuid() != 0 && (len(commands) > 0 || !strings.Contains(said.String(), "as root: apt-get install")):
				t.Errorf("ran %s, said %s, want to be told what to run as root", commands, &said)
			case tc.want != "" && os.Geteuid() == 0 && !tc.fails && !strings.HasSuffix(string(commands), "--no-install-recommends "+tc.want+"\n"):
				t.Errorf("ran %s, want an installation of %s", commands, tc.want)
			case tc.fails && os.Geteuid() == 0 && !strings.Contains(said.String(), "no network"):
				t.Errorf("said %s, want what apt-get said", &said)
			}
		})
	}
}

func TestFind(t *testing.T) {
	_, err := program{name: "no-such-program", pkg: "no-such-package"}.find()
	if err == nil || !strings.Contains(err.Error(), "try apt-get install no-such-package") {
		t.Errorf("got %v, want what to install", err)
	}
}
