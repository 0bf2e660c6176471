// Command gen turns plugin.cfg into the two files that make the binary: zplugin.go, which imports every
// plugin, and zdirectives.go, which holds the order in which they run. It runs in the folder of
// plugin.cfg, by `go generate`.
//
// It exists because the generator of CoreDNS itself is no filter's friend: it ignores a line that it
// cannot read, and appends what COREDNS_PLUGINS names behind the plugins that answer. Here each of these
// is an error, and so is a stock plugin.cfg that changed under us.
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
)

const coreDNS = "github.com/coredns/coredns"

func main() {
	log.SetFlags(0)
	log.SetPrefix("gen: ")
	files, err := generate(".")
	if err != nil {
		log.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// generate returns the generated files of the build in dir, by name.
func generate(dir string) (map[string][]byte, error) {
	ours, err := os.ReadFile(filepath.Join(dir, "plugin.cfg"))
	if err != nil {
		return nil, err
	}
	stock, err := stockConfig()
	if err != nil {
		return nil, err
	}
	plugins, err := check(string(ours), string(stock))
	if err != nil {
		return nil, err
	}
	imports, err := renderImports(plugins)
	if err != nil {
		return nil, err
	}
	directives, err := renderDirectives(plugins)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"zplugin.go": imports, "zdirectives.go": directives}, nil
}

// stockConfig reads plugin.cfg of the CoreDNS that go.mod names, out of the module cache.
func stockConfig() ([]byte, error) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", coreDNS)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m %s: %w", coreDNS, err)
	}
	dir := string(bytes.TrimSpace(out))
	if dir == "" {
		return nil, fmt.Errorf("%s is not in the module cache, run `go mod download %s`", coreDNS, coreDNS)
	}
	return os.ReadFile(filepath.Join(dir, "plugin.cfg"))
}
