package sandboxallow

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
)

// series returns the series of ours whose name ends in suffix, in the form `label="value",... value`.
func series(t testing.TB, suffix string) []string {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range families {
		if f.GetName() != "coredns_sandboxallow_"+suffix {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			v := m.GetGauge().GetValue()
			if f.GetType() == dto.MetricType_COUNTER {
				v = m.GetCounter().GetValue()
			}
			all = append(all, fmt.Sprintf("%s %v", strings.Join(labels, ","), v))
		}
	}
	return all
}

func TestMetricNames(t *testing.T) {
	s := parseBlock(t, p0)
	s.start()
	defer s.stop()
	ask(t, s, "", query("example.com.", dns.TypeA, -1))
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	ours := slices.DeleteFunc(families, func(f *dto.MetricFamily) bool {
		return !strings.HasPrefix(f.GetName(), "coredns_sandboxallow_")
	})
	problems, err := promlint.NewWithMetricFamilies(ours).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, name := range []string{"decisions_total", "policy_info", "policy_stale", "reload_failures_total"} {
		if len(series(t, name)) == 0 {
			t.Errorf("no series of %s", name)
		}
	}
}

func TestDecisionsAreCounted(t *testing.T) {
	doc := writeFile(t, "policy", "policy counted {\n\tallow example.com\n\tdeny .denied.test\n}\n")
	s := parseBlock(t, "answer 10.200.0.1\npolicy_file "+doc+fastPoll)
	s.start()
	defer s.stop()
	for _, qname := range []string{"example.com.", "denied.test.", "other.test.", "other.test.", "com.", ".", `a\.b.`} {
		ask(t, s, "", query(qname, dns.TypeA, -1))
	}
	got := slices.DeleteFunc(series(t, "decisions_total"), func(s string) bool { return !strings.Contains(s, `policy="counted"`) })
	want := []string{
		`layer="dns",policy="counted",reason="",verdict="allow" 1`,
		`layer="dns",policy="counted",reason="bad_name",verdict="deny" 1`,
		`layer="dns",policy="counted",reason="denied",verdict="deny" 1`,
		`layer="dns",policy="counted",reason="not_allowed",verdict="deny" 4`,
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	// A policy that went away takes its series along, and of one that comes back every question counts.
	t.Run("policy removed and back", func(t *testing.T) {
		change := func(content string) {
			t.Helper()
			before := s.store.Set()
			replaceFile(t, doc, content)
			waitFor(t, "new policy", func() bool { return s.store.Set() != before })
		}
		counted := func() bool {
			return strings.Contains(strings.Join(series(t, "decisions_total"), "\n"), `policy="counted"`)
		}
		change("policy other {\n\tallow example.com\n}\n")
		waitFor(t, "no series of a policy that is gone", func() bool { return !counted() })
		change("policy counted {\n\tallow example.com\n}\n")
		ask(t, s, "", query("example.com.", dns.TypeA, -1))
		if all := series(t, "decisions_total"); !slices.Contains(all, want[0]) {
			t.Errorf("got\n%s\nwant %s", strings.Join(all, "\n"), want[0])
		}
	})
}

func TestPolicyInfo(t *testing.T) {
	a := parseBlock(t, "answer 10.200.0.1\nallow a.example.com")
	b := parseBlock(t, "answer 10.200.0.1\nallow b.example.com")
	sameAsA := parseBlock(t, "answer 10.200.0.1\nallow a.example.com")
	info := func(s *SandboxAllow) string { return fmt.Sprintf("hash=%q 1", s.store.Set().Hash()) }
	if got := series(t, "policy_info"); len(got) != 0 {
		t.Fatalf("got %q before any plugin runs", got)
	}
	a.start()
	sameAsA.start()
	b.start()
	got, want := series(t, "policy_info"), []string{info(a), info(b)}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	a.stop()
	b.stop()
	if got := series(t, "policy_info"); !slices.Equal(got, []string{info(a)}) {
		t.Errorf("got %q, want %q as long as one plugin has it", got, info(a))
	}
	sameAsA.stop()
	if got := series(t, "policy_info"); len(got) != 0 {
		t.Errorf("got %q after the last plugin has stopped", got)
	}
}

// Whoever asks for names that nobody has must not fill memory.
func TestManyNames(t *testing.T) {
	s := parseBlock(t, p0)
	s.start()
	defer s.stop()
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const names = 100_000
	ask(t, s, "", query("first.denied.test.", dns.TypeA, 1232))
	before, seriesBefore := heap(), len(series(t, "decisions_total"))
	for i := range names {
		ask(t, s, "", query(fmt.Sprintf("n%d.denied.test.", i), dns.TypeA, 1232))
	}
	t.Run("dns-081", func(t *testing.T) {
		if grown := heap() - before; grown > 1<<20 {
			t.Errorf("heap grew by %d octets over %d names", grown, names)
		}
	})
	t.Run("ops-016", func(t *testing.T) {
		if n := len(series(t, "decisions_total")); n != seriesBefore {
			t.Errorf("got %d series, want %d", n, seriesBefore)
		}
	})
}
