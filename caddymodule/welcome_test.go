package caddymodule

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/sandboxallow/sandboxallow/internal/decision"
)

func TestWelcome(t *testing.T) {
	const policies = `policy default {
	preset npm
	allow  .example.com x.example:8443
	deny   no.example.com
}
policy research {
	client 127.0.0.9
	mode   learn
	ports  443
	private 127.0.0.2/32
}
policy nothing {
	client 127.0.0.10
}
`
	g := startHTTP(t, setup{document: policies, sites: []string{
		"sandboxallow", transparentSite, "sandboxallow {\npolicy research\n}", forwardProxy,
	}})
	port := func(site int) string {
		_, port, _ := net.SplitHostPort(g.addrs[site])
		return port
	}
	ask := func(site int, from, host string, fields ...string) response {
		return g.dial(site, from).get(append([]string{"GET / HTTP/1.1", "Host: " + host}, fields...)...)
	}

	t.Run("text", func(t *testing.T) {
		r := ask(0, "127.0.0.1", g.addrs[0])
		const want = `This is sandboxallow, the way out of this sandbox. It leads to the names that a policy allows, and
nowhere else.

your address  127.0.0.1
your policy   default, mode strict
ports         80 443, unless a rule names its own

It allows, but for what it denies:

    the preset npm
    .example.com
    x.example:8443

example.com is that name only, .example.com also what is below it, *.example.com only what is below it.

Why a name is denied, and what would allow it, the name server says:

    dig +short TXT NAME.why.sandboxallow
`
		if r.status != 200 || r.body != want || r.header.Get("Content-Type") != "text/plain; charset=utf-8" || r.reason() != "" {
			t.Errorf("got %d %v\n%s", r.status, r.header, r.body)
		}
	})
	t.Run("JSON", func(t *testing.T) {
		r := ask(0, "127.0.0.9", g.addrs[0], "Accept: application/json")
		var got welcome
		if err := json.Unmarshal([]byte(r.body), &got); err != nil || r.header.Get("Content-Type") != "application/json" {
			t.Fatalf("%v: %v %s", err, r.header, r.body)
		}
		want := welcome{Gateway: "sandboxallow", Client: "127.0.0.9", Policy: "research", Mode: "learn", Ports: []uint16{443}, Why: whyName}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	})
	for _, tc := range []struct {
		name, from string
		site       int
		has, not   string
	}{
		{"of the client's own policy alone", "127.0.0.9", 0, "policy   research, mode learn", "example.com\n"},
		{"a mode that lets public names through", "127.0.0.9", 0, "    any public name\n", "nothing"},
		{"a policy without rules", "127.0.0.10", 0, "    nothing\n", "any public name"},
		{"a listener with a policy", "127.0.0.1", 2, "only what the policy research of this listener allows too", "\n    any"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := ask(tc.site, tc.from, g.addrs[tc.site])
			if r.status != 200 || !strings.Contains(r.body, tc.has) || strings.Contains(strings.SplitN(r.body, "\nexample.com is", 2)[0], tc.not) {
				t.Errorf("got %d\n%s", r.status, r.body)
			}
		})
	}
	t.Run("is no decision", func(t *testing.T) {
		g.skipLog()
		ask(0, "127.0.0.1", g.addrs[0])
		ask(0, "127.0.0.1", "evil.test:"+port(0))
		if e := g.entry(decision.MsgDenied); e["name"] != "evil.test" {
			t.Errorf("got %v", e)
		}
	})

	ip := func(site int) string { return fmt.Sprintf("127.0.1.%d", site+1) }
	for _, tc := range []struct {
		name   string
		site   int
		lines  []string
		status int
	}{
		{"the port that upstream_port stands for", 1, []string{"GET / HTTP/1.1", fmt.Sprintf("Host: %s:%d", ip(1), g.web.port)}, 200},
		{"the port that was connected to", 1, []string{"GET / HTTP/1.1", "Host: " + g.addrs[1]}, 200},
		{"HEAD", 0, []string{"HEAD / HTTP/1.1", "Host: " + g.addrs[0]}, 200},
		{"an absolute target", 0, []string{"GET http://" + g.addrs[0] + "/ HTTP/1.1", "Host: " + g.addrs[0]}, 200},
		{"another port", 0, []string{"GET / HTTP/1.1", "Host: " + ip(0) + ":1"}, 403},
		{"no port, which is 80", 0, []string{"GET / HTTP/1.1", "Host: " + ip(0)}, 403},
		{"another address", 0, []string{"GET / HTTP/1.1", "Host: 127.0.1.99:" + port(0)}, 403},
		{"another spelling of the address", 0, []string{"GET / HTTP/1.1", "Host: 127.0.257:" + port(0)}, 403},
		{"mapped", 0, []string{"GET / HTTP/1.1", "Host: [::ffff:" + ip(0) + "]:" + port(0)}, 403},
		{"brackets", 0, []string{"GET / HTTP/1.1", "Host: [" + ip(0) + "]:" + port(0)}, 403},
		{"another path", 0, []string{"GET /latest/meta-data HTTP/1.1", "Host: " + g.addrs[0]}, 403},
		{"another method", 0, []string{"POST / HTTP/1.1", "Host: " + g.addrs[0], "Content-Length: 0"}, 403},
		{"the forward proxy", 3, []string{"GET / HTTP/1.1", "Host: " + g.addrs[3]}, 400},
		{"through the forward proxy", 3, []string{"GET http://" + g.addrs[3] + "/ HTTP/1.1", "Host: " + g.addrs[3]}, 403},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := g.ask(tc.site, tc.lines...)
			if r.status != tc.status || (r.status != 200) != (r.reason() != "") {
				t.Errorf("got %d %v %s, want %d", r.status, r.header, r.body, tc.status)
			}
		})
	}

	t.Run("no policy", func(t *testing.T) {
		g.set("policy research {\n\tclient 127.0.0.9\n}\n")
		r := ask(0, "127.0.0.1", g.addrs[0])
		if r.status != 200 || !strings.Contains(r.body, "none, so everything is denied") || strings.Contains(r.body, "research") {
			t.Errorf("got %d\n%s", r.status, r.body)
		}
	})
	t.Run("a long policy", func(t *testing.T) {
		g.set("policy default {\n\tallow " + strings.Repeat("%d.example ", toldRules+1) + "\n}\n")
		r := ask(0, "127.0.0.1", g.addrs[0])
		if n := strings.Count(r.body, "\n    "); n != toldRules+2 || !strings.Contains(r.body, "\n    and more\n") {
			t.Errorf("got %d lines\n%.300s", n, r.body)
		}
	})
}

// A client that would rather have JSON gets the reason of a denial as JSON.
func TestDenialAsJSON(t *testing.T) {
	g := startHTTP(t, setup{sites: []string{transparentSite, forwardProxy}})
	for _, tc := range []struct {
		name  string
		site  int
		lines []string
		want  refusal
	}{
		{"not allowed", 0, []string{"GET / HTTP/1.1", g.host("evil.test")},
			refusal{"not_allowed", "evil.test is not in the list of names that this sandbox may reach", "evil.test", g.web.port}},
		{"no such name", 0, []string{"GET / HTTP/1.1", g.host("gone.example.com")},
			refusal{"no_address", "gone.example.com does not exist or has no address", "gone.example.com", g.web.port}},
		{"CONNECT", 1, []string{"CONNECT evil.test:443 HTTP/1.1", "Host: evil.test:443"},
			refusal{"not_allowed", "evil.test is not in the list of names that this sandbox may reach", "evil.test", 443}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := g.ask(tc.site, append(tc.lines, "Accept: application/json")...)
			var got refusal
			if err := json.Unmarshal([]byte(r.body), &got); err != nil || got != tc.want || r.reason() != tc.want.Reason {
				t.Errorf("got %d %v %s, %v", r.status, r.header, r.body, err)
			}
		})
	}
}
