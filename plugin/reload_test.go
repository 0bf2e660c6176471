package sandboxallow

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/miekg/dns"
)

const fastPoll = "\npoll 100ms"

func document(names ...string) string {
	return "policy default {\n\tallow " + strings.Join(names, " ") + "\n}\n"
}

// rcodeOf asks a server for the A record of a name.
func rcodeOf(t testing.TB, udp, qname string) int {
	t.Helper()
	return exchange(t, "udp", udp, query(qname, dns.TypeA, -1)).Rcode
}

func TestPolicyFileReplaced(t *testing.T) {
	doc := writeFile(t, "policy", document("example.com"))
	logged := captureLog(t)
	// With cache in the block, which stands behind the plugin and so never answers.
	udp, _ := serve(t, "answer 10.200.0.1\npolicy_file "+doc+fastPoll, "cache 3600")

	t.Run("dns-064", func(t *testing.T) {
		if got := rcodeOf(t, udp, "late.test."); got != dns.RcodeNameError {
			t.Fatalf("got %s before it is allowed, want NXDOMAIN", dns.RcodeToString[got])
		}
		replaceFile(t, doc, document("example.com", "late.test"))
		waitFor(t, "late.test is allowed", func() bool { return rcodeOf(t, udp, "late.test.") == dns.RcodeSuccess })
		q := query("late.test.", dns.TypeA, -1)
		gateway().check(t, q, exchange(t, "udp", udp, q))
	})
	t.Run("dns-082", func(t *testing.T) {
		replaceFile(t, doc, document("late.test"))
		waitFor(t, "example.com is denied", func() bool { return rcodeOf(t, udp, "example.com.") == dns.RcodeNameError })
	})
	t.Run("reload-009", func(t *testing.T) {
		failures := series(t, "reload_failures_total")
		replaceFile(t, doc, document("late.test")+"nonsense\n")
		waitFor(t, "stale", func() bool { return slices.Equal(series(t, "policy_stale"), []string{" 1"}) })
		if got := rcodeOf(t, udp, "late.test."); got != dns.RcodeSuccess {
			t.Errorf("got %s from the last good policy, want NOERROR", dns.RcodeToString[got])
		}
		if got := series(t, "reload_failures_total"); slices.Equal(got, failures) {
			t.Errorf("got reload_failures_total %s, as before", got)
		}
		if n := strings.Count(logged(), "Keeping the last good policy: "+doc+":4: unknown word"); n != 1 {
			t.Errorf("got the error %d times, want once, in:\n%s", n, logged())
		}
		replaceFile(t, doc, document("fixed.test"))
		waitFor(t, "fixed.test is allowed", func() bool { return rcodeOf(t, udp, "fixed.test.") == dns.RcodeSuccess })
		if got := series(t, "policy_stale"); !slices.Equal(got, []string{" 0"}) {
			t.Errorf("got policy_stale %q, want 0", got)
		}
		if got := series(t, "policy_info"); len(got) != 1 {
			t.Errorf("got policy_info %q, want the new hash alone", got)
		}
		if n := strings.Count(logged(), "Policy default in force, hash "); n != 4 {
			t.Errorf("got %d lines about policies, want one each for 4, in:\n%s", n, logged())
		}
	})
	t.Run("missing", func(t *testing.T) {
		if err := os.Remove(doc); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "stale", func() bool { return slices.Equal(series(t, "policy_stale"), []string{" 1"}) })
		if got := rcodeOf(t, udp, "fixed.test."); got != dns.RcodeSuccess {
			t.Errorf("got %s from the last good policy, want NOERROR", dns.RcodeToString[got])
		}
	})
}

// A listener whose policy a reload removed denies everything.
func TestListenerPolicyRemoved(t *testing.T) {
	doc := writeFile(t, "policy", document("example.com")+"policy builds {\n\tclient 192.0.2.0/24\n\tallow example.com\n}\n")
	logged := captureLog(t)
	udp, _ := serve(t, "answer 10.200.0.1\npolicy_file "+doc+"\npolicy builds"+fastPoll)
	if got := rcodeOf(t, udp, "example.com."); got != dns.RcodeSuccess {
		t.Fatalf("got %s, want NOERROR", dns.RcodeToString[got])
	}
	replaceFile(t, doc, document("example.com"))
	waitFor(t, "example.com is denied", func() bool { return rcodeOf(t, udp, "example.com.") == dns.RcodeNameError })
	q := query("example.com.", dns.TypeA, 1232)
	blocked(nxdomain(), "no_policy: ").check(t, q, exchange(t, "udp", udp, q))
	waitFor(t, "warning", func() bool {
		return strings.Contains(logged(), `Corefile:6: policy "builds" is no longer in the document`)
	})
}

func TestRestart(t *testing.T) {
	doc := writeFile(t, "policy", document("example.com"))
	text := ".:0 {\nbind 127.0.0.1\n" + name + " {\nanswer 10.200.0.1\npolicy_file " + doc + fastPoll + "\n}\n}\n"
	inst, err := caddy.Start(corefile(text))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { stopCoreDNS(inst) }()
	udp, _ := addrs(inst)
	before := len(running.all())

	t.Run("reload-016/syntax error", func(t *testing.T) {
		if _, err := inst.Restart(corefile(text + "example.org:0 {\n" + name + " {\n}\n}\n")); err == nil {
			t.Fatal("got no error for a bad Corefile")
		}
		if got := rcodeOf(t, udp, "example.com."); got != dns.RcodeSuccess {
			t.Errorf("got %s from the old instance, want NOERROR", dns.RcodeToString[got])
		}
		if got := len(running.all()); got != before {
			t.Errorf("got %d running plugins, want %d", got, before)
		}
	})
	t.Run("reload-016/port taken", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		_, port, _ := net.SplitHostPort(ln.Addr().String())
		taken := strings.Replace(text, ".:0", ".:"+port, 1)
		if _, err := inst.Restart(corefile(text + taken)); err == nil {
			t.Fatal("got no error for a port that is taken")
		}
		if got := rcodeOf(t, udp, "example.com."); got != dns.RcodeSuccess {
			t.Errorf("got %s from the old instance, want NOERROR", dns.RcodeToString[got])
		}
		if got := len(running.all()); got != before {
			t.Errorf("got %d running plugins, want %d: those of an instance that was given up go on", got, before)
		}
	})
	t.Run("reload-020", func(t *testing.T) {
		for range 3 {
			next, err := inst.Restart(corefile(text))
			if err != nil {
				t.Fatal(err)
			}
			inst = next
		}
		udp, _ := addrs(inst)
		if got := len(running.all()); got != before {
			t.Errorf("got %d running plugins, want %d", got, before)
		}
		replaceFile(t, doc, document("late.test"))
		waitFor(t, "late.test is allowed", func() bool { return rcodeOf(t, udp, "late.test.") == dns.RcodeSuccess })
	})
}

func TestRestartsLeakNothing(t *testing.T) {
	t.Run("reload-017", func(t *testing.T) {
		doc := writeFile(t, "policy", document("example.com"))
		text := ".:0 {\nbind 127.0.0.1\n" + name + " {\nanswer 10.200.0.1\npolicy_file " + doc + fastPoll + "\n}\n}\n"
		inst, err := caddy.Start(corefile(text))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { stopCoreDNS(inst) }()
		restart := func() {
			t.Helper()
			if inst, err = inst.Restart(corefile(text)); err != nil {
				t.Fatal(err)
			}
			// CoreDNS loses a server that is stopped before it serves.
			udp, tcp := addrs(inst)
			exchange(t, "udp", udp, query("example.com.", dns.TypeA, -1))
			exchange(t, "tcp", tcp, query("example.com.", dns.TypeA, -1))
		}
		restart()
		before := runtime.NumGoroutine()
		for range 50 {
			restart()
		}
		waitFor(t, fmt.Sprintf("no more than %d goroutines", before), func() bool { return runtime.NumGoroutine() <= before+2 })
	})
}

func TestReady(t *testing.T) {
	s := parseBlock(t, p0)
	if s.Ready() {
		t.Error("ready before start")
	}
	s.start()
	if !s.Ready() {
		t.Error("not ready after start")
	}
	s.stop()
}
