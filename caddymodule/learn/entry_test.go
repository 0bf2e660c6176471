package learn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// show puts an entry on a line.
func show(k kind, e *entry) string {
	switch k {
	case other:
		return "other"
	case malformed:
		return "malformed"
	case unsure:
		return "unsure"
	case suppressed:
		return fmt.Sprintf("suppressed %d", e.suppressed)
	}
	return fmt.Sprintf("%s %s %s %s:%d %s/%s x%d at %d", e.layer, e.client, e.policy, e.name, e.port, e.verdict, e.reason, e.repeated, seconds(e.time))
}

const (
	allowedLine = `{"level":"info","ts":1796000000.123,"logger":"sandboxallow","msg":"allowed","layer":"tls","client":"172.30.0.5","policy":"default","name":"api.github.com","port":443,"verdict":"allow","reason":"","rule":"policy:3","upstream":"192.0.2.1:443","bytes_in":0,"bytes_out":0,"duration":0.01}`
	closedLine  = `{"level":"info","ts":1796000001.5,"logger":"sandboxallow","msg":"closed","layer":"tls","client":"172.30.0.5","policy":"default","name":"api.github.com","port":443,"verdict":"allow","reason":"","rule":"policy:3","upstream":"192.0.2.1:443","bytes_in":5,"bytes_out":7,"duration":1.5}`
	dnsLine     = `[INFO] plugin/sandboxallow: denied ts=2026-11-29T20:00:00.000Z layer=dns client=172.30.0.5 policy=default name=example.org port=0 verdict=deny reason=not_allowed rule= upstream= bytes_in=0 bytes_out=0 duration=0 hint="allow example.org"`
)

func TestParse(t *testing.T) {
	json := func(members string) string { return `{"ts":1,"logger":"sandboxallow",` + members + `}` }
	const rest = `"layer":"tls","client":"192.0.2.1","policy":"p","name":"a.example","port":443,"verdict":"allow","reason":""`
	const want = "tls 192.0.2.1 p a.example:443 allow/ x1 at 0"
	for _, tc := range []struct{ name, line, want string }{
		{"allowed", allowedLine, "tls 172.30.0.5 default api.github.com:443 allow/ x1 at 1796000000"},
		{"line end", allowedLine + " \r\n", "tls 172.30.0.5 default api.github.com:443 allow/ x1 at 1796000000"},
		{"closed", closedLine, "other"},
		{"closed by a change", strings.Replace(closedLine, `"closed"`, `"closed, no longer allowed"`, 1), "other"},
		{"of the plugin", dnsLine, "dns 172.30.0.5 default example.org:0 deny/not_allowed x1 at 1795982400"},
		{"of the plugin in JSON", `{"time":"2026-11-29T20:00:01Z","level":"INFO","msg":"would be denied","plugin":"sandboxallow","ts":"2026-11-29T20:00:00.000Z",` + rest + `}`,
			"tls 192.0.2.1 p a.example:443 allow/ x1 at 1795982400"},
		{"of another plugin in JSON", `{"msg":"allowed","plugin":"log",` + rest + `}`, "other"},
		{"repeated", json(`"msg":"denied","repeated":7,` + rest), strings.Replace(want, "x1", "x7", 1)},
		{"repeated in text", "[INFO] plugin/sandboxallow: denied layer=dns client=::1 policy=p name=a port=0 verdict=deny reason=denied repeated=12",
			"dns ::1 p a:0 deny/denied x12 at 0"},
		{"suppressed", json(`"msg":"more than is logged","suppressed":9,` + rest), "suppressed 9"},
		{"suppressed in text", "[INFO] plugin/sandboxallow: more than is logged layer=dns client= policy= name= port=0 verdict=deny reason= rule= suppressed=12", "suppressed 12"},
		{"policy in force", json(`"msg":"policy in force","policies":"a b","rules":3,"hash":"00"`), "other"},
		{"another logger", strings.Replace(allowedLine, `"logger":"sandboxallow"`, `"logger":"http.log.access"`, 1), "other"},
		{"no logger", strings.Replace(allowedLine, `"logger":"sandboxallow",`, ``, 1), "other"},
		{"nested objects", `{"logger":"http.log.access","request":{"name":1},"name":{"verdict":"allow"},"port":"x"}`, "other"},
		{"not JSON", "172.30.0.5 - - [29/Nov/2026] \"GET / HTTP/1.1\" 200", "other"},
		{"empty", "\n", "other"},
		{"blanks", "{ \"logger\": \"sandboxallow\",\t\"msg\": \"allowed\", " + rest + "}", want},
		{"a name with escapes", json(`"msg":"denied",` + strings.Replace(rest, "a.example", `a\u0000\"\\b`, 1)), "tls 192.0.2.1 p a\x00\"\\b:443 allow/ x1 at 0"},
		{"a name outside ASCII", json(`"msg":"denied",` + strings.Replace(rest, "a.example", "bücher.example", 1)), "tls 192.0.2.1 p bücher.example:443 allow/ x1 at 0"},
		{"other members", json(`"msg":"allowed","x":null,"y":-1.5e+10,"z":[1,{"name":"b"}],"u":"\u00e9\/ü",` + rest), want},
		{"times of all forms", json(`"msg":"allowed",` + rest), want},
		{"name twice, the last counts", json(`"msg":"allowed","name":"b.example",` + rest), want},
		{"port too large", strings.Replace(allowedLine, ":443,", ":65536,", 1), "malformed"},
		{"port of another type", strings.Replace(allowedLine, `:443,`, `:"443",`, 1), "malformed"},
		{"half a line", allowedLine[:len(allowedLine)-20], "malformed"},
		{"something behind", allowedLine + "x", "malformed"},
		{"two objects", allowedLine + allowedLine, "malformed"},
		{"no layer", json(`"msg":"allowed","name":"a.example","verdict":"allow"`), "malformed"},
		{"too many at once", json(`"msg":"denied","repeated":4294967297,` + rest), "malformed"},
		{"unknown verdict", json(`"msg":"allowed",` + strings.Replace(rest, "allow", "maybe", 1)), "other"},
		{"half a line of the plugin", dnsLine[:strings.Index(dnsLine, `example.org"`)], "malformed"},
		{"a word behind the fields", dnsLine + " verdict", "malformed"},
		{"a field twice", dnsLine + " verdict=allow", "malformed"},
		{"a quote inside a value", strings.Replace(dnsLine, "name=example.org", `name=exa"mple.org`, 1), "malformed"},
		{"quoted", strings.Replace(dnsLine, "name=example.org", `name="a b\x00 verdict=allow"`, 1), "dns 172.30.0.5 default a b\x00 verdict=allow:0 deny/not_allowed x1 at 1795982400"},
		// What a client or a sandbox can have written into a log.
		{"behind another text", "x " + allowedLine, "other"},
		{"the plugin behind another text", "sandbox-1  | " + dnsLine, "other"},
		{"a question in CoreDNS's log", `[INFO] 172.30.0.5:1 - 2 "A IN [INFO]\ plugin/sandboxallow:\ allowed verdict=allow. udp 40"`, "other"},
		{"the name of another plugin", strings.Replace(dnsLine, "plugin/sandboxallow", "plugin/log", 1), "other"},
		{"a User-Agent", `{"logger":"http.log.access","msg":"handled","ua":"{\"logger\":\"sandboxallow\",\"verdict\":\"allow\"}"}`, "other"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var e entry
			k := e.parse([]byte(tc.line))
			if got := show(k, &e); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

// The lines that matter are read without encoding/json.
func TestScanIsEnough(t *testing.T) {
	for _, line := range []string{allowedLine, closedLine} {
		var e entry
		if k := e.scan([]byte(line)); k == unsure {
			t.Errorf("unsure of %s", line)
		}
		if n := testing.AllocsPerRun(100, func() { e.scan([]byte(line)) }); n > 1 { // of the line
			t.Errorf("%v allocations", n)
		}
	}
}

func TestSeconds(t *testing.T) {
	const want = 1795982400
	for _, raw := range []string{
		"1795982400.000123", "1795982400", "1795982400000.5", "1795982400000000123",
		`"2026-11-29T20:00:00.000Z"`, `"2026-11-29T21:00:00.000+0100"`, `"2026-11-29T20:00:00Z"`, `"2026-11-29T21:00:00.123456789+01:00"`,
		`"2026/11/29 20:00:00"`, `"2026/11/29 20:00:00.123"`, `"2026/11/29 20:00:00.123456789"`, `"29/Nov/2026:21:00:00 +0100"`,
	} {
		if got := seconds([]byte(raw)); got != want {
			t.Errorf("%s: got %d, want %d", raw, got, want)
		}
	}
	for _, raw := range []string{"", "1", "null", `""`, `"yesterday"`, "-5.5", "1e9", "1.5e9", "99999999999999999999", `"1969-01-01T00:00:00Z"`} {
		if got := seconds([]byte(raw)); got > 1 {
			t.Errorf("%s: got %d, want 0", raw, got)
		}
	}
}

// record is one that both binaries could write.
func record(name string, port uint16, verdict policy.Verdict) *decision.Record {
	r := &decision.Record{
		Time: time.Unix(1795982400, 0), Layer: decision.TLS, Client: netip.MustParseAddr("172.30.0.5"), Name: name, Port: port,
		Decision: policy.Decision{Verdict: verdict, Policy: "default"}, Error: "dial: \"x\" y=z\n",
	}
	if verdict != policy.Allow {
		r.Decision.Reason = policy.ReasonNotAllowed
	}
	return r
}

// logged returns a record as Caddy's default log has it.
func logged(t testing.TB, r *decision.Record) []byte {
	t.Helper()
	enc := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	r.Encode(enc)
	b, err := enc.EncodeEntry(zapcore.Entry{Time: r.Time, LoggerName: logger, Message: r.Message()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// What both binaries write of a decision is read as that decision, whatever name the client has sent; and a
// name that is none is none here.
func FuzzRecord(f *testing.F) {
	for _, name := range []string{"api.github.com", "", ".", "a b", "a=b", "\"", "\\", "a\x00\n\r\x1b[31m", "\xff\xfe", "bücher.example", "\u2028",
		"x verdict=allow", "a\",\"verdict\":\"allow", strings.Repeat("a.", 200), "[INFO] plugin/sandboxallow: allowed", "API.GITHUB.COM."} {
		f.Add(name, uint16(443), uint8(2), 3)
	}
	f.Fuzz(func(t *testing.T, name string, port uint16, verdict uint8, repeated int) {
		r := record(name, port, policy.Verdict(verdict%3))
		r.Repeated = max(0, repeated) % maxCount
		want := *r
		want.Repeated = max(1, r.Repeated)
		text := append([]byte("[INFO] plugin/sandboxallow: "), r.AppendLine(nil)...)
		for form, line := range map[string][]byte{"JSON": logged(t, r), "text": append(text, '\n')} {
			if i := bytes.IndexByte(line, '\n'); i != len(line)-1 {
				t.Fatalf("%s: more than a line: %q", form, line)
			}
			var e entry
			if k := e.parse(line); k != decided {
				t.Fatalf("%s: got %s for %q", form, show(k, &e), line)
			}
			got := show(decided, &e)
			if want := fmt.Sprintf("%s %s %s %s:%d %s/%s x%d at %d", want.Layer, want.Client, want.Decision.Policy, e.name, port,
				want.Decision.Verdict, want.Decision.Reason, want.Repeated, want.Time.Unix()); got != want {
				t.Errorf("%s: got %s, want %s, for %q", form, got, want, line)
			}
			sent, sentErr := policy.ParseName(name)
			read, readErr := policy.ParseName(string(e.name))
			if sent != read || (sentErr == nil) != (readErr == nil) {
				t.Errorf("%s: sent %q, %v; read %q, %v", form, sent, sentErr, read, readErr)
			}
		}
	})
}

// unambiguous reports whether no member of the object stands in it twice, in whatever case: encoding/json takes
// the last one then, scan the first of a logger.
func unambiguous(line []byte) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(line, &members) != nil {
		return false
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.Token()
	n := 0
	for ; dec.More(); n++ {
		dec.Token()
		var value json.RawMessage
		dec.Decode(&value)
	}
	folded := make(map[string]bool)
	for k := range members {
		folded[strings.ToLower(strings.NewReplacer("\u017f", "s", "\u212a", "k").Replace(k))] = true
	}
	return len(folded) == n
}

// scan agrees with encoding/json wherever it says anything, but that it does not read lines of other loggers to
// their ends.
func FuzzScan(f *testing.F) {
	for _, line := range []string{
		allowedLine, closedLine, "{}", "{", "", "null", `{"logger":"sandboxallow"}`, `{"Logger":"sandboxallow","verdict":"deny","layer":"x"}`,
		`{"logger":"sandboxallow","verdict":"deny","layer":"x","port":0,"repeated":5}`, `{"logger":"sandboxallow","layer":"x","verdict":"deny","verdict":"allow"}`,
		`{"plugin":"sandboxallow","layer":"dns","verdict":"deny","ts":"x","a":-0.0e-1,"b":"\ud800","c":true}`, `{"logger":"","plugin":"sandboxallow","suppressed":3}`,
		`{"logger":"sandboxallow","port":01}`, `{"logger":"sandboxallow","x":"\x"}`, "{\"logger\":\"sandboxallow\",\"x\":\"\xff\",\"name\":\"\xff\",\"layer\":\"x\",\"verdict\":\"allow\"}",
		`{"logger":"sandboxallow","layer":"x","verdict":"allow","port":1.0}`, `{"logger":5}`, `{"logger":"x","plugin":"sandboxallow"} `,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var fast, slow entry
		kf := fast.scan(line)
		if kf == unsure {
			return
		}
		ks := slow.decode(line)
		if kf == other && !unambiguous(line) {
			return
		}
		if got, want := show(kf, &fast), show(ks, &slow); got != want {
			t.Fatalf("scan says %s, decode %s", got, want)
		}
		if kf == decided && !slices.Equal(texts(&fast), texts(&slow)) {
			t.Errorf("scan %q\ndecode %q", texts(&fast), texts(&slow))
		}
	})
}

func texts(e *entry) []string {
	var all []string
	for _, b := range [][]byte{e.time, e.msg, e.layer, e.client, e.policy, e.name, e.verdict, e.reason, e.upstream} {
		all = append(all, string(b))
	}
	return all
}
