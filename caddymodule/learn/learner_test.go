package learn

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// start is when the logs of these tests begin.
var start = time.Date(2026, 11, 29, 20, 0, 0, 0, time.UTC)

// logOf returns the log of decisions, a line each: client, policy, name:port ("dns" for the port of a question)
// and verdict, and if there are more words the reason ("left" if nothing was connected), the number and the minute.
func logOf(t testing.TB, decisions string) []byte {
	t.Helper()
	var log []byte
	for line := range strings.Lines(decisions) {
		w := strings.Fields(line)
		if len(w) == 0 {
			continue
		}
		w = append(w, []string{"", "", "", "", "", "1", "0"}[len(w):]...)
		name, port, _ := strings.Cut(w[2], ":")
		minutes, err := strconv.Atoi(w[6])
		if err != nil {
			t.Fatal(err)
		}
		r := &decision.Record{Layer: decision.TLS, Client: netip.MustParseAddr(w[0]), Name: name, Time: start.Add(time.Duration(minutes) * time.Minute)}
		if port == "dns" {
			r.Layer = decision.DNS
		} else {
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				t.Fatal(err)
			}
			r.Port = uint16(n)
		}
		if w[1] != "-" {
			r.Decision.Policy = w[1]
		}
		switch w[3] {
		case "allow":
			r.Decision.Verdict = policy.Allow
		case "would":
			r.Decision.Verdict, r.Decision.Reason = policy.WouldDeny, policy.ReasonNotAllowed
		case "deny":
			r.Decision.Reason = policy.ReasonNotAllowed
		default:
			t.Fatalf("verdict %q", w[3])
		}
		if port != "dns" && w[3] != "deny" && w[4] != "left" {
			r.Upstream = netip.MustParseAddrPort("192.0.2.1:443")
		}
		switch w[4] {
		case "denied":
			r.Decision.Reason = policy.ReasonDenied
		case "dial_error":
			r.Decision.Reason = policy.ReasonDialError
		case "port":
			r.Decision.Reason = policy.ReasonPortNotAllowed
		}
		if r.Repeated, err = strconv.Atoi(w[5]); err != nil {
			t.Fatal(err)
		}
		if r.Layer == decision.DNS {
			log = fmt.Appendf(log, "[INFO] plugin/sandboxallow: %s\n", r.AppendLine(nil))
		} else {
			log = append(log, logged(t, r)...)
		}
	}
	return log
}

func learn(t testing.TB, o Options, logs ...[]byte) *Result {
	t.Helper()
	l := New(o)
	for i, log := range logs {
		if err := l.Read(fmt.Sprintf("log%d", i), bytes.NewReader(log)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := l.Result()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// load loads a document.
func load(t testing.TB, doc string) *policy.Set {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy")
	if err := os.WriteFile(path, []byte(doc), 0o644); err != nil {
		t.Fatal(err)
	}
	set, err := policy.Load(policy.Source{File: path})
	if err != nil {
		t.Fatalf("%v in\n%s", err, doc)
	}
	return set
}

// body returns a document without its head.
func body(doc string) string {
	_, b, _ := strings.Cut(doc, "\n\n")
	return b
}

func TestDocument(t *testing.T) {
	const existing = `policy default {
	allow .example.com:443 known.example
	deny  no.example
}
policy lab {
	client 10.1.0.0/16
	mode   learn
	ports  443
	allow  lab.example
}
`
	for _, tc := range []struct {
		name    string
		options Options
		diff    string
		log     string
		want    string
		missing string // what Missing begins with
	}{
		{name: "names",
			log: `10.0.0.1 default b.example:443 would
				10.0.0.1 default a.example:443 allow - 3 5
				10.0.0.2 default a.example:443 allow - 1 2`,
			want: `policy default {
    ports  443
    allow  a.example # 4 times since 2026-11-29 20:02
    allow  b.example # once on 2026-11-29 20:00
}
`},
		{name: "ports",
			log: `10.0.0.1 default a.example:443 would
				10.0.0.1 default b.example:80 would
				10.0.0.1 default b.example:443 would
				10.0.0.1 default c.example:5432 would
				10.0.0.1 default c.example:443 would
				10.0.0.1 default d.example:443 would
				10.0.0.1 default e.example:80 would`,
			want: `policy default {
    ports  443
    allow  a.example          # once on 2026-11-29 20:00
    allow  b.example:80,443   # 2 times since 2026-11-29 20:00
    allow  c.example:443,5432 # 2 times since 2026-11-29 20:00
    allow  d.example          # once on 2026-11-29 20:00
    allow  e.example:80       # once on 2026-11-29 20:00
}
`},
		{name: "both usual ports",
			log: `10.0.0.1 default a.example:443 would
				10.0.0.1 default a.example:80 would`,
			want: `policy default {
    allow  a.example # 2 times since 2026-11-29 20:00
}
`},
		{name: "questions",
			log: `10.0.0.1 default a.example:dns would - 2
				10.0.0.1 default a.example:8443 would
				10.0.0.1 default b.example:dns would - 2 7`,
			want: `policy default {
    allow  a.example:8443 # once on 2026-11-29 20:00
    allow  b.example      # asked for 2 times since 2026-11-29 20:07, never connected to
}
`},
		{name: "a client that left before it was connected", log: `10.0.0.1 default a.example:443 allow left 2`,
			want: `policy default {
    ports  443
    allow  a.example # asked for 2 times since 2026-11-29 20:00, never connected to
}
`},
		{name: "denials do not count", log: `10.0.0.1 default a.example:443 would
				10.0.0.1 default b.example:443 deny
				10.0.0.1 default c.example:443 deny dial_error
				10.0.0.1 default d.example:443 deny denied`,
			want: `policy default {
    ports  443
    allow  a.example # once on 2026-11-29 20:00
}
`},
		{name: "denials that a rule would mend", options: Options{Denied: true},
			log: `10.0.0.1 default a.example:443 allow
				10.0.0.1 default a.example:8443 deny port 2
				10.0.0.1 default b.example:443 deny - 7
				10.0.0.1 default c.example:443 deny dial_error
				10.0.0.1 default d.example:443 deny denied
				10.0.0.1 default -:443 deny
				10.0.0.1 default 1.2.3.4:443 deny`,
			want: `policy default {
    ports  443
    allow  a.example:443,8443 # once, denied 2 times since 2026-11-29 20:00
    allow  b.example          # denied 7 times since 2026-11-29 20:00
}
`, missing: "names that no rule can have: 1, the first is -"},
		{name: "few decisions", options: Options{MinCount: 3},
			log: `10.0.0.1 default a.example:443 would - 2
				10.0.0.1 default a.example:443 would
				10.0.0.1 default b.example:443 would - 2`,
			want: `policy default {
    ports  443
    allow  a.example # 3 times since 2026-11-29 20:00
    # Left out: 1 name with fewer than 3 decisions.
}
`},
		{name: "one client", options: Options{Client: netip.MustParsePrefix("10.0.0.0/30")},
			log: `10.0.0.1 default a.example:443 would
				10.0.0.4 other b.example:443 would
				::ffff:10.0.0.2 default c.example:443 would`,
			want: `policy default {
    client 10.0.0.0/30
    ports  443
    allow  a.example # once on 2026-11-29 20:00
    allow  c.example # once on 2026-11-29 20:00
}
`},
		{name: "several policies",
			log: `10.0.0.1 zoo a.example:443 would
				10.0.0.2 default b.example:443 would
				10.0.0.9 abc c.example:443 would
				10.0.0.8 abc c.example:443 would
				fd00::1 abc c.example:443 would`,
			want: `policy default {
    ports  443
    allow  b.example # once on 2026-11-29 20:00
}

policy abc {
    client 10.0.0.8/31 fd00::1
    ports  443
    allow  c.example # 3 times since 2026-11-29 20:00
}

policy zoo {
    client 10.0.0.1
    ports  443
    allow  a.example # once on 2026-11-29 20:00
}
`},
		{name: "a client that got another policy",
			log: `10.0.0.1 old a.example:443 would
				10.0.0.1 new b.example:443 would
				10.0.0.1 default c.example:443 would`,
			want: `policy default {
    ports  443
    allow  c.example # once on 2026-11-29 20:00
}
`, missing: "policies whose clients all have another one since: 2, the first is new"},
		{name: "cloud metadata", log: `10.0.0.1 default metadata.google.internal:80 allow
				10.0.0.1 default a.example:443 would`,
			want: `policy default {
    ports  443
    allow  a.example # once on 2026-11-29 20:00
}
`, missing: "names of cloud metadata services, which hand out credentials (write such a rule by hand): 1, the first is metadata.google.internal"},
		{name: "names that no rule can have", log: `10.0.0.1 default -x.example:443 would
				10.0.0.1 default xn--a.example:443 would
				10.0.0.1 default _a.example:443 would`,
			want: `policy default {
    ports  443
    allow  _a.example # once on 2026-11-29 20:00
}
`, missing: "names that no rule can have: 2, the first is -x.example"},
		{name: "a single label", log: `10.0.0.1 default intranet:443 allow`,
			want: `policy default {
    ports  443
    allow  intranet # once on 2026-11-29 20:00
}
`},
		{name: "nothing to add", diff: existing, log: `10.0.0.1 default a.example.com:443 allow
				10.0.0.1 default known.example:80 allow
				10.0.0.1 default known.example:dns allow
				10.1.0.1 lab lab.example:443 allow`},
		{name: "to add", diff: existing,
			log: `10.0.0.1 whatever a.example.com:443 allow
				10.0.0.1 whatever a.example.com:8443 would
				10.0.0.1 whatever known.example:8080 would
				10.0.0.1 whatever new.example:80 would
				10.0.0.1 whatever no.example:443 would
				10.0.0.1 whatever asked.example:dns would
				10.1.0.1 whatever lab.example:443 allow
				10.1.0.1 whatever lab.example:80 would
				10.1.2.3 whatever new.example:443 would`,
			want: `policy default {
    allow  a.example.com:8443 # 2 times since 2026-11-29 20:00
    allow  asked.example      # asked for once on 2026-11-29 20:00, never connected to
    allow  known.example:8080 # once on 2026-11-29 20:00
    allow  new.example        # once on 2026-11-29 20:00
}

policy lab {
    client 10.1.0.0/16
    allow  lab.example:80 # 2 times since 2026-11-29 20:00
    allow  new.example    # once on 2026-11-29 20:00
}
`, missing: "names that a deny rule is for: 1, the first is no.example (deny no.example at "},
		{name: "to add behind a name that is none", diff: "policy p {\n allow b.example\n}\n", options: Options{Denied: true},
			log: `10.0.0.1 default a..b:443 deny
				10.0.0.1 default b.example:443 allow
				10.0.0.1 default a.example:443 deny`,
			want: `policy p {
    allow  a.example # denied once on 2026-11-29 20:00
}
`},
		{name: "clients that no policy is for", diff: "policy p {\n client 10.0.0.0/8\n}\n",
			log: `10.0.0.1 default a.example:443 would
				192.0.2.1 default b.example:443 would`,
			want: `policy p {
    client 10.0.0.0/8
    allow  a.example # once on 2026-11-29 20:00
}
`, missing: "decisions on clients that no policy is for: 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.diff != "" {
				tc.options.Diff = load(t, tc.diff)
			}
			r := learn(t, tc.options, logOf(t, tc.log))
			if got := body(r.Document); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
			missing := strings.Join(r.Missing, "; ")
			if (missing == "") != (tc.missing == "") || !strings.HasPrefix(missing, tc.missing) {
				t.Errorf("missing %q, want %q", missing, tc.missing)
			}
			if r.Document == "" {
				return
			}
			if set := load(t, r.Document); !slices.Equal(warnings(set), warningsOf(tc.name)) {
				t.Errorf("warnings %q", set.Warnings())
			}
			if again, err := policy.Format("", r.Document); err != nil || again != r.Document {
				t.Errorf("not formatted: %v\n%s", err, again)
			}
		})
	}
}

// warnings returns the warnings of a set without their places.
func warnings(set *policy.Set) []string {
	var all []string
	for _, w := range set.Warnings() {
		_, text, _ := strings.Cut(w, ": ")
		all = append(all, text)
	}
	return all
}

func warningsOf(name string) []string {
	if name == "a single label" {
		return []string{`"intranet" is a single label, no public name`}
	}
	return nil
}

func TestHead(t *testing.T) {
	r := learn(t, Options{}, logOf(t, "10.0.0.1 default a.example:443 would - 2 1\n10.0.0.1 default a.example:443 would - 1 75"))
	const want = "# Learned from 3 decisions between 2026-11-29 20:01 and 2026-11-29 21:15 UTC.\n# The sandbox chose these names: read each line before it is in force.\n\n"
	if !strings.HasPrefix(r.Document, want) {
		t.Errorf("got %s", r.Document)
	}
	if r.Names != 1 || r.Domains != 0 {
		t.Errorf("got %d names, %d domains", r.Names, r.Domains)
	}
}

func TestNothingRead(t *testing.T) {
	for name, log := range map[string][]byte{
		"empty":          nil,
		"other lines":    []byte("x\n{\"logger\":\"http\"}\n"),
		"only denials":   logOf(t, "10.0.0.1 default a.example:443 deny"),
		"half of a line": logOf(t, "10.0.0.1 default a.example:443 would")[:100],
	} {
		l := New(Options{})
		if err := l.Read("log", bytes.NewReader(log)); err != nil {
			t.Fatal(err)
		}
		if r, err := l.Result(); err == nil || !strings.Contains(err.Error(), "no decision to learn from") {
			t.Errorf("%s: got %v, %v", name, r, err)
		}
	}
}

func TestMissing(t *testing.T) {
	log := logOf(t, "10.0.0.1 default a.example:443 would")
	log = append(log, "{\"logger\":\"sandboxallow\",\nx\n"...)
	log = append(log, strings.Repeat("y", 3*maxLine)+"\n"...) // a line too long is no decision
	log = append(log, logged(t, &decision.Record{Suppressed: 42, Client: netip.MustParseAddr("10.0.0.1")})...)
	log = append(log, logOf(t, "10.0.0.1 default b..example:443 would")...) // admitted: the gateway cannot have written it
	r := learn(t, Options{}, []byte("x\n"), log)
	want := []string{
		"decisions that a log only has the number of: 42 (a client made too many for a line each)",
		"lines that cannot be read: 2, the first is log1:2",
	}
	if !slices.Equal(r.Missing, want) {
		t.Errorf("got  %q\nwant %q", r.Missing, want)
	}
}

// A sandbox that asks for more names than anybody reviews fills no memory.
func TestLimits(t *testing.T) {
	l := New(Options{})
	l.full = 3
	log := logOf(t, `10.0.0.1 default a.example:443 would
		10.0.0.1 default a.example:80 would
		10.0.0.1 default b.example:443 would
		10.0.0.1 default b.example:80 would
		10.0.0.1 default c.example:443 would - 5
		10.0.0.1 default a.example:443 would`)
	if err := l.Read("log", bytes.NewReader(log)); err != nil {
		t.Fatal(err)
	}
	r, err := l.Result()
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"decisions beyond 100000 names and 100000 clients: 6 (learn from fewer clients at once)"}; !slices.Equal(r.Missing, want) {
		t.Errorf("got %q", r.Missing)
	}
	if want := "policy default {\n    ports  443\n    allow  a.example:80,443 # 3 times since 2026-11-29 20:00\n    allow  b.example        # once on 2026-11-29 20:00\n}\n"; body(r.Document) != want {
		t.Errorf("got %s", r.Document)
	}
}

func TestCompressed(t *testing.T) {
	log := logOf(t, "10.0.0.1 default a.example:443 would")
	want := learn(t, Options{}, log).Document
	var gz, zst bytes.Buffer
	zw := gzip.NewWriter(&gz)
	zw.Write(log)
	zw.Close()
	enc, err := zstd.NewWriter(&zst)
	if err != nil {
		t.Fatal(err)
	}
	enc.Write(log)
	enc.Close()
	for name, b := range map[string][]byte{"gzip": gz.Bytes(), "zstd": zst.Bytes()} {
		if got := learn(t, Options{}, b).Document; got != want {
			t.Errorf("%s: got %s", name, got)
		}
		l := New(Options{})
		if err := l.Read("log", bytes.NewReader(b[:len(b)-5])); err == nil || !strings.HasPrefix(err.Error(), "log:") {
			t.Errorf("%s: cut off: %v", name, err)
		}
	}
	l := New(Options{})
	if err := l.Read("log", strings.NewReader("\x1f\x8bno")); err == nil || !strings.HasPrefix(err.Error(), "log: ") {
		t.Errorf("no gzip: %v", err)
	}
}

func TestCover(t *testing.T) {
	for _, tc := range []struct{ addrs, want string }{
		{"", ""},
		{"10.0.0.1", "10.0.0.1/32"},
		{"10.0.0.1 10.0.0.1", "10.0.0.1/32"},
		{"10.0.0.2 10.0.0.1", "10.0.0.1/32 10.0.0.2/32"},
		{"10.0.0.3 10.0.0.2", "10.0.0.2/31"},
		{"10.0.0.3 10.0.0.2 10.0.0.1 10.0.0.0 10.0.0.4", "10.0.0.0/30 10.0.0.4/32"},
		{"fd00::2 fd00::3 10.0.0.2 10.0.0.3", "10.0.0.2/31 fd00::2/127"},
		{"255.255.255.254 255.255.255.255 :: ::1", "255.255.255.254/31 ::/127"},
	} {
		var addrs []netip.Addr
		for _, a := range strings.Fields(tc.addrs) {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		var got []string
		for _, p := range cover(addrs) {
			got = append(got, p.String())
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: got %v, want %s", tc.addrs, got, tc.want)
		}
	}
}

// The policy allows exactly what was let through: by name, by port, by client.
func TestExact(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	ports := []uint16{443, 80, 5432, 8443}
	for round := range 40 {
		clients := map[string]string{"10.0.0.1": "default", "10.0.0.2": "one", "10.0.0.3": "one", "fd00::1": "two"}
		used := make(map[string]bool) // policy name:port
		var log strings.Builder
		var names []string
		for range 1 + rnd.IntN(60) {
			names = append(names, randomName(rnd))
		}
		for range 200 {
			client := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1"}[rnd.IntN(4)]
			name, port := names[rnd.IntN(len(names))], ports[min(rnd.IntN(9), 3)]
			fmt.Fprintf(&log, "%s %s %s:%d would - 1 %d\n", client, clients[client], name, port, rnd.IntN(5000))
			used[fmt.Sprintf("%s %s:%d", clients[client], name, port)] = true
		}
		r := learn(t, Options{}, logOf(t, log.String()))
		if len(r.Missing) > 0 {
			t.Fatal(r.Missing)
		}
		set := load(t, r.Document)
		for client, pol := range clients {
			sel := set.Select(netip.MustParseAddr(client), "")
			for _, name := range append(names, "not-used.example.com", "example.com", "com") {
				n, err := policy.ParseName(name)
				if err != nil {
					t.Fatal(err)
				}
				for _, port := range append(ports, 22) {
					want := used[fmt.Sprintf("%s %s:%d", pol, name, port)]
					if got := sel.Lookup(n, port).Verdict == policy.Allow; got != want && sel.Policy() == pol {
						t.Fatalf("round %d: %s of %s on %d: allowed is %t, want %t, by\n%s", round, name, client, port, got, want, r.Document)
					}
				}
			}
		}
		// What was learned covers its own log.
		if again := learn(t, Options{Diff: set}, logOf(t, log.String())); again.Document != "" || len(again.Missing) > 0 {
			t.Fatalf("round %d: still to add\n%s%q", round, again.Document, again.Missing)
		}
	}
}

func randomName(rnd *rand.Rand) string {
	labels := []string{"a", "b", "api", "www", "cdn-1", "cdn-2", "xn--bcher-kva", "_x", "long-label-of-a-name"}
	name := []string{"example.com", "example.co.uk", "github.io", "amazonaws.com", "example.org"}[rnd.IntN(5)]
	for range 1 + rnd.IntN(3) {
		name = labels[rnd.IntN(len(labels))] + "." + name
	}
	return name
}

// Whatever a log holds, the result is a policy that can be loaded, without wildcards that Load would warn of.
func FuzzLog(f *testing.F) {
	f.Add(logOf(f, "10.0.0.1 default a.example:443 would\n10.0.0.2 b c.example:80 allow"), false, 2)
	f.Add(logOf(f, "10.0.0.1 default 1.com:443 would\n10.0.0.2 default 2.com:80 allow\n10.0.0.2 default 3.com:dns deny"), true, 2)
	f.Add(logOf(f, "10.0.0.1 default a1.b.co.uk:443 would\n10.0.0.2 default a2.b.co.uk:80 allow\n10.0.0.2 default b.co.uk:80 allow"), true, 2)
	f.Add([]byte(allowedLine+"\n"+dnsLine+"\n{\"logger\":\"sandboxallow\"\n"), true, 20)
	f.Add([]byte("\x1f\x8b\x08\x00"), false, 0)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, log []byte, denied bool, wildcardFrom int) {
		l := New(Options{Denied: denied, WildcardFrom: max(0, wildcardFrom)})
		if err := l.Read("log", bytes.NewReader(log)); err != nil {
			return
		}
		r, err := l.Result()
		if err != nil || r.Document == "" {
			return
		}
		path := filepath.Join(dir, "policy")
		if err := os.WriteFile(path, []byte(r.Document), 0o644); err != nil {
			t.Fatal(err)
		}
		set, err := policy.Load(policy.Source{File: path})
		if err != nil {
			t.Fatalf("%v in\n%s", err, r.Document)
		}
		for _, w := range set.Warnings() {
			if !strings.Contains(w, "single label") && !strings.Contains(w, "is a DNS-over-HTTPS resolver") {
				t.Errorf("%s in\n%s", w, r.Document)
			}
		}
		for c := range strings.SplitSeq(r.Document, "") {
			if c != "\n" && (c < " " || c > "~") {
				t.Fatalf("%q in\n%s", c, r.Document)
			}
		}
	})
}
