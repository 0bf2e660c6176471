// Package deps holds which way the arrows between packages point, so that a policy can be read without
// knowing DNS, the plugin builds without Caddy, and the gateway without CoreDNS.
package deps

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const (
	module  = "github.com/sandboxallow/sandboxallow"
	coreDNS = "github.com/coredns/coredns"
	caddyV1 = "github.com/coredns/caddy" // the server that CoreDNS is built on
	lexer   = caddyV1 + "/caddyfile"     // its lexer alone knows no server
	caddyV2 = "github.com/caddyserver/caddy/v2"
	layer4  = "github.com/mholt/caddy-l4"
)

// graph has, for each package by its import path, the packages that it imports, tests not counted.
type graph map[string][]string

// rule forbids that a package of from reaches, directly or not, a package of to that is not of except.
type rule struct {
	from, to, except []string // "path": that package, "path/...": it and everything below it
	why              string
}

func alone(name string) rule {
	tree := []string{module + "/internal/" + name + "/..."}
	return rule{from: tree, to: []string{module + "/..."}, except: tree, why: name + " imports nothing of ours"}
}

var rules = []rule{
	alone("policy"), alone("hello"), alone("postgres"), alone("tunnel"), alone("listener"),
	{
		from:   []string{module + "/internal/floor/..."},
		to:     []string{module + "/..."},
		except: []string{module + "/internal/floor/...", module + "/internal/policy", module + "/internal/listener"},
		why:    "floor needs what policy says of metadata addresses, what this process listens on, and nothing else",
	},
	{
		from:   []string{module + "/internal/decision/..."},
		to:     []string{module + "/..."},
		except: []string{module + "/internal/decision/...", module + "/internal/policy"},
		why:    "decision needs what policy decides, and nothing else",
	},
	{
		from:   []string{module + "/internal/..."},
		to:     []string{coreDNS + "/...", caddyV1 + "/...", caddyV2 + "/...", layer4 + "/..."},
		except: []string{lexer},
		why:    "internal knows neither CoreDNS nor Caddy",
	},
	{
		from:   []string{module + "/internal/..."},
		to:     []string{module + "/..."},
		except: []string{module + "/internal/..."},
		why:    "internal is what the others are built on",
	},
	{
		from: []string{module + "/plugin/..."},
		to:   []string{caddyV2 + "/...", layer4 + "/...", module, module + "/caddymodule/..."},
		why:  "the plugin builds into any CoreDNS, without Caddy",
	},
	{
		from: []string{module + "/caddymodule/...", module},
		to:   []string{coreDNS + "/...", module + "/plugin/..."},
		why:  "the modules build into any Caddy, without CoreDNS",
	},
}

// match reports whether a pattern names a package.
func match(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		dir, below := strings.CutSuffix(p, "/...")
		return pkg == dir || below && strings.HasPrefix(pkg, dir+"/")
	})
}

// violations returns a line for each forbidden package that a rule's package reaches: the shortest way to it.
func violations(g graph, r rule) []string {
	var out []string
	for from := range g {
		if !match(r.from, from) {
			continue
		}
		via := map[string]string{from: ""}
		for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
			for _, to := range g[queue[0]] {
				if _, seen := via[to]; seen {
					continue
				}
				via[to] = queue[0]
				if match(r.to, to) && !match(r.except, to) {
					way := to
					for p := queue[0]; p != ""; p = via[p] {
						way = p + " -> " + way
					}
					out = append(out, way)
					continue // what lies behind a forbidden package is its own affair
				}
				queue = append(queue, to)
			}
		}
	}
	slices.Sort(out)
	return out
}

func TestArrows(t *testing.T) {
	g := load(t)
	for _, r := range rules {
		t.Run(r.why, func(t *testing.T) {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(g)), func(pkg string) bool { return match(r.from, pkg) }) {
				t.Fatalf("got no package of %v: has it moved?", r.from)
			}
			for _, v := range violations(g, r) {
				t.Errorf("got %s", v)
			}
		})
	}
}

// TestViolations shows that the checker fails where it should.
func TestViolations(t *testing.T) {
	const internal = module + "/internal/"
	for _, tc := range []struct {
		name string
		g    graph
		want string // the end of the one violation; "" for none
	}{
		{"policy uses the lexer", graph{internal + "policy": {"fmt", lexer}, lexer: {"io"}}, ""},
		{"policy uses the server behind the lexer", graph{internal + "policy": {caddyV1}}, internal + "policy -> " + caddyV1},
		{"the lexer brings in the server", graph{internal + "policy": {lexer}, lexer: {caddyV1}}, lexer + " -> " + caddyV1},
		{"policy uses floor", graph{internal + "policy": {internal + "floor"}}, "policy -> " + internal + "floor"},
		{"hello uses policy", graph{internal + "hello": {internal + "policy"}}, "hello -> " + internal + "policy"},
		{"tunnel uses policy by a friend", graph{internal + "tunnel": {"example.org/x"}, "example.org/x": {internal + "policy"}}, "example.org/x -> " + internal + "policy"},
		{"floor uses policy", graph{internal + "floor": {internal + "policy"}}, ""},
		{"floor uses hello", graph{internal + "floor": {internal + "hello"}}, "floor -> " + internal + "hello"},
		{"decision uses policy", graph{internal + "decision": {internal + "policy"}}, ""},
		{"decision uses floor", graph{internal + "decision": {internal + "floor"}}, "decision -> " + internal + "floor"},
		{"policy uses decision", graph{internal + "policy": {internal + "decision"}}, "policy -> " + internal + "decision"},
		{"upstream uses policy and floor", graph{internal + "upstream": {internal + "policy", internal + "floor"}}, ""},
		{"upstream uses CoreDNS", graph{internal + "upstream": {coreDNS + "/plugin/pkg/up"}}, "upstream -> " + coreDNS + "/plugin/pkg/up"},
		{"upstream uses Caddy", graph{internal + "upstream": {caddyV2}}, "upstream -> " + caddyV2},
		{"upstream uses caddymodule", graph{internal + "upstream": {module + "/caddymodule"}}, "upstream -> " + module + "/caddymodule"},
		{"plugin uses CoreDNS", graph{module + "/plugin": {coreDNS + "/plugin", caddyV1, internal + "policy"}}, ""},
		{"plugin uses Caddy", graph{module + "/plugin": {"example.org/x"}, "example.org/x": {caddyV2 + "/modules/caddytls"}}, "example.org/x -> " + caddyV2 + "/modules/caddytls"},
		{"plugin uses layer4", graph{module + "/plugin": {layer4 + "/layer4"}}, "plugin -> " + layer4 + "/layer4"},
		{"plugin uses the root", graph{module + "/plugin": {module}}, "plugin -> " + module},
		{"caddymodule uses Caddy and the lexer", graph{module + "/caddymodule": {caddyV2, layer4 + "/layer4", internal + "policy"}, internal + "policy": {lexer}}, ""},
		{"caddymodule uses CoreDNS", graph{module + "/caddymodule": {coreDNS + "/plugin"}}, "caddymodule -> " + coreDNS + "/plugin"},
		{"the root uses plugin", graph{module: {module + "/plugin"}}, module + " -> " + module + "/plugin"},
		{"a name that only begins alike", graph{module + "/plugin": {caddyV2 + "x"}}, ""},
		{"a circle", graph{internal + "hello": {"a"}, "a": {"b"}, "b": {"a"}}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, r := range rules {
				got = append(got, violations(tc.g, r)...)
			}
			if tc.want == "" && len(got) > 0 {
				t.Errorf("got %v, want none", got)
			}
			if tc.want != "" && (len(got) == 0 || !strings.HasSuffix(got[0], tc.want)) {
				t.Errorf("got %v, want one that ends in %s", got, tc.want)
			}
		})
	}
}

// load reads the graph of all packages of the module and of what they need.
func load(t *testing.T) graph {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports", module+"/...")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g := graph{}
	for d := json.NewDecoder(out); ; {
		var pkg struct {
			ImportPath string
			Imports    []string
		}
		err := d.Decode(&pkg)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		g[pkg.ImportPath] = pkg.Imports
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &stderr)
	}
	return g
}
