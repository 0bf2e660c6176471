package sandboxallow

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/miekg/dns"
)

func init() { clog.Discard() }

const logPrefix = "[INFO] plugin/sandboxallow: "

// timestamp is the one part of a line that no test can know.
var timestamp = regexp.MustCompile(`ts=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z `)

// decisions returns the lines of decisions of a log, without prefix and time.
func decisions(t testing.TB, logged string) (lines []string) {
	t.Helper()
	for line := range strings.Lines(logged) {
		line, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), logPrefix)
		if !ok || !strings.Contains(line, " ts=") {
			continue
		}
		if !timestamp.MatchString(line) {
			t.Errorf("no time in %q", line)
		}
		lines = append(lines, timestamp.ReplaceAllString(line, ""))
	}
	return lines
}

func TestLog(t *testing.T) {
	const (
		allowed = "allowed layer=dns client=10.1.2.3 policy=default name=example.com port=0 verdict=allow reason= rule=Testfile:3 upstream= bytes_in=0 bytes_out=0 duration=0"
		denied  = `denied layer=dns client=10.1.2.3 policy=default name=denied.test port=0 verdict=deny reason=not_allowed rule= upstream= bytes_in=0 bytes_out=0 duration=0 hint="allow denied.test"`
	)
	type questions []string
	tests := []struct {
		name   string
		body   string // behind the answer and the allow line
		client string // "": 10.1.2.3
		ask    questions
		want   []string
	}{
		{"default", "", "", questions{"example.com.", "denied.test."}, []string{denied}},
		{"denied", "log denied", "", questions{"example.com.", "denied.test."}, []string{denied}},
		{"all", "log all", "", questions{"denied.test.", "example.com.", "example.com."}, []string{allowed, allowed, denied}},
		{"off", "log off", "", questions{"example.com.", "denied.test."}, nil},
		{"the same name", "", "", questions{"denied.test.", "DENIED.test.", "denied.test."}, []string{denied + " repeated=3"}},
		{"learn", "mode learn", "", questions{"example.com.", "denied.test."},
			[]string{`would be denied layer=dns client=10.1.2.3 policy=default name=denied.test port=0 verdict=would_deny reason=not_allowed rule= upstream= bytes_in=0 bytes_out=0 duration=0 hint="allow denied.test"`}},
		{"by a rule", "deny .denied.test", "", questions{"a.denied.test."},
			[]string{`denied layer=dns client=10.1.2.3 policy=default name=a.denied.test port=0 verdict=deny reason=denied rule=Testfile:4 upstream= bytes_in=0 bytes_out=0 duration=0 hint="narrow or remove \"deny .denied.test\" at Testfile:4"`}},
		{"no name", "", "", questions{`a\.b\000c\255.test.`},
			[]string{`denied layer=dns client=10.1.2.3 policy=default name="a\\.b\\000c\\255.test." port=0 verdict=deny reason=bad_name rule= upstream= bytes_in=0 bytes_out=0 duration=0`}},
		{"the root", "", "", questions{"."},
			[]string{`denied layer=dns client=10.1.2.3 policy=default name=. port=0 verdict=deny reason=not_allowed rule= upstream= bytes_in=0 bytes_out=0 duration=0`}},
		{"mapped client", "", "::ffff:10.1.2.3", questions{"denied.test."}, []string{denied}},
		{"no client", "", "nonsense", questions{"denied.test."},
			[]string{`denied layer=dns client= policy= name=denied.test port=0 verdict=deny reason=no_policy rule= upstream= bytes_in=0 bytes_out=0 duration=0`}},
		{"reserved names", "log all", "", questions{"denied.test.why.sandboxallow.", "policy.sandboxallow.", "x.sandboxallow."}, nil},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			logged := captureLog(t)
			s := parseBlock(t, "answer 10.200.0.1\nallow example.com\n"+tc.body)
			client := tc.client
			if client == "" {
				client = "10.1.2.3"
			}
			for _, qname := range tc.ask {
				ask(t, s, client, query(qname, dns.TypeA, -1))
			}
			s.folder.Flush()
			got := decisions(t, logged())
			if strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

// A stub resolver asks for A and AAAA: that is one line, of what it asked, within seconds.
func TestLogOfServer(t *testing.T) {
	logged := captureLog(t)
	udp, tcp := serve(t, p0)
	t.Run("ops-015", func(t *testing.T) {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			exchange(t, "udp", udp, query("Denied.Test.", qtype, 1232))
		}
		waitFor(t, "the line", func() bool { return len(decisions(t, logged())) > 0 })
		got := decisions(t, logged())
		for _, want := range []string{"denied ", " client=127.0.0.1 ", " name=denied.test ", " reason=not_allowed ", ` hint="allow denied.test"`} {
			if !strings.Contains(got[0], want) {
				t.Errorf("got %q, want %q in it", got[0], want)
			}
		}
	})
	// Whoever sends control bytes gets no line of his own, and the volume is bounded.
	t.Run("ops-014", func(t *testing.T) {
		const names = 10_000
		before := len(logged())
		conn := dial(t, "tcp", tcp)
		for i := range names {
			q := query(fmt.Sprintf(`x\010[INFO] plugin/sandboxallow: allowed\013\027[2J\000\255%d.denied.test.`, i), dns.TypeA, -1)
			send(t, conn, q)
			receive(t, conn, 1)
		}
		told := func() int { return toldIn(t, decisions(t, logged()[before:])) }
		waitFor(t, "all are told", func() bool { return told() == names })
		all := logged()[before:]
		lines := strings.Split(strings.TrimSuffix(all, "\n"), "\n")
		if len(lines) > 400 {
			t.Errorf("got %d lines for %d names", len(lines), names)
		}
		for _, line := range lines {
			if !strings.HasPrefix(line, logPrefix+"denied ts=") && !strings.HasPrefix(line, logPrefix+"more than is logged ts=") {
				t.Errorf("got line %q", line)
			}
			if strings.ContainsFunc(line, func(c rune) bool { return c < ' ' || c > '~' }) {
				t.Errorf("got line %q with a control byte", line)
			}
		}
	})
}

// toldIn returns how many decisions lines stand for.
func toldIn(t *testing.T, lines []string) (n int) {
	t.Helper()
	for _, line := range lines {
		_, count, ok := strings.Cut(line, " suppressed=")
		if !ok {
			_, count, ok = strings.Cut(line, " repeated=")
		}
		of := 1
		if ok {
			if _, err := fmt.Sscanf(count, "%d", &of); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
		n += of
	}
	return n
}

// What was counted is written before the process ends.
func TestLogAtTheEnd(t *testing.T) {
	logged := captureLog(t)
	inst := startCoreDNS(t, ".:0 {\nbind 127.0.0.1\nsandboxallow {\n"+p0+"\n}\n}")
	udp, _ := addrs(inst)
	exchange(t, "udp", udp, query("denied.test.", dns.TypeA, -1))
	inst.ShutdownCallbacks()
	if got := decisions(t, logged()); len(got) != 1 || !strings.Contains(got[0], "name=denied.test") {
		t.Errorf("got %q after the shutdown, want the denial", got)
	}
}

func TestLogJSON(t *testing.T) {
	var b bytes.Buffer
	if err := clog.Configure("json", &b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { clog.Configure("text", io.Discard) })
	s := parseBlock(t, p0)
	ask(t, s, "10.1.2.3", query("denied.test.", dns.TypeA, -1))
	ask(t, s, "10.1.2.3", query("denied.test.", dns.TypeAAAA, -1))
	s.folder.Flush()
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatalf("%v, in %s", err, b.String())
	}
	for key, want := range map[string]any{
		"level": "INFO", "msg": "denied", "plugin": "sandboxallow", "layer": "dns", "client": "10.1.2.3", "policy": "default",
		"name": "denied.test", "port": 0.0, "verdict": "deny", "reason": "not_allowed", "rule": "", "upstream": "",
		"bytes_in": 0.0, "bytes_out": 0.0, "duration": 0.0, "hint": "allow denied.test", "repeated": 2.0,
	} {
		if got[key] != want {
			t.Errorf("%s: got %v, want %v", key, got[key], want)
		}
	}
	if ts, _ := got["ts"].(string); !timestamp.MatchString("ts=" + ts + " ") {
		t.Errorf("got ts %v", got["ts"])
	}
}
