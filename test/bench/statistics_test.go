package main

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		name         string
		xs           []float64
		want, spread float64
	}{
		{"odd", []float64{9, 1, 5}, 5, 0.8},
		{"even", []float64{4, 1, 3, 2}, 2.5, 0.6},
		{"one", []float64{7}, 7, 0},
		{"none", nil, math.NaN(), math.NaN()},
		{"not a number", []float64{1, math.NaN(), 2}, math.NaN(), math.NaN()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := median(tc.xs); !same(got, tc.want) {
				t.Errorf("median: got %v, want %v", got, tc.want)
			}
			if got := spread(tc.xs); !same(got, tc.spread) {
				t.Errorf("spread: got %v, want %v", got, tc.spread)
			}
		})
	}
}

func TestRatio(t *testing.T) {
	a := &row{rounds: [][]float64{{0, 10}, {0, 40}, {0, 90}}}
	b := &row{rounds: [][]float64{{1, 10}, {1, 20}, {1, 10}}}
	failed := &row{rounds: b.rounds, err: errors.New("failed")}
	// Within the rounds it is 1, 2 and 9; the ratio of the medians would be 4.
	if got := ratio(a, b, 1); got != 2 {
		t.Errorf("got %v, want 2", got)
	}
	for _, tc := range []struct {
		name       string
		r, against *row
	}{
		{"failed", failed, b},
		{"against failed", a, failed},
		{"no such peer", nil, b},
		{"against no such peer", a, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := ratio(tc.r, tc.against, 1); !math.IsNaN(got) {
				t.Errorf("got %v, want none", got)
			}
		})
	}
}

func TestPercentile(t *testing.T) {
	var u use
	if got := u.percentile(0.5); !math.IsNaN(got) {
		t.Errorf("of nothing: got %v, want none", got)
	}
	for i := range 200 {
		u.latencies = append(u.latencies, time.Duration(i+1)*time.Second)
	}
	for p, want := range map[float64]float64{0: 1, 0.5: 100, 0.99: 198, 1: 200} {
		if got := u.percentile(p); got != want {
			t.Errorf("%v: got %v, want %v", p, got, want)
		}
	}
}

func TestVerdict(t *testing.T) {
	within := target{low: 0.95, high: 1.05}
	for _, tc := range []struct {
		ratio float64
		want  string
	}{
		{1, "ok"}, {0.95, "ok"}, {1.05, "ok"}, {0.949, "miss"}, {1.051, "miss"}, {math.NaN(), "not measured"},
	} {
		if got := within.verdict(tc.ratio); got != tc.want {
			t.Errorf("%v: got %s, want %s", tc.ratio, got, tc.want)
		}
	}
}

// TestTargets holds that each target names peers and a column that there are: one that does not would be
// "not measured" for ever.
func TestTargets(t *testing.T) {
	for _, target := range targets {
		found := false
		for _, s := range suites(new(lab)) {
			for _, m := range s.measures {
				tb := table{measure: m}
				for _, p := range s.peers {
					tb.rows = append(tb.rows, &row{peer: p, rounds: [][]float64{slices.Repeat([]float64{1}, len(m.columns))}})
				}
				found = found || m.name == target.measure && tb.value(target) == 1
			}
		}
		if !found {
			t.Errorf("no suite measures %q, %q, %q against %q", target.measure, target.column, target.peer, target.against)
		}
	}
}

func same(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }
