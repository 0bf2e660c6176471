package decision

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// order is that of the fields of a line. Those from error on are there if they have something to say.
var order = []string{
	FieldTime, FieldLayer, FieldClient, FieldPolicy, FieldName, FieldPort, FieldVerdict, FieldReason, FieldRule,
	FieldUpstream, FieldBytesIn, FieldBytesOut, FieldDuration, FieldError, FieldHint, FieldRepeated, FieldSuppressed,
}

// fieldsOf reads a line as a reader of logs does, and fails if it is not exactly the fields of its record.
func fieldsOf(t testing.TB, r Record, line string) map[string]string {
	t.Helper()
	for i := 0; i < len(line); i++ {
		if line[i] < ' ' || line[i] > '~' {
			t.Fatalf("octet %#x in the line %q", line[i], line)
		}
	}
	rest, ok := strings.CutPrefix(line, r.Message())
	if !ok {
		t.Fatalf("line %q does not begin with %q", line, r.Message())
	}
	fields, last := map[string]string{}, -1
	for rest != "" {
		key, value, ok := strings.Cut(strings.TrimPrefix(rest, " "), "=")
		if !ok || rest[0] != ' ' {
			t.Fatalf("no field in %q of the line %q", rest, line)
		}
		i := slices.Index(order, key)
		if i <= last || i > last+1 && last < slices.Index(order, FieldDuration) {
			t.Fatalf("field %q in the wrong place of the line %q", key, line)
		}
		last = i
		if strings.HasPrefix(value, `"`) {
			quoted, err := strconv.QuotedPrefix(value)
			if err != nil {
				t.Fatalf("quotes are not closed in the line %q", line)
			}
			rest = value[len(quoted):]
			fields[key], _ = strconv.Unquote(quoted)
			continue
		}
		end := strings.IndexByte(value, ' ')
		if end < 0 {
			end = len(value)
		}
		if strings.ContainsAny(value[:end], `"\=`) {
			t.Fatalf("value %q without quotes in the line %q", value[:end], line)
		}
		fields[key], rest = value[:end], value[end:]
	}
	if last < slices.Index(order, FieldDuration) {
		t.Fatalf("fields are missing from the line %q", line)
	}
	return fields
}

// Whatever a client sends for a name, and whatever an error quotes of it, the line has the fields of the
// record and no other, each with its value, and is short.
func FuzzAppendLine(f *testing.F) {
	for _, s := range []string{
		"example.org", "", "a\nb", "a\r\n[INFO] plugin/sandboxallow: allowed", "\x1b[2J", `a" verdict=allow b="`, `\`, `\"`, "=", " ",
		"\u009b1m", "\u202e", "\u2028", "\xff\xfe", "\xe2\x80", "\x00", "\x7f", strings.Repeat("\xff", 300), strings.Repeat("ü", 200),
		`x repeated=7`, `name=b`, "`", "'",
	} {
		f.Add(s, s, uint16(443), byte(0))
		f.Add("a.example.com", s, uint16(0), byte(4))
	}
	f.Fuzz(func(t *testing.T, name, err string, port uint16, layer byte) {
		r := decide(rules, Layer(layer), name, port)
		r.Error = err
		fields := fieldsOf(t, r, string(r.AppendLine(nil)))
		for key, want := range map[string]string{
			FieldName:    Printable(cut(name, MaxName)),
			FieldError:   Printable(cut(err, maxError)),
			FieldVerdict: r.Decision.Verdict.String(),
			FieldReason:  r.Decision.Reason.String(),
			FieldClient:  client.String(),
			FieldPort:    strconv.Itoa(int(port)),
		} {
			if fields[key] != want {
				t.Errorf("%s: got %q, want %q", key, fields[key], want)
			}
		}
		const longest = len(`\uffff`)
		if n := len(fields[FieldName]); n > longest*MaxName {
			t.Errorf("got a name of %d octets", n)
		}
		if fields[FieldName] == name {
			return
		}
		if _, err := policy.ParseName(name); err == nil && len(name) <= MaxName {
			t.Errorf("got name %q for %q", fields[FieldName], name)
		}
	})
}

// Whatever clients are denied, in whatever order: each decision is told once, and no name is longer than
// it may be.
func FuzzFolder(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 2, 0, 1, 1, 1})
	f.Add([]byte(strings.Repeat("\x00\x01\x02\xff\xfe\x03", 50)))
	f.Fuzz(func(t *testing.T, script []byte) {
		told, decisions := 0, 0
		write := func(r *Record) {
			told += max(1, r.Repeated, r.Suppressed)
			if len(r.Name) > MaxName {
				t.Errorf("got a name of %d octets", len(r.Name))
			}
		}
		fo := NewFolder(write)
		for len(script) >= 3 {
			who, what, how := script[0], script[1], script[2]
			script = script[3:]
			if how == 255 {
				fo.emit(fo.due)
				continue
			}
			r := decide(rules, Layer(how%3), strings.Repeat(strconv.Itoa(int(what)), int(how)), uint16(what%2))
			r.Client = netip.AddrFrom4([4]byte{10, 0, 0, who})
			decisions++
			if how%2 == 0 {
				fo.Hold(&r)
			} else if fo.Admit(&r) {
				told++
			}
		}
		fo.Flush()
		if told != decisions {
			t.Errorf("got %d decisions told, want %d", told, decisions)
		}
		if kinds, sources := fo.size(); kinds+sources != 0 {
			t.Errorf("got %d names and %d clients in memory after the flush", kinds, sources)
		}
	})
}
