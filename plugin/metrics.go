package sandboxallow

import (
	"maps"
	"slices"
	"sync"

	"github.com/coredns/coredns/plugin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// No label holds a name from a question: whoever asks could make any number of them.
var (
	decisionsTotal = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace,
		Subsystem: name,
		Name:      "decisions_total",
		Help:      "Counter of decisions, one for each question.",
	}, []string{"layer", "policy", "verdict", "reason"})
	reloadFailuresTotal = promauto.NewCounter(prometheus.CounterOpts{
		Namespace: plugin.Namespace,
		Subsystem: name,
		Name:      "reload_failures_total",
		Help:      "Counter of changed policy documents that were not taken.",
	})
	policyInfo = prometheus.NewDesc(
		prometheus.BuildFQName(plugin.Namespace, name, "policy_info"),
		"Policies in force, by their hash. Always 1.", []string{"hash"}, nil)
	policyStale = prometheus.NewDesc(
		prometheus.BuildFQName(plugin.Namespace, name, "policy_stale"),
		"Whether a policy in force is older than its document, which is missing or broken.", nil, nil)
)

// layer tells our decisions from the gateway's, which have the same fields.
var layer = decision.DNS.String()

// counters are the series of decisionsTotal that one set of policies has used so far. Looking a series up
// by its label values costs more than the decision.
type counters struct {
	set *policy.Set // a new set gets new counters: the series of policies that went away are deleted
	of  map[outcome]prometheus.Counter
}

type outcome struct {
	policy  string
	verdict policy.Verdict
	reason  policy.Reason
}

// count adds d to the decisions.
func (s *SandboxAllow) count(set *policy.Set, d policy.Decision) {
	o := outcome{d.Policy, d.Verdict, d.Reason}
	cs := s.counters.Load()
	if cs != nil && cs.set == set {
		if c, ok := cs.of[o]; ok {
			c.Inc()
			return
		}
	}
	// Copied rather than locked: this happens once for each outcome.
	next := &counters{set: set, of: map[outcome]prometheus.Counter{}}
	if cs != nil && cs.set == set {
		maps.Copy(next.of, cs.of)
	}
	c := decisionsTotal.WithLabelValues(layer, o.policy, o.verdict.String(), o.reason.String())
	next.of[o] = c
	s.counters.CompareAndSwap(cs, next) // or another question was first, and the next one tries again
	c.Inc()
}

// running are the plugins that serve, in all server blocks. Around a reload those are the old and the new
// ones for a moment.
var running = &registry{plugins: map[*SandboxAllow]struct{}{}}

func init() { prometheus.MustRegister(running) }

// registry collects the metrics that are states of the running plugins. They are read when somebody
// scrapes, so that no order of events can leave an old value behind.
type registry struct {
	mu       sync.Mutex
	plugins  map[*SandboxAllow]struct{}
	policies map[string]struct{} // whose series of decisionsTotal exist
}

func (g *registry) add(s *SandboxAllow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.plugins[s] = struct{}{}
	g.prune()
}

func (g *registry) remove(s *SandboxAllow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.plugins, s)
	g.prune()
}

func (g *registry) changed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.prune()
}

// all returns the running plugins. Callers ask them without the lock held, as they have locks too.
func (g *registry) all() []*SandboxAllow {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.plugins))
}

// prune deletes the series of policies that no document has any more. Where a policy is made for each
// sandbox, they would pile up.
func (g *registry) prune() {
	now := map[string]struct{}{}
	for s := range g.plugins {
		for _, p := range s.store.Set().Policies() {
			now[p] = struct{}{}
		}
	}
	for p := range g.policies {
		if _, ok := now[p]; !ok {
			decisionsTotal.DeletePartialMatch(prometheus.Labels{"policy": p})
		}
	}
	g.policies = now
}

// Describe implements prometheus.Collector.
func (g *registry) Describe(ch chan<- *prometheus.Desc) {
	ch <- policyInfo
	ch <- policyStale
}

// Collect implements prometheus.Collector.
func (g *registry) Collect(ch chan<- prometheus.Metric) {
	hashes := map[string]struct{}{}
	stale := 0.0
	for _, s := range g.all() {
		hashes[s.store.Set().Hash()] = struct{}{}
		if s.store.Stale() {
			stale = 1
		}
	}
	for h := range hashes {
		ch <- prometheus.MustNewConstMetric(policyInfo, prometheus.GaugeValue, 1, h)
	}
	ch <- prometheus.MustNewConstMetric(policyStale, prometheus.GaugeValue, stale)
}
