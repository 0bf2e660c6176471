package tunnel

import (
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// spliceMax is what one splice asks for: more than a pipe takes or, most of
	// the time, a socket holds.
	spliceMax = 1 << 20

	// pipeSize is what we ask the kernel for, in bytes. It costs a quarter
	// less CPU time per byte than the default of 64 KiB; more than this gains
	// nothing. An unprivileged user gets so much for pipesMax pipes (pipe(7),
	// pipe-user-pages-soft); when it is refused the default will do.
	pipeSize = 256 << 10

	// pipesMax bounds the pipes of the process, whatever its descriptor limit.
	// A direction holds one only while it moves bytes, or while its receiver is
	// slower than its sender.
	pipesMax = 256

	// pipesIdle bounds the pipes kept for whoever needs one next. As few are in
	// use at a time as system calls run at a time.
	pipesIdle = 16
)

// conduit carries bytes from one socket to another: a pipe, or a buffer where
// there is no descriptor to spare for a pipe.
type conduit struct {
	r, w int               // the ends of the pipe, if buf is nil
	buf  *[bufferSize]byte // else
	off  int               // where in buf the held bytes begin
	held int               // bytes filled in and not yet drained
}

// fill moves bytes from a socket into the conduit, which must be empty. It
// returns 0 at the end of the stream, and EAGAIN when there is nothing to read.
func (c *conduit) fill(fd int) (int, error) {
	var n int
	var err error
	if c.buf != nil {
		n, err = read(fd, c.buf[:])
	} else {
		n, err = splice(fd, c.w, spliceMax)
	}
	if err != nil {
		return 0, err
	}
	c.off, c.held = 0, n
	return n, nil
}

// drain moves held bytes into a socket. It returns EAGAIN when that takes none.
func (c *conduit) drain(fd int) (int, error) {
	var n int
	var err error
	if c.buf != nil {
		n, err = write(fd, c.buf[c.off:c.off+c.held])
	} else {
		n, err = splice(c.r, fd, c.held)
	}
	if err == nil && n == 0 {
		err = io.ErrNoProgress // never seen, and it would make a busy loop
	}
	if err != nil {
		return 0, err
	}
	c.off += n
	c.held -= n
	return n, nil
}

// conduits lends conduits to those who have bytes to move.
type conduits struct {
	max int // pipes that may exist

	mu    sync.Mutex
	pipes int        // that do exist
	idle  []*conduit // those that nobody holds, all of them empty pipes
}

// stock is what all tunnels of the process share. Its pipes take an eighth of
// the descriptors at most, so that many slow receivers do not use up those that
// new connections need.
var stock = sync.OnceValue(func() *conduits {
	most := pipesMax
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err == nil {
		most = int(min(l.Cur/16, pipesMax))
	}
	return &conduits{max: most}
})

// PipeDescriptors is the number of descriptors that the pipes of all tunnels
// together hold at most: what to set aside when the descriptors of a process
// are shared out.
func PipeDescriptors() int { return 2 * stock().max }

// noPipes is a stock for sockets that cannot be spliced.
var noPipes = new(conduits)

// buffered lends conduits that are buffers.
var buffered = sync.Pool{New: func() any { return &conduit{buf: new([bufferSize]byte)} }}

// take lends an empty conduit. It never fails: where there is no pipe to be had
// a tunnel goes on through a buffer.
func (s *conduits) take() *conduit {
	s.mu.Lock()
	if n := len(s.idle); n > 0 {
		c := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		return c
	}
	room := s.pipes < s.max
	if room {
		s.pipes++
	}
	s.mu.Unlock()

	if room {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err == nil {
			unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, pipeSize)
			return &conduit{r: p[0], w: p[1]}
		}
		s.mu.Lock()
		s.pipes--
		s.mu.Unlock()
	}
	return buffered.Get().(*conduit)
}

// put takes a conduit back. A pipe that still holds bytes, those of a tunnel
// that broke, is closed: nobody else may ever read them.
func (s *conduits) put(c *conduit) {
	if c.buf != nil {
		c.off, c.held = 0, 0
		buffered.Put(c)
		return
	}
	s.mu.Lock()
	if c.held == 0 && len(s.idle) < pipesIdle {
		s.idle = append(s.idle, c)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	unix.Close(c.r)
	unix.Close(c.w)
	s.mu.Lock()
	s.pipes--
	s.mu.Unlock()
}

// unsupported reports whether err says that splice does not work on this kind of
// socket (MPTCP before Linux 6.5, and Go listens for MPTCP by default) or in
// this kind of kernel.
func unsupported(err error) bool {
	return err == unix.EINVAL || err == unix.ENOSYS || err == unix.EOPNOTSUPP
}
