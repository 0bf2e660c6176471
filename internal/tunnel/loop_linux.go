package tunnel

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

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
	again  []*pair // those that have had their turn and are not done
	over   []func()

	mu    sync.Mutex
	pairs map[int]*pair // by descriptor
}

var (
	loops = sync.OnceValue(startLoops)
	turn  atomic.Uint32 // of the loops
)

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
	l := &loop{epoll: fd, file: os.NewFile(uintptr(fd), "epoll"), pairs: make(map[int]*pair)}
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
	return ls[int(turn.Add(1))%len(ls)]
}

// run does what there is to be done. It returns false to be called again when
// there is more. Events that come meanwhile wake it again, as the runtime's
// poller is edge-triggered, too.
func (l *loop) run(uintptr) (done bool) {
	for {
		n, err := unix.EpollWait(l.epoll, l.events[:], 0)
		if err != nil && err != unix.EINTR {
			panic(os.NewSyscallError("epoll_wait", err)) // only with a wrong argument
		}
		again := l.again
		l.again = nil
		for _, e := range l.events[:max(n, 0)] {
			if p := l.pair(int(e.Fd)); p != nil {
				l.serve(p, int(e.Fd), e.Events)
			}
		}
		for _, p := range again {
			l.serve(p, -1, 0)
		}
		if len(l.over) > 0 {
			// Whatever is to be done at the end, such as writing a log, may block.
			go func(over []func()) {
				for _, f := range over {
					f()
				}
			}(l.over)
			l.over = nil
		}
		if n < eventsMax && len(l.again) == 0 && err == nil {
			return false
		}
	}
}

// serve lets a tunnel have its turn after an event at one of its sockets.
func (l *loop) serve(p *pair, fd int, events uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() {
		if p.closed && !p.told {
			p.told = true
			l.over = append(l.over, p.tell)
		}
	}()
	defer p.recoverPanic()
	if p.note(fd, events); p.carry(l.buf[:]) {
		l.again = append(l.again, p)
	}
}

func (l *loop) pair(fd int) *pair {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs[fd]
}

// add begins to watch a socket. That it takes bytes is not watched before it
// has refused some: every new socket would be an event otherwise.
func (l *loop) add(fd int, p *pair) error {
	l.mu.Lock()
	l.pairs[fd] = p
	l.mu.Unlock()
	return l.control(unix.EPOLL_CTL_ADD, fd, 0)
}

func (l *loop) watchSpace(fd int) error { return l.control(unix.EPOLL_CTL_MOD, fd, unix.EPOLLOUT) }

func (l *loop) control(op, fd int, more uint32) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET | more, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.epoll, op, fd, &e))
}

// forget stops watching a socket, which must be closed next: that is what takes
// it out of epoll. Its number may be another socket's at once.
func (l *loop) forget(fd int) {
	l.mu.Lock()
	delete(l.pairs, fd)
	l.mu.Unlock()
}

// takeFD returns a descriptor of a connection that is nobody else's, and closes
// the connection, of which the peer does not hear.
func takeFD(c syscall.Conn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	err = raw.Control(func(was uintptr) {
		fd, dupErr = unix.FcntlInt(was, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err == nil {
		err = dupErr
	}
	if err != nil {
		return -1, err
	}
	return fd, nil
}
