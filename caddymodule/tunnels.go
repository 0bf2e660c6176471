package caddymodule

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/listener"
	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
)

// open are the tunnels of this process. They outlive the configuration that opened them, so they are not
// the app's: the limit is that of the process, and whichever configuration is in force judges them all.
var open = tunnels{open: make(map[*openTunnel]struct{})}

type tunnels struct {
	held atomic.Int64 // connections that count towards the limit

	mu     sync.Mutex
	open   map[*openTunnel]struct{}
	opened uint64 // so far
}

// openTunnel is what it takes to decide again on a tunnel, or on a request that is being answered, and to end it.
type openTunnel struct {
	client   netip.Addr
	listener string // the policy that the listener names, "" if none
	name     policy.Name
	port     uint16
	upstream netip.AddrPort
	layer    decision.Layer
	start    time.Time
	number   uint64 // the first of the process is 1
	cut      func() // ends it so that half an answer does not look like all of it
	counters *tunnel.Counters
	own      tunnel.Counters
	opaque   bool // it may carry what is not TLS for the name
	brokered bool // it leads to the site of the name, or is a request through it

	revoked atomic.Uint32 // policy.Reason for which it was closed
}

// acquire takes a place, unless max are taken.
func (ts *tunnels) acquire(max int) bool {
	if ts.held.Add(1) > int64(max) {
		ts.held.Add(-1)
		return false
	}
	return true
}

func (ts *tunnels) release() { ts.held.Add(-1) }

// add registers a tunnel and decides on it once more if its app is not the judge or the set is not the one
// in force: a change that came while it was being opened has passed it by.
func (ts *tunnels) add(t *openTunnel, a *App, set *policy.Set) {
	ts.mu.Lock()
	ts.open[t] = struct{}{}
	ts.opened++
	t.number = ts.opened
	ts.mu.Unlock()
	switch judge := running.judge(); {
	case judge == nil: // the last app has stopped, and has not seen this tunnel
		t.revoke(policy.ReasonNoPolicy)
	case judge != a || judge.store.Set() != set:
		t.recheck(judge)
	}
}

func (ts *tunnels) len() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return len(ts.open)
}

func (ts *tunnels) remove(t *openTunnel) {
	ts.mu.Lock()
	delete(ts.open, t)
	ts.mu.Unlock()
}

func (ts *tunnels) all() []*openTunnel {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	all := make([]*openTunnel, 0, len(ts.open))
	for t := range ts.open {
		all = append(all, t)
	}
	return all
}

// recheck closes the tunnels that a would not open now.
func (ts *tunnels) recheck(a *App) {
	for _, t := range ts.all() {
		t.recheck(a)
	}
}

// revokeAll closes all tunnels because no app is left to judge them.
func (ts *tunnels) revokeAll() {
	for _, t := range ts.all() {
		t.revoke(policy.ReasonNoPolicy)
	}
}

func (t *openTunnel) recheck(a *App) {
	sel := a.store.Set().Select(t.client, t.listener)
	d := sel.Lookup(t.name, t.port)
	if d.Verdict.Admits() && t.upstream.IsValid() && a.floor.Check(t.upstream, sel.Lifts(t.upstream.Addr())) != nil {
		d = policy.Decision{Reason: policy.ReasonPrivateAddress}
	}
	if d.Verdict.Admits() && t.passesBy(a.brokering(t.name, t.port)) {
		d = policy.Decision{Reason: policy.ReasonNotBrokered}
	}
	if !d.Verdict.Admits() {
		t.revoke(d.Reason)
	}
}

// passesBy reports whether the tunnel would not be opened because of a site that brokers the name.
func (t *openTunnel) passesBy(b brokering) bool {
	return !t.brokered && (b == brokeredHere || b == brokeredOnOther && !t.opaque)
}

// revoke ends the tunnel for a reason.
func (t *openTunnel) revoke(reason policy.Reason) {
	if t.revoked.CompareAndSwap(0, uint32(reason)) {
		t.cut()
	}
}

// opened returns the tunnel of a record whose upstream is connected.
func (r *record) opened(n policy.Name, cut func()) *openTunnel {
	t := &openTunnel{
		client: r.Client, listener: r.listener, name: n, port: r.Port, upstream: r.Upstream, cut: cut,
		layer: r.Layer, start: r.start, opaque: r.opaque,
	}
	t.counters = &t.own
	t.own.In.Store(r.early)
	return t
}

// resetAll closes connections with a reset. Closing one may make who copies between them close the others:
// they have to be told first.
func resetAll(conns ...net.Conn) {
	for _, c := range conns {
		if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
			l.SetLinger(0)
		}
	}
	for _, c := range conns {
		c.Close()
	}
}

// tunnelsFor is the default of max_tunnels under a limit of open descriptors, of which pipes take some. A
// tunnel has two; what the resolver, listeners and logs need is set aside, and room for connections that are
// only accepted to be refused and for those to upstreams that wait for the next request.
func tunnelsFor(limit, pipes uint64) int {
	aside := max(128, limit/8) + pipes
	if limit < aside+2 {
		return 1
	}
	return int(min((limit-aside)/2, 1<<20))
}

// backlogFor is how many connections may wait to be accepted: half of the room for those that are accepted to
// be refused.
func backlogFor(limit, pipes uint64, tunnels int) int {
	taken := pipes + 2*uint64(tunnels)
	if limit < taken {
		return 1
	}
	return int(max((limit-taken)/2, 1))
}

// boundBacklog keeps a crowd that comes at once from taking the last descriptor. The accept loop of
// caddy-l4 does not stop for those that it has accepted to be served, and ends for good when accept(2)
// finds no free descriptor. What it finds waiting is all that it can accept in one go.
func (a *App) boundBacklog() {
	n := backlogFor(descriptorLimit(), uint64(tunnel.PipeDescriptors()), a.MaxTunnels)
	if err := listener.SetBacklog(n); err != nil {
		a.log.Debug("backlog of listeners not bounded", zap.Error(err))
	}
}

// lookupsFor is how many names may be resolved at a time under a limit of open descriptors: each takes some.
func lookupsFor(limit uint64) int { return int(min(max(limit/64, 4), 64)) }

// idleFor is how many connections to upstreams may wait for the next request under a limit of open descriptors.
func idleFor(limit uint64) int64 { return int64(min(max(limit/32, 8), 512)) }
