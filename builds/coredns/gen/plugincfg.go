package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	// anchor is the stock line after which our own stands: behind rewrite, autopath and acl, so that the
	// final name is checked, and before cache, so that no cached answer outlives a change of policy.
	anchor = "acl:acl"
	// ourLine is the one line that our plugin.cfg has and the stock one lacks.
	ourLine = "sandboxallow:github.com/sandboxallow/sandboxallow/plugin"
)

// plugin is one line of a plugin.cfg: the directive and the import path of the package behind it.
type plugin struct {
	name, path string
}

// check returns the plugins of our plugin.cfg in their order, once it is known to be the stock file plus
// our line, directly after the anchor.
func check(ours, stock string) ([]plugin, error) {
	if _, err := parse("the stock plugin.cfg", stock); err != nil {
		return nil, err
	}
	plugins, err := parse("plugin.cfg", ours)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(lines(stock), anchor) {
		return nil, fmt.Errorf("the stock plugin.cfg has no line %q any more: choose the line after which %q must stand", anchor, ourLine)
	}
	text := lines(ours)
	i := slices.Index(text, ourLine)
	if i < 0 {
		return nil, fmt.Errorf("plugin.cfg lacks the line %q", ourLine)
	}
	if i == 0 || text[i-1] != anchor {
		return nil, fmt.Errorf("plugin.cfg:%d: %q must stand directly after %q", i+1, ourLine, anchor)
	}
	if err := checkOrder(plugins); err != nil {
		return nil, err
	}
	// Compared as text and not as plugins: a comment that changed may be a warning about the order.
	if strings.Replace(ours, ourLine+"\n", "", 1) != stock {
		return nil, fmt.Errorf("plugin.cfg minus our line is not the stock plugin.cfg, take over what changed:\n%s", difference(ours, stock))
	}
	return plugins, nil
}

// checkOrder holds what the anchor stands for: what rewrites a question runs before us, and what answers
// it out of a memory of its own runs after.
func checkOrder(plugins []plugin) error {
	at := map[string]int{}
	for i, p := range plugins {
		at[p.name] = i + 1
	}
	us := at["sandboxallow"]
	for _, before := range []string{"rewrite", "autopath", "acl"} {
		if at[before] == 0 || at[before] > us {
			return fmt.Errorf("plugin.cfg: %s must run before sandboxallow: choose another anchor", before)
		}
	}
	if at["cache"] < us {
		return errors.New("plugin.cfg: cache must run after sandboxallow: choose another anchor")
	}
	return nil
}

// parse reads the lines NAME:PACKAGE of a plugin.cfg. A package without a host name is one of CoreDNS.
func parse(file, text string) ([]plugin, error) {
	var plugins []plugin
	seen := map[string]int{} // name to line
	for i, line := range lines(text) {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, path, ok := strings.Cut(line, ":")
		if !ok || name == "" || path == "" || strings.Contains(path, ":") {
			return nil, fmt.Errorf("%s:%d: %q, the accepted form is NAME:PACKAGE", file, i+1, line)
		}
		if n, ok := seen[name]; ok {
			return nil, fmt.Errorf("%s:%d: %q already stands on line %d", file, i+1, name, n)
		}
		seen[name] = i + 1
		if host, _, _ := strings.Cut(path, "/"); !strings.Contains(host, ".") {
			path = coreDNS + "/plugin/" + path
		}
		plugins = append(plugins, plugin{name: name, path: path})
	}
	if len(plugins) == 0 {
		return nil, errors.New(file + " names no plugin")
	}
	return plugins, nil
}

// difference lists the lines that only one of the two files has, ours not counted, or else where their
// order differs.
func difference(ours, stock string) string {
	a, b := lines(ours), lines(stock)
	out := append(surplus("only in ours", a, append(b, ourLine)), surplus("only in stock", b, a)...)
	if len(out) > 0 {
		return strings.Join(out, "\n")
	}
	a = slices.DeleteFunc(a, func(line string) bool { return line == ourLine })
	for i := range a { // as long as b: neither has a line that the other lacks
		if a[i] != b[i] {
			return fmt.Sprintf("  other order from line %d of stock on: ours %q, stock %q", i+1, a[i], b[i])
		}
	}
	return "  one of the two does not end in a line feed"
}

// surplus lists the lines of a that b has less often.
func surplus(what string, a, b []string) []string {
	left := map[string]int{}
	for _, line := range b {
		left[line]++
	}
	var out []string
	for i, line := range a {
		if left[line]--; left[line] < 0 {
			out = append(out, fmt.Sprintf("  %s, line %d: %q", what, i+1, line))
		}
	}
	return out
}

func lines(text string) []string {
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
