//go:build linux

package e2e

import (
	"strings"
	"testing"
	"time"
)

const tableMistakes = "mistakes"

// mistake is a request that is no good for another reason than its name.
type mistake struct {
	what   string
	layer  string   // of the decision
	reason string   // "": nobody has decided
	args   []string // of curl
	words  []string // that it says
}

var mistakes = []mistake{
	{
		what: "an address in place of the name", layer: "tls", reason: "no_name",
		args:  []string{"https://" + proxyHost + "/"},
		words: []string{"unrecognized name"},
	},
	{
		what: "the same, to the forward proxy", layer: "proxy", reason: "bad_name",
		args:  []string{"--include", "--proxy", proxyURL, "https://93.184.215.34/"},
		words: []string{"CONNECT tunnel failed, response 403", "X-Sandboxallow-Reason: bad_name"},
	},
	{
		what: "`http://` on port 443", layer: "tls", reason: "not_tls",
		args:  []string{"http://" + allowedHost + ":443/"},
		words: []string{"Empty reply from server"},
	},
	{
		what:  "`https://` on port 80",
		args:  []string{"https://" + allowedHost + ":80/"},
		words: []string{"curl: (35)"},
	},
	{
		what:  "a port on which the gateway does not listen",
		args:  []string{"https://" + allowedHost + ":8443/"},
		words: []string{"Failed to connect to ", "port 8443"},
	},
	{
		what: "a port that no rule lists, to the forward proxy", layer: "proxy", reason: "port_not_allowed",
		args:  []string{"--include", "--proxy", proxyURL, "https://" + allowedHost + ":8443/"},
		words: []string{"CONNECT tunnel failed, response 403", "X-Sandboxallow-Reason: port_not_allowed"},
	},
	{
		what: "the port of another listener in Host", layer: "http", reason: "bad_request",
		args:  []string{"--fail-with-body", "--header", "Host: " + allowedHost + ":8000", "http://" + allowedHost + "/"},
		words: []string{"The requested URL returned error: 400", "sandboxallow: bad_request: "},
	},
	{
		what: "the forward proxy taken for a server", layer: "proxy", reason: "bad_request",
		args:  []string{"--fail-with-body", proxyURL + "/"},
		words: []string{"The requested URL returned error: 400", "sandboxallow: bad_request: "},
	},
	{
		what: "`https://` to the forward proxy without CONNECT", layer: "proxy", reason: "bad_request",
		args:  []string{"--fail-with-body", "--proxy", proxyURL, "--request-target", "https://" + allowedHost + "/", "http://" + allowedHost + "/"},
		words: []string{"The requested URL returned error: 400", "sandboxallow: bad_request: "},
	},
	{
		what: "no TLS in a tunnel", layer: "proxy", reason: "not_tls",
		args:  []string{"--proxy", proxyURL, "--proxytunnel", "http://" + allowedHost + ":443/"},
		words: []string{"Empty reply from server"},
	},
	{
		what: "a tunnel to one name, and TLS with another", layer: "proxy", reason: "name_mismatch",
		args:  []string{"--proxy", proxyURL, "--connect-to", "::" + allowedHost + ":443", "https://" + evilHost + "/"},
		words: []string{"unrecognized name"},
	},
}

// What curl says when it is used in a way that no rule would make good.
func TestMistakes(t *testing.T) {
	c := clientNamed(t, "curl")
	l, g := httpLab(t, config{})
	c.ready(t, l)
	tables := readTables(t)
	var rows []string
	for _, m := range mistakes {
		rows = append(rows, m.what)
		t.Run(m.what, func(t *testing.T) {
			mark := g.caddy.log.mark()
			out, err := l.run(append(curl(l), m.args...)...)
			if err == nil {
				t.Fatalf("got %q, want a failure", out)
			}
			s, missing := sayingOf(said(err), allowedHost, m.words)
			if len(missing) != 0 {
				t.Errorf("curl says\n%v\nwant %q in it", err, missing)
			}
			cause := "nobody has decided"
			if m.reason == "" {
				time.Sleep(100 * time.Millisecond) // it would be there by now
			} else {
				cause = "`" + m.reason + "`"
				must(t, 5*time.Second, "a decision", func() bool { return len(g.decisions(mark)) > 0 })
			}
			ds := g.decisions(mark)
			if (len(ds) == 1) != (m.reason != "") || len(ds) == 1 && (ds[0].Verdict != "deny" || ds[0].Layer != m.layer || ds[0].Reason != m.reason) {
				t.Errorf("decisions %+v, want %s of layer %s", ds, cause, m.layer)
			}
			tables.compare(t, tableMistakes, m.what, c, s, m.command(), cause)
		})
	}
	tables.hasRows(t, tableMistakes, rows)
	tables.save(t)
}

// command is what a user would have typed.
func (m *mistake) command() string {
	line := "curl"
	for _, arg := range m.args {
		if arg = settled(arg, allowedHost); strings.Contains(arg, " ") {
			arg = "'" + arg + "'"
		}
		line += " " + strings.ReplaceAll(arg, evilHost, "OTHER")
	}
	return "`" + line + "`"
}
