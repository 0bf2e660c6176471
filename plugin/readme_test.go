package sandboxallow

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"
)

// TestReadme starts every Corefile of the README and asks it for a name that it allows and one that it
// denies. Only ports and the path of the document are other ones than in the text.
func TestReadme(t *testing.T) {
	port := dnsserver.Port
	dnsserver.Port = "0"
	defer func() { dnsserver.Port = port }()

	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := writeFile(t, "policy", "policy default {\n\tallow api.openai.com github.com\n}\n\npolicy builds {\n\tclient 192.0.2.0/24\n\tallow api.openai.com github.com\n}\n")
	local := strings.NewReplacer(
		"/etc/sandboxallow/policy", doc,
		".:1053 {", ".:0 {",
		"localhost:9153", "localhost:0",
		"localhost:8181", "localhost:0",
	)
	examples := blocks(string(readme), "~~~ corefile")
	if len(examples) < 4 {
		t.Fatalf("got %d examples, want at least 4", len(examples))
	}
	for _, text := range examples {
		t.Run(strings.Join(strings.Fields(text)[:6], " "), func(t *testing.T) {
			inst, err := caddy.Start(corefile(local.Replace(text)))
			if err != nil {
				t.Fatalf("%v, for\n%s", err, text)
			}
			defer stopCoreDNS(inst)
			udp, _ := addrs(inst)
			allowed := "api.openai.com."
			if strings.Contains(text, "preset github") {
				allowed = "github.com."
			}
			got := exchange(t, "udp", udp, query(allowed, dns.TypeA, -1))
			if a := answers(got); a != "A 172.30.0.20" {
				t.Errorf("got %q for %s, want the gateway", a, allowed)
			}
			if rcode := rcodeOf(t, udp, "db.internal."); rcode != dns.RcodeNameError {
				t.Errorf("got %s for db.internal, want NXDOMAIN", dns.RcodeToString[rcode])
			}
		})
	}
}

// TestReadmeAnswers asks what the README asks with dig, and holds what is printed against it.
func TestReadmeAnswers(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	s := parseBlock(t, "answer 10.200.0.1\nallow github.com")
	asked := 0
	for _, text := range blocks(string(readme), "~~~ txt") {
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			qname, ok := strings.CutPrefix(line, "$ dig +short ")
			if !ok {
				continue
			}
			asked++
			got, _ := ask(t, s, "", query(strings.TrimSuffix(qname, " TXT")+".", dns.TypeTXT, 1232))
			want, _, short := strings.Cut("TXT "+lines[i+1], `9f2c..."`) // a hash that nobody can know
			if a := answers(got); a != want && !(short && strings.HasPrefix(a, want)) {
				t.Errorf("%s: got %s, want %s", qname, a, want)
			}
		}
	}
	if asked < 3 {
		t.Errorf("got %d questions, want at least 3", asked)
	}
}

// TestReadmeLog makes the line that the README shows.
func TestReadmeLog(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	logged := captureLog(t)
	s := parseBlock(t, "answer 10.200.0.1\nallow github.com")
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		ask(t, s, "172.30.0.5", query("example.org.", qtype, -1))
	}
	s.folder.Flush()
	for _, text := range blocks(string(readme), "~~~ txt") {
		if want := decisions(t, text); len(want) > 0 {
			if got := decisions(t, logged()); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			return
		}
	}
	t.Error("got no line in the README")
}

// blocks returns the fenced blocks of a Markdown text that begin with the line begin.
func blocks(text, begin string) []string {
	var all []string
	var block []string
	in := false
	for line := range strings.Lines(text) {
		switch trimmed := strings.TrimSpace(line); {
		case trimmed == begin:
			in, block = true, nil
		case in && trimmed == "~~~":
			in, all = false, append(all, strings.Join(block, ""))
		case in:
			block = append(block, line)
		}
	}
	return all
}

func TestReadmeSections(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(readme)) {
		if section, ok := strings.CutPrefix(strings.TrimSpace(line), "## "); ok {
			got = append(got, section)
		}
	}
	want := []string{"Name", "Description", "Syntax", "Reserved Names", "Log", "Metadata", "Metrics", "Ready", "Examples", "Compiling", "Bugs", "See Also"}
	if !slices.Equal(got, want) {
		t.Errorf("got sections %q, want %q", got, want)
	}
}
