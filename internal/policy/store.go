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
	askPause     = 50 * time.Millisecond // before a poll that Settle asks for; less if Poll is short, more if polls take long
	inPlacePolls = 3                     // polls in a row that must agree on a file written in place
	alwaysRead   = 1 << 20               // octets: up to this, all files are read at each poll
	stampedFiles = 8                     // at most, are looked at by stamps: a denial must stay cheap
	coarse       = 2 * time.Second       // what the times of files may be coarse by
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
	src    Source
	opts   Options
	coarse time.Duration // a test has less patience

	set     atomic.Pointer[Set]
	stale   atomic.Bool
	stamped atomic.Pointer[map[string]stamp] // of all files, from before they were found unchanged; nil: not known

	// Of the polling goroutine, or of NewStore before it runs.
	current *snapshot // what set was made of
	seen    *snapshot // the last one that was read
	pending *snapshot // differs from current, and is not taken yet
	agreed  int       // ticks in a row that read pending
	failed  *snapshot // the last one that could not be taken
	failure string    // the last error that was reported
	ticks   uint
	polled  time.Time     // end of the last poll
	pause   time.Duration // from then to the next that Settle may ask for
	slept   time.Duration // within the last poll: no work

	mu       sync.Mutex
	begun    uint          // polls
	ended    uint          // polls
	settling bool          // pending != nil, after the last one
	done     chan struct{} // closed at the end of the next poll; nil while nobody polls
	wake     chan struct{}

	life    sync.Mutex // held by Start and Stop to the end, so that one goroutine polls at most
	stop    chan struct{}
	stopped chan struct{}
}

// NewStore loads a source. What Load refuses, it refuses. It does not watch before Start.
func NewStore(src Source, o Options) (*Store, error) {
	if o.Poll == 0 {
		o.Poll = DefaultPoll
	}
	if o.Poll < 0 {
		return nil, fmt.Errorf("poll interval %s, accepted are positive durations such as 1s", o.Poll)
	}
	st := &Store{src: src, opts: o, coarse: coarse, wake: make(chan struct{}, 1)}
	snap, set, err := src.load()
	if err != nil {
		return nil, err
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
	st.life.Lock()
	defer st.life.Unlock()
	if st.stop != nil || len(st.current.files) == 0 {
		return
	}
	st.mu.Lock()
	st.done = make(chan struct{})
	st.mu.Unlock()
	st.stop, st.stopped = make(chan struct{}), make(chan struct{})
	go st.watch(st.stop, st.stopped)
}

// Stop ends the watching and waits until it has ended. The last set stays in force.
func (st *Store) Stop() {
	st.life.Lock()
	defer st.life.Unlock()
	if st.stop == nil {
		return
	}
	close(st.stop)
	<-st.stopped
	st.stop = nil
}

func (st *Store) watch(stop, stopped chan struct{}) {
	defer close(stopped)
	t := time.NewTicker(st.opts.Poll)
	defer t.Stop()
	var asked <-chan time.Time // when to poll because Settle has asked for it
	for {
		select {
		case <-stop:
			st.mu.Lock()
			close(st.done)
			st.done = nil
			st.mu.Unlock()
			return
		case <-st.wake:
			if asked == nil {
				asked = time.After(time.Until(st.polled.Add(st.pause)))
			}
		case <-asked:
			asked = nil
			st.look(false)
		case <-t.C:
			asked = nil
			st.look(true)
		}
	}
}

// look polls, and tells who waits in Settle.
func (st *Store) look(tick bool) {
	start := time.Now()
	st.slept = 0
	st.mu.Lock()
	st.begun++
	st.mu.Unlock()
	current, stamps := st.current, st.stamps()
	st.poll(tick)
	if st.pending != nil || st.current != current || st.seen != current || st.Stale() {
		stamps = nil
	}
	st.stamped.Store(stamps)
	st.mu.Lock()
	st.ended, st.settling = st.begun, st.pending != nil
	close(st.done)
	st.done = make(chan struct{})
	st.mu.Unlock()
	st.polled = time.Now()
	st.pause = max(min(st.opts.Poll/20, askPause), 10*(st.polled.Sub(start)-st.slept))
}

// stamps returns those of the files of the set in force, nil if they would not tell of a change.
func (st *Store) stamps() *map[string]stamp {
	if len(st.current.files) > stampedFiles {
		return nil
	}
	now := time.Now()
	stamps := make(map[string]stamp, len(st.current.files))
	for i := range st.current.files {
		path := st.current.files[i].path
		s, ok := stampOf(path)
		if !ok || !s.settledAt(now, st.coarse) {
			return nil
		}
		stamps[path] = s
	}
	return &stamps
}

// untouched reports whether no file has been written or replaced since all were found to have the bytes of the
// set in force.
func (st *Store) untouched() bool {
	stamps := st.stamped.Load()
	if stamps == nil {
		return false
	}
	for path, was := range *stamps {
		if now, ok := stampOf(path); !ok || now != was {
			return false
		}
	}
	return true
}

// Settle waits until the files have been looked at anew, and while they differ from the set in force,
// until ctx ends: a client that was told of a new name by the other binary finds it here. Denied clients
// can ask for this as often as they like; more than some twenty polls a second, a tenth of the time of a
// processor, or a file taken earlier than otherwise, they do not get.
//
// Most of the time nothing has been written, which is seen without waiting and without reading.
func (st *Store) Settle(ctx context.Context) {
	if st.untouched() {
		return
	}
	st.mu.Lock()
	anew := st.begun + 1 // one that is under way may have read the files before the client was told
	st.mu.Unlock()
	for {
		st.mu.Lock()
		done, looked, settling := st.done, st.ended >= anew, st.settling
		st.mu.Unlock()
		if done == nil || looked && !settling {
			return
		}
		if !settling { // else only ticks help
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
	if tick {
		st.ticks++
	}
	if st.pending == nil && st.unchanged(tick && st.ticks%fullRead == 0) {
		st.seen = st.current
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
		st.slept = min(confirmAfter, st.opts.Poll)
		time.Sleep(st.slept)
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

// unchanged reports whether the files have the bytes of the set in force. Large ones are not read, unless
// full is set, as long as nothing suggests that they changed.
func (st *Store) unchanged(full bool) bool {
	var size int64
	for i := range st.current.files {
		size += st.current.files[i].info.Size()
	}
	trust := size > alwaysRead && !full
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
	set, err := snap.compile()
	switch place := snap.incomplete(); {
	case place == "":
	case err == nil:
		err = fmt.Errorf("%s: incomplete, the last line has no line end", place)
	default:
		err = fmt.Errorf("%w; %s has no line end, is the file complete?", err, place)
	}
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
