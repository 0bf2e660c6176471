//go:build linux

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// A configuration that cannot be what was meant stops the start of both binaries, and says where.
func TestStart(t *testing.T) {
	l := newLab(t)
	const good = "policy default {\n\tallow api.example.com\n}\n"
	for _, tc := range []struct {
		name   string
		policy string // "" and no file is written
		option string // a further line for the plugin and for the handler
		says   string // %s is the path of the policy document
	}{
		{"unknown word", "policy default {\n\tallow api.example.com\n\tallwo www.example.org\n}\n", "", "%s:3"},
		{"bad rule", "policy default {\n\tallow https://api.example.com/\n}\n", "", "%s:2"},
		{"address", "policy default {\n\tallow 10.0.0.5\n}\n", "", "%s:2"},
		{"missing list", "policy default {\n\tallow api.example.com\n\tallow_list nowhere.txt\n}\n", "", "%s:3"},
		{"private for metadata only", "policy default {\n\tprivate 169.254.169.254/32\n}\n", "", "%s:2"},
		{"two without a client line", good + "policy second {\n}\n", "", "%s:4"},
		{"empty", "\n", "", "%s"},
		{"not closed", "policy default {\n\tallow api.example.com\n", "", "%s:1"},
		{"missing", "", "", "%s"},
		{"listener policy", good, "policy nobody", "nobody"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := l.prepare(t, config{policy: tc.policy, plugin: tc.option, handler: tc.option})
			if tc.policy == "" {
				if err := os.Remove(g.policyFile); err != nil {
					t.Fatal(err)
				}
			}
			says := tc.says
			if strings.Contains(says, "%s") {
				says = fmt.Sprintf(says, g.policyFile)
			}
			for _, p := range []*process{g.startCoreDNS(t, nil), g.startCaddy(t, config{})} {
				if code := p.ended(t, startTimeout); code == 0 {
					t.Errorf("%s ended with code 0", p.name)
				}
				if lines := p.log.with(0, says); len(lines) == 0 {
					t.Errorf("%s does not say %q:\n%s", p.name, says, p.log.tail(5))
				}
				// A listener's fault is in the file that has the listener.
				file := map[string]string{"coredns": "Corefile:", "caddy": "Caddyfile:"}[p.name]
				if tc.option != "" && len(p.log.with(0, file)) == 0 {
					t.Errorf("%s does not say where in the %s", p.name, file)
				}
			}
		})
	}
}

// A document whose last line is not complete is taken at start, with a warning.
func TestStartIncomplete(t *testing.T) {
	l := newLab(t)
	g := l.start(t, config{policy: "policy default {\n\tallow api.example.com\n}"})
	for _, p := range []*process{g.coredns, g.caddy} {
		must(t, 5*time.Second, p.name+" warns of the last line", func() bool { return len(p.log.with(0, "line end")) > 0 })
	}
}
