package policy

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// DefaultPoll is how often the files are looked at.
	DefaultPoll = time.Second
	// SettleTimeout is how long a connection that would not be allowed waits for a change that is settling.
	SettleTimeout = 3 * time.Second

	confirmAfter = 50 * time.Millisecond // between the two reads of a replaced file
	inPlacePolls = 3                     // polls in a row that must agree on a file written in place
	alwaysRead   = 1 << 20               // octets: up to this, all files are read at each poll
	fullRead     = 4                     // larger ones are read each so many polls, whatever their times say
)

// Options are how a Store watches. The zero value polls each second and tells nobody.
type Options struct {
	Poll     time.Duration // 0: DefaultPoll
	OnChange func(*Set)    // after a new set is in force; called by the polling goroutine
	OnError  func(error)   // once for each content of the files that cannot be taken
}

// Store holds the set in force and replaces it when its files change. It polls by content, because
// inotify knows nothing of bind mounts, symlinks that are switched and network file systems.
//
// A file that was replaced (another inode, another symlink target) is taken at once when two reads agree;
// one that is written in place when three polls in a row read the same. Its last line must be complete.
// What cannot be taken leaves the last good set in force.
type Store struct {
	src  Source
	opts Options

	set   atomic.Pointer[Set]
	stale atomic.Bool

	// Of the polling goroutine, or of NewStore before it runs.
	current *snapshot // what set was made of
	seen    *snapshot // the last one that was read
	pending *snapshot // differs from current, and is not taken yet
	agreed  int       // ticks in a row that read pending
	failed  *snapshot // the last one that could not be taken
	failure string    // the last error that was reported
	polls   uint

	mu       sync.Mutex
	settling bool          // pending != nil
	polled   time.Time     // end of the last poll
	done     chan struct{} // closed at the end of the next poll; nil while not started
	wake     chan struct{}
	stop     chan struct{}
	stopped  chan struct{}
}

// NewStore loads a source. What Load refuses, it refuses. It does not watch before Start.
func NewStore(src Source, o Options) (*Store, error) {
	if o.Poll == 0 {
		o.Poll = DefaultPoll
	}
	if o.Poll < 0 {
		return nil, fmt.Errorf("poll interval %s, accepted are positive durations such as 1s", o.Poll)
	}
	st := &Store{src: src, opts: o, wake: make(chan struct{}, 1)}
	snap, err := src.read()
	if err != nil {
		return nil, err
	}
	set, err := snap.compile()
	if err != nil {
		return nil, err
	}
	if path := snap.incomplete(); path != "" {
		set.warnings = append(set.warnings, path+": the last line has no line end; is the file complete?")
	}
	st.take(snap, set)
	return st, nil
}

// Set returns the set in force, never nil.
func (st *Store) Set() *Set { return st.set.Load() }

// Stale reports whether the files cannot be taken as they are, so that an older set is in force.
func (st *Store) Stale() bool { return st.stale.Load() }

// Start begins to watch. A store whose policy is inline has nothing to watch, unless it names lists.
func (st *Store) Start() {
	if len(st.current.files) == 0 {
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.stop != nil {
		return
	}
	st.stop, st.stopped, st.done = make(chan struct{}), make(chan struct{}), make(chan struct{})
	go st.watch(st.stop, st.stopped)
}

// Stop ends the watching and waits until it has ended. The last set stays in force.
func (st *Store) Stop() {
	st.mu.Lock()
	stop, stopped := st.stop, st.stopped
	st.stop = nil
	st.mu.Unlock()
	if stop != nil {
		close(stop)
		<-stopped
	}
}

func (st *Store) watch(stop, stopped chan struct{}) {
	defer close(stopped)
	t := time.NewTicker(st.opts.Poll)
	defer t.Stop()
	for {
		select {
		case <-stop:
			st.mu.Lock()
			close(st.done)
			st.done = nil
			st.mu.Unlock()
			return
		case <-t.C:
			st.poll(true)
		case <-st.wake:
			st.poll(false)
		}
		st.mu.Lock()
		st.settling, st.polled = st.pending != nil, time.Now()
		close(st.done)
		st.done = make(chan struct{})
		st.mu.Unlock()
	}
}

// Settle waits while the files differ from the set in force, until ctx ends. It has the files looked at
// first, unless that has just been done: a client that was told of a new name by the other binary finds
// it here. Denied clients can ask for this as often as they like; more than a few polls a second, or a
// file taken earlier than otherwise, they do not get.
func (st *Store) Settle(ctx context.Context) {
	fresh := min(st.opts.Poll/4, 250*time.Millisecond)
	for first := true; ; first = false {
		st.mu.Lock()
		done, settling, recent := st.done, st.settling, time.Since(st.polled) < fresh
		st.mu.Unlock()
		if done == nil || !settling && (recent || !first) {
			return
		}
		if !settling {
			select {
			case st.wake <- struct{}{}:
			default:
			}
		}
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}

// poll looks at the files once. Only a tick counts towards the polls that must agree.
func (st *Store) poll(tick bool) {
	st.polls++
	if st.pending == nil && st.unchanged() {
		st.good()
		return
	}
	snap, err := st.src.read()
	if err != nil {
		st.pending = nil
		st.bad(nil, err)
		return
	}
	defer func() {
		snap.forget()
		st.seen = snap
	}()
	switch {
	case snap.same(st.current):
		st.pending, st.current = nil, snap
		st.good()
		return
	case st.failed != nil && snap.same(st.failed):
		st.pending = nil
		return
	case snap.replaced(st.current, st.seen):
		time.Sleep(min(confirmAfter, st.opts.Poll))
		if again, err := st.src.read(); err == nil && again.same(snap) {
			st.settle(snap)
			return
		}
	}
	if st.pending == nil || !snap.same(st.pending) {
		st.agreed = 0
	}
	st.pending = snap
	if tick {
		st.agreed++
	}
	if st.agreed >= inPlacePolls {
		st.settle(snap)
	}
}

// unchanged reports whether the files have the bytes of the set in force. Large ones are not read at
// each poll as long as nothing suggests that they changed.
func (st *Store) unchanged() bool {
	var size int64
	for i := range st.current.files {
		size += st.current.files[i].info.Size()
	}
	trust := size > alwaysRead && st.polls%fullRead != 0
	for i := range st.current.files {
		f := &st.current.files[i]
		now, err := statFile(f.path)
		if err != nil {
			return false
		}
		if trust && now.untouched(f) && time.Since(f.info.ModTime()) > 2*time.Second {
			continue
		}
		if err := now.digest(); err != nil || !now.same(f) {
			return false
		}
		f.info, f.target = now.info, now.target
	}
	return true
}

// settle takes a snapshot that no longer changes, or reports why it cannot be taken.
func (st *Store) settle(snap *snapshot) {
	st.pending = nil
	if path := snap.incomplete(); path != "" {
		st.bad(snap, fmt.Errorf("%s: incomplete, the last line has no line end", path))
		return
	}
	set, err := snap.compile()
	if err != nil {
		st.bad(snap, err)
		return
	}
	st.take(snap, set)
	st.good()
	if st.opts.OnChange != nil {
		st.opts.OnChange(set)
	}
}

func (st *Store) take(snap *snapshot, set *Set) {
	snap.forget()
	st.current, st.seen = snap, snap
	st.set.Store(set)
}

// bad keeps the set in force and reports err, once for each content; snap is nil if there was none to
// read.
func (st *Store) bad(snap *snapshot, err error) {
	st.stale.Store(true)
	if snap == nil && st.failed == nil && err.Error() == st.failure {
		return
	}
	st.failed, st.failure = snap, err.Error()
	if st.opts.OnError != nil {
		st.opts.OnError(err)
	}
}

func (st *Store) good() {
	st.stale.Store(false)
	st.failed, st.failure = nil, ""
}
