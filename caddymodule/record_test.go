package caddymodule

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sandboxallow/sandboxallow/internal/decision"
)

// A denial that a client repeats is a line a second with their number. All are counted.
func TestRepeatedDenials(t *testing.T) {
	none := newFolder
	newFolder = decision.NewFolder
	defer func() { newFolder = none }()
	g := startDefault(t, nil)
	const n = 20
	for range n {
		if _, err := g.dial("evil.test"); err == nil || err.Error() != alertError(alertUnrecognizedName) {
			t.Fatalf("client sees %v, want %s", err, alertError(alertUnrecognizedName))
		}
	}
	lines, stand := 0, int64(0)
	for stand < n {
		e := g.entry(decision.MsgDenied)
		if e["name"] != "evil.test" || e["reason"] != "not_allowed" || e["client"] != "127.0.0.1" || e["hint"] == nil {
			t.Errorf("log: %v", e)
		}
		lines++
		if repeated, ok := e["repeated"].(int64); ok {
			stand += repeated
		} else {
			stand++
		}
	}
	if stand != n || lines > n/2 {
		t.Errorf("%d lines stand for %d denials, want a few for %d", lines, stand, n)
	}
	if got := testutil.ToFloat64(g.app.metrics.decisions.WithLabelValues("tls", "default", "deny", "not_allowed")); got != n {
		t.Errorf("decisions_total is %v, want %d", got, n)
	}
}
