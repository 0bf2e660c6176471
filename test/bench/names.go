package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
)

// The rules that all peers are given, in any number n: the even ones admit a single name, the odd ones a
// zone with all names below it. Their length does not depend on n, nor does that of the names that are asked
// for. All names are under RFC 6761 top-level domains, so none of them can be anybody's.

// rule returns the name that rule i is about.
func rule(i int) (name string, zone bool) {
	if i%2 == 0 {
		return fmt.Sprintf("api.site-%07d.example", i), false
	}
	return fmt.Sprintf("zone-%07d.test", i), true
}

// admitted returns a name that rule i admits. For a zone it is one below it, another one for each host.
func admitted(i, host int) string {
	name, zone := rule(i)
	if zone {
		return fmt.Sprintf("h%03d.%s", host%1000, name)
	}
	return name
}

// denied returns a name that no rule admits.
func denied(i int) string { return fmt.Sprintf("www.other-%07d.invalid", i%10_000_000) }

// writePolicy writes a policy of n rules into a folder, as a document with a list. The lines are those of
// the policy besides the list.
func writePolicy(dir string, n int, lines ...string) (path string, err error) {
	list, err := os.Create(filepath.Join(dir, "rules.txt"))
	if err != nil {
		return "", err
	}
	w := bufio.NewWriter(list)
	for i := range n {
		name, zone := rule(i)
		if zone {
			w.WriteByte('.')
		}
		fmt.Fprintln(w, name)
	}
	if err := w.Flush(); err != nil {
		return "", err
	}
	if err := list.Close(); err != nil {
		return "", err
	}
	text := "policy default {\n\tallow_list rules.txt\n"
	for _, line := range lines {
		text += "\t" + line + "\n"
	}
	path = filepath.Join(dir, "policy")
	return path, os.WriteFile(path, []byte(text+"}\n"), 0o600)
}
