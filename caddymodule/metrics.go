package caddymodule

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

const (
	namespace = "caddy"
	subsystem = "sandboxallow"
)

// metrics are the series of one configuration; Caddy has a registry for each. No label holds a name or an
// address: clients could make any number of them.
type metrics struct {
	decisions      *prometheus.CounterVec
	bytes          *prometheus.CounterVec
	panics         prometheus.Counter
	reloadFailures prometheus.Counter
	resolve        prometheus.Histogram
	dial           prometheus.Histogram
}

func newMetrics(reg *prometheus.Registry, store *policy.Store) *metrics {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	histogram := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}
	}
	m := &metrics{
		decisions: register(reg, prometheus.NewCounterVec(
			counter("decisions_total", "Decisions, one for each connection or request."),
			[]string{"layer", "policy", "verdict", "reason"})),
		bytes: register(reg, prometheus.NewCounterVec(
			counter("bytes_total", "Bytes of closed tunnels and requests, in from the client and out to it."),
			[]string{"direction"})),
		panics:         register(reg, prometheus.NewCounter(counter("panics_total", "Panics in handlers, which end that connection or request only."))),
		reloadFailures: register(reg, prometheus.NewCounter(counter("reload_failures_total", "Changed policy documents that were not taken."))),
		resolve:        register(reg, prometheus.NewHistogram(histogram("resolve_duration_seconds", "Time to resolve a name, from the cache or not."))),
		dial:           register(reg, prometheus.NewHistogram(histogram("dial_duration_seconds", "Time to connect to an upstream."))),
	}
	register(reg, prometheus.Collector(state{store}))
	return m
}

// register registers c, or returns what an identical app of the same configuration has registered.
func register[C prometheus.Collector](reg *prometheus.Registry, c C) C {
	if err := reg.Register(c); err != nil {
		var are prometheus.AlreadyRegisteredError
		if errors.As(err, &are) {
			if existing, ok := are.ExistingCollector.(C); ok {
				return existing
			}
		}
	}
	return c
}

func (m *metrics) decided(layer decision.Layer, d policy.Decision) {
	m.decisions.WithLabelValues(layer.String(), d.Policy, d.Verdict.String(), d.Reason.String()).Inc()
}

func (m *metrics) closed(in, out int64) {
	m.bytes.WithLabelValues("in").Add(float64(in))
	m.bytes.WithLabelValues("out").Add(float64(out))
}

func (m *metrics) resolved(d time.Duration) { m.resolve.Observe(d.Seconds()) }

func (m *metrics) dialled(d time.Duration) { m.dial.Observe(d.Seconds()) }

// state collects what is so now, when somebody asks.
type state struct{ store *policy.Store }

var (
	openTunnels = prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, "open_tunnels"),
		"Tunnels that are open, and requests that are being answered.", nil, nil)
	policyInfo = prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, "policy_info"),
		"The policies in force, by their hash. Always 1.", []string{"hash"}, nil)
	policyStale = prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, "policy_stale"),
		"Whether the policies in force are older than their document, which is missing or broken.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s state) Describe(ch chan<- *prometheus.Desc) {
	ch <- openTunnels
	ch <- policyInfo
	ch <- policyStale
}

// Collect implements prometheus.Collector.
func (s state) Collect(ch chan<- prometheus.Metric) {
	stale := 0.0
	if s.store.Stale() {
		stale = 1
	}
	ch <- prometheus.MustNewConstMetric(openTunnels, prometheus.GaugeValue, float64(open.len()))
	ch <- prometheus.MustNewConstMetric(policyInfo, prometheus.GaugeValue, 1, s.store.Set().Hash())
	ch <- prometheus.MustNewConstMetric(policyStale, prometheus.GaugeValue, stale)
}
