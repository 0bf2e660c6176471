//go:build linux

package e2e

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// used is the name that each client fetches by a way.
var used = map[way]string{
	overTLS:    "api.example.com",
	overHTTP:   "deb.example.org",
	byConnect:  "registry.example.net",
	byAbsolute: "mirror.example.net",
}

const unused = "unused.example.com"

// What is learned of the log of what clients have done lets them do just that.
func TestLearn(t *testing.T) {
	l := newLab(t)
	g := l.start(t, config{policy: "policy default {\n\tmode learn\n}\n"})
	for _, name := range []string{used[overTLS], used[overHTTP], used[byConnect], used[byAbsolute], unused} {
		for _, host := range []func(string, netip.Addr) (*server, error){l.internet.host, l.internet.hostPlain} {
			if _, err := host(name, webAddr); err != nil {
				t.Fatal(err)
			}
		}
	}
	var all learners
	for i := range clients {
		c := &clients[i]
		t.Run(c.name, func(t *testing.T) {
			c.ready(t, l)
			all = append(all, c)
		})
	}

	all.use(t, l)
	g.decideAll(t, 0, "would_deny")
	must(t, 5*time.Second, "CoreDNS logs what strict would deny", func() bool {
		for _, w := range []way{overTLS, overHTTP} {
			if len(g.coredns.log.with(0, " name="+used[w]+" port=0 verdict=would_deny ")) == 0 {
				return false
			}
		}
		return true
	})
	learned := g.learn(t)
	// None of what is denied below is in the log that was learned of, and all of it gets through so far.
	l.reaches(t, unused)
	l.reaches(t, used[overHTTP])

	g.setPolicy(t, learned)
	g.inForce(t)
	mark := g.caddy.log.mark()
	all.use(t, l)
	g.decideAll(t, mark, "allow")

	denied := func(t *testing.T, w way, host, reason string) {
		mark := g.caddy.log.mark()
		all.fail(t, l, w, host, func(c *client) []string { return c.refusal(w, reason) })
		for _, d := range g.decidedEach(t, w.layer, mark, msgDenied, host) {
			if d.Verdict != "deny" || d.Reason != reason {
				t.Errorf("decision %+v, want %s", d, reason)
			}
		}
	}
	t.Run("unused name in DNS", func(t *testing.T) {
		all.fail(t, l, overTLS, unused, func(c *client) []string { return []string{c.noName} })
	})
	t.Run("unused name", func(t *testing.T) {
		if err := l.sandbox.etc("hosts", gatewayAddr.String()+" "+unused+"\n"); err != nil {
			t.Fatal(err)
		}
		denied(t, overTLS, unused, "not_allowed")
		denied(t, byConnect, unused, "not_allowed")
	})
	t.Run("unused port", func(t *testing.T) { denied(t, overTLS, used[overHTTP], "port_not_allowed") })
}

// learners are the clients that a policy is learned of.
type learners []*client

// each runs f for each client, side by side.
func (all learners) each(f func(*client)) {
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() { f(c) })
	}
	wg.Wait()
}

// use fails the test unless each client gets the used names, by the ways that it has.
func (all learners) use(t *testing.T, l *lab) {
	t.Helper()
	all.each(func(c *client) {
		for w, host := range used {
			if !c.can(w) {
				continue
			}
			want := page(host)
			if c.name == "git" {
				want = page(repoName) // all servers have the one repository
			}
			if out, err := c.fetch(l, w, host); err != nil || !strings.Contains(out, want) {
				t.Errorf("%s, %s, %s: %q, %v, want %q", c.name, w.name, host, out, err, want)
			}
		}
	})
}

// fail fails the test unless a name is denied to each client, which says so.
func (all learners) fail(t *testing.T, l *lab, w way, host string, says func(*client) []string) {
	t.Helper()
	all.each(func(c *client) {
		if !c.can(w) {
			return
		}
		out, err := c.fetch(l, w, host)
		if err == nil {
			t.Errorf("%s, %s, %s: got %q, want a failure", c.name, w.name, host, out)
		} else if _, missing := sayingOf(said(err), host, says(c)); len(missing) != 0 {
			t.Errorf("%s, %s, %s: %v, want %q in it", c.name, w.name, host, err, missing)
		}
	})
}

// decideAll fails the test unless there are decisions on all used names behind a mark, each on its layer, and all
// with one verdict.
func (g *gateway) decideAll(t *testing.T, mark int, verdict string) {
	t.Helper()
	for w, host := range used {
		var ds []decision
		must(t, 5*time.Second, "a decision on "+host, func() bool {
			ds = slices.DeleteFunc(g.decisions(mark), func(d decision) bool { return d.Name != host })
			return len(ds) > 0
		})
		for _, d := range ds {
			if d.Verdict != verdict || d.Layer != w.layer || d.Port != w.port() || (d.Rule != "") != (verdict == "allow") {
				t.Errorf("decision %+v, want %s of layer %s on port %d", d, verdict, w.layer, w.port())
			}
		}
	}
}

// learn returns the policy that the real command makes of the logs so far.
func (g *gateway) learn(t *testing.T) string {
	t.Helper()
	for name, p := range map[string]*process{"caddy.log": g.caddy, "coredns.log": g.coredns} {
		g.write(t, name, strings.Join(p.log.lines(0), "\n")+"\n")
	}
	learned := g.sandboxallow(t, "learn", g.path("caddy.log"), g.path("coredns.log"))
	g.write(t, "learned", learned)
	checked := g.sandboxallow(t, "check", "--strict", g.path("learned"))
	t.Logf("learned\n%s", learned)
	if !strings.Contains(checked, "default  strict  4 rules  clients that no other policy names") {
		t.Errorf("check says\n%s\nwant a strict policy of the 4 names", checked)
	}
	return learned
}

// sandboxallow runs `caddy sandboxallow`, which is to succeed and to say nothing on standard error.
func (g *gateway) sandboxallow(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(built.dir(t), "caddy"), append([]string{"sandboxallow"}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + g.dir}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() != 0 {
		t.Fatalf("caddy sandboxallow %s: %v\n%s%s", strings.Join(args, " "), err, &stderr, &stdout)
	}
	return stdout.String()
}
