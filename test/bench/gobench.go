package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// goBenchmarks is what benchmarks in Go say of our policy. functions are, by column, a metric and the benchmark that
// has it ("ns/op BenchmarkSelect$"), or empty where there is none. They run in turns as all others do.
func (l *lab) goBenchmarks(name, setUp string, functions ...string) peer {
	return peer{name: name, setUp: setUp, ours: true, start: func(ctx context.Context) (*server, error) {
		if err := l.compileBenchmarks(ctx); err != nil {
			return nil, err
		}
		return &server{functions: functions}, nil
	}}
}

// policyPackage is where the benchmarks are.
const policyPackage = "internal/policy"

func (l *lab) policyTest() string { return filepath.Join(l.root, "bin", "bench", "policy.test") }

func (l *lab) compileBenchmarks(ctx context.Context) error {
	_, err := l.once(l.policyTest(), func() error {
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", l.policyTest(), "./"+policyPackage)
		cmd.Dir = l.root
		return quietly(cmd)
	})
	return err
}

// policies is a measure of goBenchmarks.
func (l *lab) policies(name string) measure {
	return measure{
		name: name,
		text: "Benchmarks in Go of internal/policy. A lookup is of a name that was asked for before; selecting is finding the policy of a " +
			"client address. Memory is what a policy keeps on the heap.",
		columns: []column{
			{"load", milliseconds, false},
			{"lookup, allowed", nanoseconds, false},
			{"lookup, denied", nanoseconds, false},
			{"memory", megabytes, false},
			{"select", nanoseconds, false},
		},
		take: func(ctx context.Context, s *server, p pace) ([]float64, error) {
			values := make([]float64, len(s.functions))
			for i, f := range s.functions {
				var err error
				if values[i], err = l.goBenchmark(ctx, f, p.window/2); err != nil {
					return nil, err
				}
			}
			return values, nil
		},
	}
}

// goBenchmark runs the one benchmark of a function, and returns its metric in seconds or bytes.
func (l *lab) goBenchmark(ctx context.Context, function string, d time.Duration) (float64, error) {
	if function == "" {
		return math.NaN(), nil
	}
	unit, name, _ := strings.Cut(function, " ")
	cmd := exec.CommandContext(ctx, l.policyTest(), "-test.run", "^$", "-test.bench", name, "-test.benchtime", d.String())
	cmd.Dir = filepath.Join(l.root, policyPackage)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return readBenchmark(out, unit)
}

// readBenchmark finds the one value of a unit in what a benchmark has printed.
func readBenchmark(out []byte, unit string) (float64, error) {
	scale, ok := map[string]float64{"ns/op": 1e-9, "MB-held": 1e6}[unit]
	if !ok {
		return 0, fmt.Errorf("no unit %q", unit)
	}
	var values []float64
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		for i := 2; i+1 < len(f) && strings.HasPrefix(f[0], "Benchmark"); i += 2 {
			if f[i+1] != unit {
				continue
			}
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				return 0, fmt.Errorf("%q: %w", line, err)
			}
			values = append(values, v*scale)
		}
	}
	if len(values) != 1 {
		return 0, fmt.Errorf("%d values of %s, want one: %s", len(values), unit, bytes.TrimSpace(out))
	}
	return values[0], nil
}
