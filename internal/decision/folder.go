package decision

import (
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// The limits of a Folder. A sandbox may ask for any number of names, and where it can forge its address be
// any number of clients: neither may fill memory or a disk.
const (
	period     = time.Second
	burst      = 100  // lines that a client gets at once, for a program that starts up
	rate       = 10   // lines a period that it gets in the long run
	maxClients = 1024 // that are told apart; all others share one allowance
	maxKinds   = 4096 // of decisions that are told apart; each makes a line a period at most
)

// Folder folds decisions alike, of one client, name, port, verdict and reason, to one line a second with
// their number, and counts what of a client is more than it may have logged. Nothing is lost but in
// detail: the records that are written stand for every decision that was folded.
//
// It holds no goroutine, and no timer while nobody is denied. A nil Folder folds nothing.
type Folder struct {
	write func(*Record)

	writing sync.Mutex // held while records are written, outside of mu
	mu      sync.Mutex
	kinds   map[kind]*folded
	order   []*folded // the same, who has waited longest for a line first
	sources map[source]*allowance
	timer   *time.Timer
	ticking bool
}

// kind is what makes decisions alike.
type kind struct {
	source
	name    string
	port    uint16
	verdict policy.Verdict
	reason  policy.Reason
}

// source is who has an allowance of lines. The zero client is all that are too many.
type source struct {
	client netip.Addr
	layer  Layer
}

// folded are decisions of one kind.
type folded struct {
	kind   kind
	record Record // the first one
	from   *allowance
	count  int  // decisions that no line stands for yet
	paid   bool // the next line has been taken from the allowance
	recent bool // the first one has been written, since the last tick
}

// allowance is how many lines a source may still have.
type allowance struct {
	lines      int
	kinds      int // that are folded now
	suppressed int // decisions since the last tick that no line will stand for
	policy     string
	verdict    policy.Verdict
}

// NewFolder returns a Folder that hands what is due to write, one record at a time, from a goroutine of its
// own or that of Flush. write must not keep the record.
func NewFolder(write func(*Record)) *Folder {
	return &Folder{write: write, kinds: map[kind]*folded{}, sources: map[source]*allowance{}}
}

// Admit reports whether the caller shall write r at once: it is the first of its kind for a while. If not,
// it has been counted. What is allowed is admitted in any case. r is not kept.
func (f *Folder) Admit(r *Record) bool {
	return f == nil || r.Decision.Verdict == policy.Allow || f.add(r, false)
}

// Hold counts r, and within a second writes it together with those alike. It is for what comes in pairs,
// as the questions of a stub resolver for A and AAAA, and keeps writing out of the caller's way.
func (f *Folder) Hold(r *Record) { f.add(r, true) }

func (f *Folder) add(r *Record, hold bool) (now bool) {
	name := cut(r.Name, MaxName)
	k := kind{source{r.Client, r.Layer}, name, r.Port, r.Decision.Verdict, r.Decision.Reason}

	f.mu.Lock()
	defer f.mu.Unlock()
	if e, ok := f.kinds[k]; ok {
		if e.count == 0 {
			e.record.Time = timeOf(r)
		}
		e.count++
		return false
	}
	from := f.allowance(k.source)
	if from.lines == 0 || len(f.kinds) >= maxKinds {
		from.suppressed++
		from.policy, from.verdict = r.Decision.Policy, r.Decision.Verdict
		return false
	}
	from.lines--
	from.kinds++
	e := &folded{kind: k, record: *r, from: from, recent: true}
	if hold {
		e.record.Time = timeOf(r)
		e.count, e.paid, e.recent = 1, true, false
	}
	e.kind.name = strings.Clone(name) // not a part of whatever the client sent
	e.record.Name = e.kind.name
	f.kinds[e.kind] = e
	f.order = append(f.order, e)
	return !hold
}

// allowance returns that of a source. The caller holds mu.
func (f *Folder) allowance(s source) *allowance {
	if a, ok := f.sources[s]; ok {
		return a
	}
	if len(f.sources) >= maxClients {
		s.client = netip.Addr{}
		if a, ok := f.sources[s]; ok {
			return a
		}
	}
	a := &allowance{lines: burst}
	f.sources[s] = a
	if !f.ticking {
		f.ticking = true
		f.timer = time.AfterFunc(period, f.tick)
	}
	return a
}

// tick writes what is due. It comes again as long as there is something to forget.
func (f *Folder) tick() {
	f.emit(f.due)

	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ticking = len(f.sources) > 0; f.ticking {
		f.timer.Reset(period)
	}
}

// Flush writes what has been counted and not written yet, before a process ends.
func (f *Folder) Flush() {
	if f != nil {
		f.emit(f.rest)
	}
}

func (f *Folder) emit(collect func() []Record) {
	f.writing.Lock()
	defer f.writing.Unlock()
	records := collect()
	for i := range records {
		f.write(&records[i])
	}
}

// due returns what is to be written now, and forgets who has been quiet.
func (f *Folder) due() (records []Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.sources {
		a.lines = min(a.lines+rate, burst)
	}
	var written []*folded
	waiting := f.order[:0]
	for _, e := range f.order {
		switch {
		case e.recent:
			e.recent = false
			waiting = append(waiting, e)
		case e.count == 0:
			delete(f.kinds, e.kind)
			e.from.kinds--
		case e.pay():
			records = append(records, e.take())
			written = append(written, e) // at the end of the queue
		default:
			waiting = append(waiting, e)
		}
	}
	clear(f.order[len(waiting):])
	f.order = append(waiting, written...)
	for s, a := range f.sources {
		if a.suppressed > 0 {
			records = append(records, a.take(s))
		} else if a.lines == burst && a.kinds == 0 {
			delete(f.sources, s)
		}
	}
	return records
}

// rest returns all that has been counted, and forgets it.
func (f *Folder) rest() (records []Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.order {
		if e.count > 0 {
			records = append(records, e.take())
		}
	}
	for s, a := range f.sources {
		if a.suppressed > 0 {
			records = append(records, a.take(s))
		}
	}
	clear(f.kinds)
	clear(f.sources)
	f.order = nil
	return records
}

// pay takes the next line from the allowance, if that has one to spare: what a client repeats leaves some
// for what is new. Who makes up names can still hide one among them.
func (e *folded) pay() bool {
	if !e.paid {
		if e.from.lines <= rate/2 {
			return false
		}
		e.from.lines--
	}
	e.paid = false
	return true
}

// take returns the record that stands for what has been counted.
func (e *folded) take() Record {
	r := e.record
	r.Repeated = e.count
	e.count = 0
	return r
}

func (a *allowance) take(s source) Record {
	r := Record{Time: time.Now(), Layer: s.layer, Client: s.client, Suppressed: a.suppressed}
	r.Decision.Verdict = a.verdict
	if s.client.IsValid() {
		r.Decision.Policy = a.policy
	}
	a.suppressed = 0
	return r
}

// timeOf spares callers the time of what is only counted.
func timeOf(r *Record) time.Time {
	if r.Time.IsZero() {
		return time.Now()
	}
	return r.Time
}
