package sandboxallow

import (
	"context"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
)

func TestMetadata(t *testing.T) {
	s := parseBlock(t, "answer 10.200.0.1\nmode learn\nallow example.com\ndeny denied.test")
	tests := []struct {
		qname                         string
		policy, verdict, reason, rule string
	}{
		{"example.com.", "default", "allow", "", "Testfile:4"},
		{"denied.test.", "default", "deny", "denied", "Testfile:5"},
		{"example.org.", "default", "would_deny", "not_allowed", ""},
		{"db.internal.", "default", "deny", "not_allowed", ""},
		{`a\.b.`, "default", "deny", "bad_name", ""},
		{".", "default", "deny", "not_allowed", ""},
	}
	for _, tc := range tests {
		t.Run(tc.qname, func(t *testing.T) {
			q := query(tc.qname, dns.TypeA, -1)
			w := &test.ResponseWriter{}
			ctx := s.Metadata(metadata.ContextWithMetadata(context.Background()), request.Request{Req: q, W: w})

			value := func(label string) string {
				f := metadata.ValueFunc(ctx, label)
				if f == nil {
					t.Fatalf("no label %s", label)
				}
				return f()
			}
			if v := value("sandboxallow/verdict"); v != "" {
				t.Errorf("got verdict %q before there was one", v)
			}
			if _, err := s.ServeDNS(ctx, w, q); err != nil {
				t.Fatal(err)
			}
			for label, want := range map[string]string{
				"sandboxallow/policy":  tc.policy,
				"sandboxallow/verdict": tc.verdict,
				"sandboxallow/reason":  tc.reason,
				"sandboxallow/rule":    tc.rule,
			} {
				if got := value(label); got != want {
					t.Errorf("got %s %q, want %q", label, got, want)
				}
			}
		})
	}
}

// The labels are of the name that was judged, which rewrite may have changed since they were collected.
func TestMetadataInLog(t *testing.T) {
	logged := captureLog(t)
	udp, _ := serve(t, p0, "metadata", `log . "verdict={/sandboxallow/verdict} reason={/sandboxallow/reason} policy={/sandboxallow/policy} rule={/sandboxallow/rule}."`,
		"rewrite name exact alias.test example.com")
	exchange(t, "udp", udp, query("alias.test.", dns.TypeA, -1))
	exchange(t, "udp", udp, query("denied.test.", dns.TypeA, -1))
	for _, want := range []string{
		"verdict=allow reason= policy=default rule=Corefile:5.",
		"verdict=deny reason=not_allowed policy=default rule=.",
	} {
		waitFor(t, "log line "+want, func() bool { return strings.Contains(logged(), want) })
	}
}
