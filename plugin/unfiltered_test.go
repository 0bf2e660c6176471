package sandboxallow

import (
	"strings"
	"testing"
)

func TestUnfiltered(t *testing.T) {
	const (
		with    = "bind 127.0.0.1\nsandboxallow {\nanswer 10.200.0.1\nallow example.com\n}\n"
		without = "bind 127.0.0.1\nwhoami\n"
	)
	tests := []struct {
		name     string
		corefile string
		want     []string // parts of the warnings, one each
	}{
		{"alone", ".:0 {\n" + with + "}", nil},
		{"several zones", ".:0 example.org:0 {\n" + with + "}", nil},
		{"other block with the plugin", ".:0 {\n" + with + "}\nexample.org:0 {\n" + with + "}", nil},
		{"other listener", ".:0 {\n" + with + "}\nexample.org:0 {\nbind 127.0.0.2\nwhoami\n}", nil},
		{"other transport", ".:0 {\n" + with + "}\ntls://example.org:0 {\n" + without + "}", nil},
		{"no block with the plugin", ".:0 {\n" + without + "}", nil},
		{"more specific zone", ".:0 {\n" + with + "}\nexample.org:0 {\n" + without + "}",
			[]string{"Names in zone example.org. are not filtered"}},
		{"two of them", "example.org:0 {\n" + without + "}\n.:0 {\n" + with + "}\nexample.net:0 {\n" + without + "}",
			[]string{"Names in zone example.org. are not filtered", "Names in zone example.net. are not filtered"}},
		{"one of several addresses", ".:0 {\n" + with + "}\nexample.org:0 {\nbind 127.0.0.2 127.0.0.1\nwhoami\n}",
			[]string{"Names in zone example.org. are not filtered"}},
		{"every address", ".:0 {\n" + with + "}\nexample.org:0 {\nwhoami\n}",
			[]string{"Names in zone example.org. are not filtered"}},
		{"by import", "(plain) {\n" + without + "}\n.:0 {\n" + with + "}\nexample.org:0 {\nimport plain\n}",
			[]string{"Names in zone example.org. are not filtered"}},
		{"view of the same zone", ".:0 {\nview open {\nexpr client_ip() == '127.0.0.9'\n}\n" + without + "}\n.:0 {\n" + with + "}",
			[]string{"Names in zone . are not filtered"}},
		{"dns-080", "example.com:0 {\n" + with + "}",
			[]string{"Names outside zone example.com. at dns://:0 are REFUSED"}},
		{"root without the plugin", "example.com:0 {\n" + with + "}\n.:0 {\n" + without + "}",
			[]string{"Names in zone . are not filtered"}},
		{"dns-071", ".:0 {\ndebug\n" + with + "}",
			[]string{"A panic would end the process: debug is on in the server block of zone ."}},
		{"debug next door", ".:0 {\n" + with + "}\nexample.org:0 {\ndebug\n" + with + "}",
			[]string{"debug is on in the server block of zone example.org."}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			logged := captureLog(t)
			startCoreDNS(t, tc.corefile)
			var got []string
			for line := range strings.Lines(logged()) {
				if strings.Contains(line, "[WARNING] plugin/sandboxallow: ") {
					got = append(got, line)
				}
			}
			if len(got) != len(tc.want) {
				t.Fatalf("got %d warnings, want %d:\n%s", len(got), len(tc.want), strings.Join(got, ""))
			}
			for i := range got {
				if !strings.Contains(got[i], tc.want[i]) {
					t.Errorf("got warning %q, want %q in it", got[i], tc.want[i])
				}
			}
		})
	}
}
