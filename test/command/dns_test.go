package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/miekg/dns"
)

// corefile is a caddy.Input.
type corefile string

func (c corefile) Body() []byte       { return []byte(c) }
func (c corefile) Path() string       { return "Corefile" }
func (c corefile) ServerType() string { return "dns" }

// startDNS starts CoreDNS with a policy document, and returns its UDP address.
func startDNS(t *testing.T, document string) string {
	t.Helper()
	inst, err := caddy.Start(corefile(".:0 {\nbind 127.0.0.1\nsandboxallow {\nanswer 10.200.0.1 fd00::1\npolicy_file " + document + "\n}\n}"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		inst.ShutdownCallbacks()
		inst.Stop()
	})
	return inst.Servers()[0].LocalAddr().String()
}

// asked returns what a name server answers to a question for addresses, in the words of explain.
func asked(t *testing.T, server, name string) string {
	t.Helper()
	r, _, err := new(dns.Client).Exchange(new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA), server)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case r.Rcode == dns.RcodeNameError:
		return "NXDOMAIN"
	case r.Rcode != dns.RcodeSuccess:
		return dns.RcodeToString[r.Rcode]
	case len(r.Answer) > 0:
		return "the gateway's addresses"
	}
	return "NODATA"
}

// What explain says of DNS is what CoreDNS answers.
func TestExplainDNS(t *testing.T) {
	const rules = ` allow .example.com db.example.net:5432 *.below.example.org only.example.org
 deny  no.example.com .none.example.com ports.example.com:443 no.below.example.org
`
	for _, mode := range []string{"strict", "open", "learn"} {
		document := filepath.Join(t.TempDir(), "policy")
		if err := os.WriteFile(document, []byte("policy p {\n mode "+mode+"\n"+rules+"}\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		server := startDNS(t, document)
		for _, name := range strings.Fields(`example.com www.example.com no.example.com x.no.example.com none.example.com x.none.example.com
			ports.example.com db.example.net x.db.example.net example.net below.example.org x.below.example.org no.below.example.org
			x.no.below.example.org only.example.org x.only.example.org example.org com org test internal x.internal
			metadata.google.internal local www.example.edu`) {
			t.Run(mode+" "+name, func(t *testing.T) {
				out, err := exec.Command("caddy", "sandboxallow", "explain", "--policy-file", document, name).CombinedOutput()
				if s := statusOf(err); s != 0 && s != 1 {
					t.Fatalf("%v\n%s", err, out)
				}
				want := fmt.Sprintf("\ndns       %s", asked(t, server, name))
				if !strings.Contains(string(out), want) {
					t.Errorf("want%s, got\n%s", want, out)
				}
			})
		}
	}
}
