package tunnel

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// eventsMax is how many sockets one call of epoll_wait(2) tells of.
	eventsMax = 128

	// smallSize is what one read takes of a stream that has not carried much
	// yet: a hello, a certificate chain, a page.
	smallSize = 16 << 10
)

// loop carries tunnels between sockets. It has an epoll instance of its own,
// which is in turn one descriptor in the runtime's poller: a goroutine is woken
// when that is readable and asks, without waiting, for what has happened. So a
// loop that waits holds no thread, and there is no goroutine for each tunnel.
type loop struct {
	epoll  int
	file   *os.File // the same, as the runtime knows it
	buf    [smallSize]byte
	events [eventsMax]unix.EpollEvent
	again  []*pair  // those that have had their turn and are not done
	more   bool     // connections may be waiting to be accepted
	later  []func() // to be called after the turn
	calls  calls

	mu       sync.Mutex
	watchers map[int]watching // by descriptor
	begun    int32            // how many sockets were watched so far
}

// watcher is told what happens to its sockets.
type watcher interface {
	turn(l *loop, fd int, events uint32)
}

// watching is the watcher of a socket, and which of those that had its number it is.
type watching struct {
	watcher
	nth int32
}

var (
	starting sync.Mutex
	started  atomic.Pointer[[]*loop]
	turn     atomic.Uint32 // of the loops
)

// loops returns the loops. Those who find no descriptor for one must not be the end of it: the next ask again.
func loops() []*loop {
	if ls := started.Load(); ls != nil {
		return *ls
	}
	starting.Lock()
	defer starting.Unlock()
	if ls := started.Load(); ls != nil {
		return *ls
	}
	ls := startLoops()
	if len(ls) > 0 {
		started.Store(&ls)
	}
	return ls
}

// startLoops starts as many loops as there are processors, or none if the system
// has no descriptor left for them: tunnels have goroutines then.
func startLoops() []*loop {
	ls := make([]*loop, 0, runtime.GOMAXPROCS(0))
	for range cap(ls) {
		l, wait, err := newLoop()
		if err != nil {
			break
		}
		go wait()
		go l.calls.run()
		ls = append(ls, l)
	}
	return ls
}

func newLoop() (*loop, func(), error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	// This is how os.NewFile knows that the runtime's poller can wait for it.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, nil, err
	}
	l := &loop{epoll: fd, file: os.NewFile(uintptr(fd), "epoll"), watchers: make(map[int]watching), calls: calls{some: make(chan struct{}, 1)}}
	if err := l.file.SetReadDeadline(time.Time{}); err != nil { // the poller has not taken it
		l.file.Close()
		return nil, nil, err
	}
	raw, err := l.file.SyscallConn()
	if err != nil {
		l.file.Close()
		return nil, nil, err
	}
	return l, func() { _ = raw.Read(l.run) }, nil
}

// nextLoop returns the loop for the next tunnel, nil if there are none.
func nextLoop() *loop {
	ls := loops()
	if len(ls) == 0 {
		return nil
	}
	return ls[turn.Add(1)%uint32(len(ls))]
}

// run does what there is to be done. It returns false to be called again when
// there is more. Events that come meanwhile wake it again, as the runtime's
// poller is edge-triggered, too.
func (l *loop) run(uintptr) (done bool) {
	for {
		n, err := epollNow(l.epoll, l.events[:])
		if err != nil && err != unix.EINTR {
			panic(os.NewSyscallError("epoll_wait", err)) // only with a wrong argument
		}
		again := l.again
		l.again, l.more = nil, false
		for _, e := range l.events[:n] {
			if w := l.watcher(int(e.Fd), e.Pad); w != nil {
				w.turn(l, int(e.Fd), e.Events)
			}
		}
		for _, p := range again {
			p.turn(l, -1, 0)
		}
		if len(l.later) > 0 {
			// By one goroutine, whose stack has grown by then, and which may have to wait.
			l.later = l.calls.add(l.later)
		}
		if n < eventsMax && len(l.again) == 0 && !l.more && err == nil {
			return false
		}
	}
}

// watcher returns who watches a socket, nil if that is another by now than an event was of: what has its turn before
// may have closed it, and opened one that got its number.
func (l *loop) watcher(fd int, nth int32) watcher {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.watchers[fd]; w.nth == nth {
		return w.watcher
	}
	return nil
}

// What a socket is watched for, once for each time that it happens. Space is only watched for if it is asked for:
// every new socket has some, which would be an event.
const (
	happens = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLRDHUP | unix.EPOLLET
	space   = unix.EPOLLOUT
)

// watch begins to watch a socket (EPOLL_CTL_ADD), or tells another watcher of it (EPOLL_CTL_MOD), who is told
// anew of what has happened.
func (l *loop) watch(fd int, w watcher, op int, events uint32) error {
	l.mu.Lock()
	nth := l.watchers[fd].nth
	if op == unix.EPOLL_CTL_ADD {
		l.begun++
		nth = l.begun
	}
	l.watchers[fd] = watching{w, nth}
	l.mu.Unlock()
	err := epollControl(l.epoll, op, fd, nth, events)
	if err != nil && op == unix.EPOLL_CTL_ADD {
		l.forget(fd)
	}
	return os.NewSyscallError("epoll_ctl", err)
}

// forget stops watching a socket, which must be closed next: that is what takes
// it out of epoll. Its number may be another socket's at once.
func (l *loop) forget(fd int) {
	l.mu.Lock()
	delete(l.watchers, fd)
	l.mu.Unlock()
}

// leave stops watching a socket that stays open.
func (l *loop) leave(fd int) error {
	l.forget(fd)
	return os.NewSyscallError("epoll_ctl", epollControl(l.epoll, unix.EPOLL_CTL_DEL, fd, 0, 0))
}

// dup returns a descriptor of a connection or listener for a loop. Once that is closed, of which no peer hears, it is
// the only one.
func dup(c syscall.Conn) (int, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	err = rc.Control(func(was uintptr) {
		fd, dupErr = raw(unix.SYS_FCNTL, was, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err = errors.Join(err, dupErr); err != nil {
		return -1, os.NewSyscallError("fcntl", err)
	}
	return fd, nil
}
