package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// TestFailures holds that whoever fails, at start or in any round, gets the reason and no number.
func TestFailures(t *testing.T) {
	healthy := func(context.Context) (*server, error) { return &server{version: "1.0"}, nil }
	broken := &server{version: "0.9"}
	calls := 0
	s := suite{
		name: "test",
		peers: []peer{
			{name: "healthy", setUp: "as it comes", start: healthy},
			{name: "absent", start: func(context.Context) (*server, error) {
				return nil, fmt.Errorf("%w: no absentd, try apt-get install absent", errNotInstalled)
			}},
			{name: "sick", ours: true, start: func(context.Context) (*server, error) { return nil, errors.New("bad\nconfiguration") }},
			{name: "breaks", start: func(context.Context) (*server, error) { return broken, nil }},
		},
		measures: []measure{{
			name: "measure", text: "How it is done.", against: "healthy",
			columns: []column{{"CPU", microseconds, true}, {"rate", count, false}},
			take: load(func(ctx context.Context, s *server, m *meter) error {
				if s == broken {
					if calls++; calls == 2 {
						return errors.New("connection reset")
					}
				}
				for ctx.Err() == nil {
					m.took(time.Microsecond)
				}
				return nil
			}).values(func(use) []float64 { return []float64{12e-6, 34567} }),
		}},
	}
	tables, err := s.run(t.Context(), short)
	if err != nil {
		t.Fatal(err)
	}
	r := report{tables: tables, pace: short, machine: thisMachine()}
	var b strings.Builder
	r.print(&b)
	got := b.String()
	for _, want := range []string{
		"| healthy |       12.0 µs |      1.00 | ±0 % | 34,567 |",
		"| absent  | not installed |           |      |        |",
		"| sick    |        failed |           |      |        |",
		"| breaks  |        failed |           |      |        |",
		"**absent: not installed: no absentd, try apt-get install absent**",
		"**sick: bad configuration**",
		"**breaks: round 2: connection reset**",
		"| healthy | as it comes | 1.0     |",
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("want a line %q", want)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
	if err := r.ourFailure(); err == nil || !strings.Contains(err.Error(), "sick") {
		t.Errorf("ourFailure: got %v, want the one of sick", err)
	}
}

func TestFormats(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{microseconds(12.34e-6), "12.3 µs"},
		{milliseconds(0.00123), "1.23 ms"},
		{seconds(0.5), "0.500 s"},
		{percent(0.034), "±3 %"},
		{count(7), "7"},
		{count(999.6), "1,000"},
		{count(1234567), "1,234,567"},
		{decimal(math.NaN()), "–"},
		{count(math.NaN()), "–"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}

func TestFold(t *testing.T) {
	text := strings.Repeat("word ", 50)
	got := fold(text)
	for line := range strings.Lines(got) {
		if n := len(strings.TrimSuffix(line, "\n")); n > 110 {
			t.Errorf("got a line of %d characters, want at most 110", n)
		}
	}
	if strings.Join(strings.Fields(got), " ") != strings.TrimSpace(text) {
		t.Error("words have changed")
	}
}
