package caddymodule

import (
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// What a journal keeps at most. Clients choose names, and where they can forge addresses any number of these:
// what is oldest makes room. All of it together is some 6 MiB.
const (
	keptDecisions  = 256
	keptClients    = 64
	keptNames      = 64  // that a client was denied, each with its port
	keptDetailSize = 200 // octets
)

// recent is the journal of this process while a configuration has a dashboard. It is not the app's: like
// the tunnels that are open, what was decided outlives a reload.
var recent recentJournal

type recentJournal struct {
	mu      sync.Mutex
	users   int
	journal atomic.Pointer[journal] // nil without users: decisions cost no more than to see that
}

// use returns the journal, for one more user. release ends that.
func (r *recentJournal) use() *journal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users++; r.users == 1 {
		r.journal.Store(newJournal())
	}
	return r.journal.Load()
}

func (r *recentJournal) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users--; r.users == 0 {
		r.journal.Store(nil)
	}
}

func (r *recentJournal) decided(rec *record) {
	if j := r.journal.Load(); j != nil {
		j.decided(rec, time.Now())
	}
}

func (r *recentJournal) closed(rec *record) {
	if j := r.journal.Load(); j != nil {
		j.closed(rec, time.Now())
	}
}

// journal is what dashboards show of the past: the last decisions, and what each client was denied. A
// decision costs a lock and a copy; only a name that a client was not denied before takes memory.
type journal struct {
	epoch   string // tells this journal from one before it
	viewers chan struct{}

	mu        sync.Mutex
	begun     time.Time
	changes   uint64 // so far; whoever remembers the number can ask for what came later
	noted     uint64
	notes     [keptDecisions]note // the last ones, in a ring
	lost      uint64              // change of the note that was overwritten last
	clients   *simplelru.LRU[netip.Addr, *clientNotes]
	forgotten uint64 // clients that made room for others
	totals    totals
}

// totals are sums over all decisions and tunnels.
type totals struct {
	verdicts
	in, out int64 // bytes of tunnels and requests that have ended
}

// verdicts are the numbers of decisions, of all or on a client.
type verdicts struct{ allowed, wouldDeny, denied uint64 }

// note is a decision, or the end of a tunnel that is no longer allowed. It keeps nothing alive: a name can be
// part of a request head of 16 KiB, and a rule is part of a policy.
type note struct {
	change   uint64
	at       time.Time
	layer    decision.Layer
	client   netip.Addr
	policy   string
	verdict  policy.Verdict
	reason   policy.Reason
	revoked  bool
	ruleFile string
	ruleLine int
	port     uint16
	upstream netip.AddrPort
	detail   string
	nameSize uint8
	nameText [decision.MaxName]byte // as the client sent it, up to there
}

func (n *note) name() string { return string(n.nameText[:n.nameSize]) }

// rule returns file:line of the rule that decided, "" if none did.
func (n *note) rule() string {
	if n.ruleFile == "" {
		return ""
	}
	return n.ruleFile + ":" + strconv.Itoa(n.ruleLine)
}

// clientNotes are what a journal keeps of a client.
type clientNotes struct {
	verdicts
	change    uint64 // the last one
	policy    string
	names     *simplelru.LRU[asked, *denial]
	forgotten uint64 // names that made room for others
}

// asked is what a client asked for.
type asked struct {
	name string
	port uint16
}

// denial is what became of it, each time that it was denied or would have been.
type denial struct {
	change   uint64 // the last one
	count    uint64
	at       time.Time // of the last time, as is what follows
	verdict  policy.Verdict
	reason   policy.Reason
	listener string // the policy that the listener names
}

func newJournal() *journal {
	now := time.Now()
	j := &journal{
		epoch:   strconv.FormatInt(now.UnixNano(), 36),
		begun:   now,
		viewers: make(chan struct{}, maxViewers),
	}
	j.clients, _ = simplelru.NewLRU[netip.Addr, *clientNotes](keptClients, nil) // fails for sizes below 1
	return j
}

// decided notes a decision.
func (j *journal) decided(r *record, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.changes++
	j.note(r, now, false)
	j.totals.add(r.Decision.Verdict)
	c := j.client(r)
	c.add(r.Decision.Verdict)
	if r.Decision.Verdict != policy.Allow {
		c.denied(r, j.changes, now)
	}
}

// closed notes the end of a tunnel or request.
func (j *journal) closed(r *record, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.changes++
	if r.Decision.Verdict == policy.Deny {
		j.note(r, now, true)
	}
	j.totals.in += r.BytesIn
	j.totals.out += r.BytesOut
}

func (j *journal) note(r *record, now time.Time, revoked bool) {
	n := &j.notes[j.noted%keptDecisions]
	j.noted++
	j.lost = n.change
	d := &r.Decision
	n.change, n.at, n.revoked = j.changes, now, revoked
	n.layer, n.client, n.port, n.upstream = r.Layer, r.Client, r.Port, r.Upstream
	n.policy, n.verdict, n.reason = d.Policy, d.Verdict, d.Reason
	n.ruleFile, n.ruleLine = d.Rule.Place()
	n.nameSize = uint8(copy(n.nameText[:], r.Name))
	n.detail = r.Error
	if len(n.detail) > keptDetailSize {
		n.detail = strings.Clone(n.detail[:keptDetailSize])
	}
}

// client returns the notes on a record's client, as those that changed last.
func (j *journal) client(r *record) *clientNotes {
	c, ok := j.clients.Get(r.Client)
	if !ok {
		c = new(clientNotes)
		c.names, _ = simplelru.NewLRU[asked, *denial](keptNames, nil)
		if j.clients.Add(r.Client, c) {
			j.forgotten++
		}
	}
	c.change, c.policy = j.changes, r.Decision.Policy
	return c
}

func (vs *verdicts) add(v policy.Verdict) {
	switch v {
	case policy.Allow:
		vs.allowed++
	case policy.WouldDeny:
		vs.wouldDeny++
	default:
		vs.denied++
	}
}

func (c *clientNotes) denied(r *record, change uint64, now time.Time) {
	what := asked{r.Name, r.Port}
	if len(what.name) > decision.MaxName {
		what.name = what.name[:decision.MaxName]
	}
	d, ok := c.names.Get(what)
	if !ok {
		d = new(denial)
		what.name = strings.Clone(what.name)
		if c.names.Add(what, d) {
			c.forgotten++
		}
	}
	d.change, d.at, d.listener = change, now, r.listener
	d.verdict, d.reason = r.Decision.Verdict, r.Decision.Reason
	d.count++
}

// since returns what has changed after a change, and the last change: decisions oldest first, whether some
// are missing that are no longer kept, and the clients with the names whose denials have changed, both the
// oldest first.
func (j *journal) since(change uint64) (p past) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p = past{begun: j.begun, change: j.changes, totals: j.totals, forgotten: j.forgotten, gap: change > 0 && j.lost > change}
	for i := max(j.noted, keptDecisions) - keptDecisions; i < j.noted; i++ {
		if n := &j.notes[i%keptDecisions]; n.change > change {
			p.notes = append(p.notes, *n)
		}
	}
	for _, addr := range j.clients.Keys() {
		c, _ := j.clients.Peek(addr)
		if c.change <= change {
			continue
		}
		pc := pastClient{addr: addr, policy: c.policy, verdicts: c.verdicts, forgotten: c.forgotten}
		for _, what := range c.names.Keys() {
			if d, _ := c.names.Peek(what); d.change > change {
				pc.denials = append(pc.denials, pastDenial{what, *d})
			}
		}
		p.clients = append(p.clients, pc)
	}
	return p
}

// past is a copy of what a journal keeps, or of what has changed in it.
type past struct {
	begun     time.Time
	change    uint64
	totals    totals
	notes     []note
	gap       bool
	clients   []pastClient
	forgotten uint64
}

type pastClient struct {
	addr   netip.Addr
	policy string
	verdicts
	denials   []pastDenial
	forgotten uint64
}

type pastDenial struct {
	asked
	denial
}
