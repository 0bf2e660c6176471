package tunnel

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
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
	over   []func() // to be called for tunnels that have ended
	ends   chan []func()

	mu       sync.Mutex
	watchers map[int]watcher // by descriptor
}

// watcher is told what happens to its sockets.
type watcher interface {
	turn(l *loop, fd int, events uint32)
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
		go func() {
			for over := range l.ends {
				callAll(over)
			}
		}()
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
	l := &loop{epoll: fd, file: os.NewFile(uintptr(fd), "epoll"), watchers: make(map[int]watcher), ends: make(chan []func())}
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

func callAll(fs []func()) {
	for _, f := range fs {
		f()
	}
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
		l.again = nil
		for _, e := range l.events[:n] {
			if w := l.watcher(int(e.Fd)); w != nil {
				w.turn(l, int(e.Fd), e.Events)
			}
		}
		for _, p := range again {
			p.turn(l, -1, 0)
		}
		if len(l.over) > 0 {
			// Whatever is to be done at the end, such as writing a log, may block: it is done elsewhere, if
			// possible by who has done it before, whose stack has grown by then.
			select {
			case l.ends <- l.over:
			default:
				go callAll(l.over)
			}
			l.over = nil
		}
		if n < eventsMax && len(l.again) == 0 && err == nil {
			return false
		}
	}
}

func (l *loop) watcher(fd int) watcher {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watchers[fd]
}

// watch begins to watch a socket (EPOLL_CTL_ADD), or tells another watcher of it (EPOLL_CTL_MOD), who is told
// anew of what has happened. Space is only watched for if it is asked for: every new socket has some, which
// would be an event.
func (l *loop) watch(fd int, w watcher, op int, space uint32) error {
	l.mu.Lock()
	l.watchers[fd] = w
	l.mu.Unlock()
	events := unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLRDHUP | unix.EPOLLET | space
	return os.NewSyscallError("epoll_ctl", epollControl(l.epoll, op, fd, events))
}

// forget stops watching a socket, which must be closed next: that is what takes
// it out of epoll. Its number may be another socket's at once.
func (l *loop) forget(fd int) {
	l.mu.Lock()
	delete(l.watchers, fd)
	l.mu.Unlock()
}

// dup returns a descriptor of a connection for a loop. Once the connection is closed, of which its peer does not
// hear, it is the only one.
func dup(c *net.TCPConn) (int, error) {
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
