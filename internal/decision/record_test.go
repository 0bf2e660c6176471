package decision

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// A gateway hands its records to zap as they are.
var _ Encoder = zapcore.ObjectEncoder(nil)

var (
	client   = netip.MustParseAddr("172.30.0.5")
	at       = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	rules    = policyOf("mode strict", "allow .example.com", "deny gist.example.com")
	learning = policyOf("mode learn", "allow .example.com")
)

// policyOf makes the set of policies of an inline body.
func policyOf(lines ...string) *policy.Set {
	var src policy.Source
	for i, l := range lines {
		src.Inline = append(src.Inline, policy.Line{File: "/etc/policy", Line: i + 1, Words: strings.Fields(l)})
	}
	s, err := policy.NewStore(src, policy.Options{})
	if err != nil {
		panic(err)
	}
	return s.Set()
}

// decide makes the record of what a set of policies says to a name.
func decide(set *policy.Set, layer Layer, name string, port uint16) Record {
	n, _ := policy.ParseName(name)
	return Record{Time: at, Layer: layer, Client: client, Name: name, Port: port, Decision: set.Select(client, "").Lookup(n, port)}
}

func TestAppendLine(t *testing.T) {
	closed := decide(rules, TLS, "api.example.com", 443)
	closed.Upstream = netip.MustParseAddrPort("[2001:db8::1]:443")
	closed.BytesIn, closed.BytesOut, closed.Duration = 517, 1<<40, 1250*time.Millisecond
	failed := decide(rules, Proxy, "api.example.com", 443)
	failed.Decision.Verdict, failed.Decision.Reason = policy.Deny, policy.ReasonDialError
	failed.Error = "dial tcp 192.0.2.1:443: \"refused\"\nby\tall"
	repeated := decide(rules, DNS, "example.org", 0)
	repeated.Repeated = 12
	once := repeated
	once.Repeated = 1
	unknown := repeated
	unknown.Client, unknown.Repeated = netip.Addr{}, 0
	berlin := unknown
	berlin.Time = at.In(time.FixedZone("", 3600))
	long := decide(rules, TLS, strings.Repeat("a", 300), 443)

	for _, tc := range []struct {
		name   string
		record Record
		want   string
	}{
		{"allowed", decide(rules, DNS, "api.example.com", 0),
			`allowed ts=2026-03-01T12:00:00.123Z layer=dns client=172.30.0.5 policy=default name=api.example.com port=0 verdict=allow reason= rule=/etc/policy:2 upstream= bytes_in=0 bytes_out=0 duration=0`},
		{"not allowed", decide(rules, HTTP, "example.org", 8080),
			`denied ts=2026-03-01T12:00:00.123Z layer=http client=172.30.0.5 policy=default name=example.org port=8080 verdict=deny reason=not_allowed rule= upstream= bytes_in=0 bytes_out=0 duration=0 hint="allow example.org:8080"`},
		{"denied", decide(rules, TLS, "gist.example.com", 443),
			`denied ts=2026-03-01T12:00:00.123Z layer=tls client=172.30.0.5 policy=default name=gist.example.com port=443 verdict=deny reason=denied rule=/etc/policy:3 upstream= bytes_in=0 bytes_out=0 duration=0 hint="narrow or remove \"deny gist.example.com\" at /etc/policy:3"`},
		{"would be denied", decide(learning, DNS, "example.org", 0),
			`would be denied ts=2026-03-01T12:00:00.123Z layer=dns client=172.30.0.5 policy=default name=example.org port=0 verdict=would_deny reason=not_allowed rule= upstream= bytes_in=0 bytes_out=0 duration=0 hint="allow example.org"`},
		{"a tunnel", closed,
			`allowed ts=2026-03-01T12:00:00.123Z layer=tls client=172.30.0.5 policy=default name=api.example.com port=443 verdict=allow reason= rule=/etc/policy:2 upstream=[2001:db8::1]:443 bytes_in=517 bytes_out=1099511627776 duration=1.25`},
		{"an error", failed,
			`denied ts=2026-03-01T12:00:00.123Z layer=proxy client=172.30.0.5 policy=default name=api.example.com port=443 verdict=deny reason=dial_error rule=/etc/policy:2 upstream= bytes_in=0 bytes_out=0 duration=0 error="dial tcp 192.0.2.1:443: \\\"refused\\\"\\nby\\tall"`},
		{"repeated", repeated,
			`denied ts=2026-03-01T12:00:00.123Z layer=dns client=172.30.0.5 policy=default name=example.org port=0 verdict=deny reason=not_allowed rule= upstream= bytes_in=0 bytes_out=0 duration=0 hint="allow example.org" repeated=12`},
		{"repeated once", once,
			`denied ts=2026-03-01T12:00:00.123Z layer=dns client=172.30.0.5 policy=default name=example.org port=0 verdict=deny reason=not_allowed rule= upstream= bytes_in=0 bytes_out=0 duration=0 hint="allow example.org"`},
		{"suppressed", Record{Time: at, Layer: DNS, Client: client, Suppressed: 99_900},
			`more than is logged ts=2026-03-01T12:00:00.123Z layer=dns client=172.30.0.5 policy= name= port=0 verdict=deny reason= rule= upstream= bytes_in=0 bytes_out=0 duration=0 suppressed=99900`},
		{"no client", unknown,
			`denied ts=2026-03-01T12:00:00.123Z layer=dns client= policy=default name=example.org port=0 verdict=deny reason=not_allowed rule= upstream= bytes_in=0 bytes_out=0 duration=0 hint="allow example.org"`},
		{"another time zone", berlin,
			`denied ts=2026-03-01T12:00:00.123Z layer=dns client= policy=default name=example.org port=0 verdict=deny reason=not_allowed rule= upstream= bytes_in=0 bytes_out=0 duration=0 hint="allow example.org"`},
		{"a long name", long,
			`denied ts=2026-03-01T12:00:00.123Z layer=tls client=172.30.0.5 policy=default name=` + strings.Repeat("a", 255) + ` port=443 verdict=deny reason=bad_name rule= upstream= bytes_in=0 bytes_out=0 duration=0`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := string(tc.record.AppendLine([]byte("[INFO] ")))
			if got != "[INFO] "+tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
			if fields := fieldsOf(t, tc.record, got[len("[INFO] "):]); fields[FieldName] != Printable(cut(tc.record.Name, MaxName)) {
				t.Errorf("got name %q", fields[FieldName])
			}
		})
	}
}

// The name of a client that wants to write the log itself.
func TestHostileNames(t *testing.T) {
	for _, tc := range []struct{ name, want string }{
		{"a\nlayer=dns", `"a\\nlayer=dns"`},
		{"a\r\n[INFO] allowed", `"a\\r\\n[INFO] allowed"`},
		{"\x1b[31mred", `"\\x1b[31mred"`},
		{"\x00\x07\x7f", `"\\x00\\a\\x7f"`},
		{"\u009b31m", `"\\u009b31m"`}, // CSI in one character
		{"\u202emoc.elpmaxe", `"\\u202emoc.elpmaxe"`},
		{"b\xff\xfe", `"b\\xff\\xfe"`},
		{"\xc3", `"\\xc3"`},
		{"a b", `"a b"`},
		{`a" verdict=allow "`, `"a\" verdict=allow \""`},
		{`a\000b`, `"a\\000b"`},
		{"a=b", `"a=b"`},
		{"", ``},
	} {
		r := decide(rules, TLS, tc.name, 443)
		line := string(r.AppendLine(nil))
		if want := " name=" + tc.want + " port=443 verdict=deny reason=bad_name rule= "; !strings.Contains(line, want) {
			t.Errorf("%q: got %s, want %q in it", tc.name, line, want)
		}
		fieldsOf(t, r, line)
	}
}

// zap gets the same fields, in the same order, and nothing that it would not escape.
func TestZap(t *testing.T) {
	r := decide(rules, DNS, "\u202e\x1b]0;\u009b\xff.example.org", 0)
	r.Error, r.Repeated = "a\u0085b", 2
	enc := zapcore.NewJSONEncoder(zapcore.EncoderConfig{})
	r.Encode(enc)
	b, err := enc.EncodeEntry(zapcore.Entry{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range b.Bytes() {
		if (c < ' ' || c > '~') && c != '\n' {
			t.Fatalf("got octet %#x in %q", c, b.String())
		}
	}
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	line := fieldsOf(t, r, string(r.AppendLine(nil)))
	delete(line, FieldTime)
	if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(line)); !slices.Equal(g, w) {
		t.Errorf("got fields %q, want %q", g, w)
	}
	for _, key := range []string{FieldName, FieldClient, FieldReason, FieldError} {
		if got[key] != line[key] {
			t.Errorf("%s: got %q, in a line %q", key, got[key], line[key])
		}
	}
}

func TestAllocations(t *testing.T) {
	allowed := decide(policyOf("mode open"), DNS, "api.example.com", 0)
	upstream := allowed
	upstream.Upstream = netip.MustParseAddrPort("[2001:db8::1]:443")
	buf := make([]byte, 0, 1024)
	for _, r := range []*Record{&allowed, &upstream} {
		if n := testing.AllocsPerRun(100, func() { buf = r.AppendLine(buf[:0]) }); n >= 1 {
			t.Errorf("got %v allocations for %s", n, buf)
		}
	}
	f := NewFolder(func(*Record) {})
	denied := decide(rules, DNS, "example.org", 0)
	f.Hold(&denied)
	if n := testing.AllocsPerRun(100, func() { f.Hold(&denied) }); n >= 1 {
		t.Errorf("got %v allocations for what is folded", n)
	}
}

func TestLayers(t *testing.T) {
	for l := range layers {
		if s := l.String(); s == "" || s != strings.ToLower(s) {
			t.Errorf("layer %d is %q", l, s)
		}
	}
	if s := layers.String(); s != "unknown" {
		t.Errorf("got %q", s)
	}
}
