package tunnel

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Socket is a TCP connection to an upstream, as Connect makes it. It is for one
// goroutine at a time, and for a tunnel to be joined to. Only the descriptor is
// held: package net asks the kernel for addresses that are known here, and sets
// options that most tunnels do not live long enough to need.
type Socket struct {
	descriptor // fd is -1 once it is closed, or a tunnel has it
	remote     netip.AddrPort
	woken      chan struct{} // nil until a goroutine had to wait for something
}

// Connect connects to an address, which is the very one that connect(2) gets.
// TCP_NODELAY is set.
func Connect(ctx context.Context, to netip.AddrPort) (*Socket, error) {
	if err := ended(ctx); err != nil {
		return nil, dialError(to, err)
	}
	l := nextLoop()
	if l == nil {
		return nil, dialError(to, os.NewSyscallError("epoll_create1", unix.EMFILE))
	}
	s, err := l.socket(to)
	if err != nil {
		return nil, err
	}
	if err := s.Resume(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// dialError is an error of connecting, as package net has it.
func dialError(to netip.AddrPort, err error) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
}

// socket returns one that is not connected yet.
func (l *loop) socket(to netip.AddrPort) (*Socket, error) {
	family := unix.AF_INET6
	if to.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := newSocket(family)
	if err != nil {
		return nil, dialError(to, os.NewSyscallError("socket", err))
	}
	if err := setOption(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		closeFD(fd)
		return nil, dialError(to, os.NewSyscallError("setsockopt", err))
	}
	return &Socket{descriptor: descriptor{fd: fd, l: l, op: unix.EPOLL_CTL_ADD}, remote: to}, nil
}

// connect asks a second time for how it stands, which tells of an error as well
// as SO_ERROR does, and at once: an upstream nearby has answered by then.
func (s *Socket) connect(ctx context.Context) error {
	for again := false; ; again = true {
		switch err := connectFD(s.fd, s.remote); err {
		case nil, unix.EISCONN:
			return s.checkSelf()
		case unix.EINPROGRESS, unix.EALREADY, unix.EINTR:
			if !again {
				continue
			}
		default:
			return os.NewSyscallError("connect", err)
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
}

// checkSelf refuses a connection to itself. TCP makes one where nobody listens on
// a port of this host that is just the one which was picked for the near end.
func (s *Socket) checkSelf() error {
	if !s.remote.Addr().IsLoopback() {
		return nil // the floor does not let other addresses of this host through
	}
	local, err := localAddr(s.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	if local == s.remote {
		return os.NewSyscallError("connect", unix.ECONNREFUSED)
	}
	return nil
}

// wait returns when something has happened to the socket, or ctx has ended.
func (s *Socket) wait(ctx context.Context) error {
	if s.woken == nil {
		s.woken = make(chan struct{}, 1)
		if err := s.watch(s, happens|space); err != nil {
			return err
		}
	}
	select {
	case <-s.woken:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

// ended is the error of a context, as package net has it.
func ended(ctx context.Context) error {
	if ctx.Err() == context.DeadlineExceeded {
		return os.ErrDeadlineExceeded
	}
	return ctx.Err()
}

// turn implements watcher.
func (s *Socket) turn(*loop, int, uint32) {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Resume waits for what Connect of a Client has begun.
func (s *Socket) Resume(ctx context.Context) error {
	if err := s.connect(ctx); err != nil {
		return dialError(s.remote, err)
	}
	return nil
}

// Offer writes what it can of b once there is a connection: ErrNotYet while there is none, and another error if there
// will be none.
func (s *Socket) Offer(b []byte) (int, error) {
	n, err := write(s.fd, b)
	if err == unix.EAGAIN {
		return 0, ErrNotYet
	}
	if err == nil {
		if err = s.checkSelf(); err == nil {
			return n, nil
		}
	} else {
		err = os.NewSyscallError("connect", err)
	}
	return 0, dialError(s.remote, err)
}

// RemoteAddr is the address that it is connected to.
func (s *Socket) RemoteAddr() netip.AddrPort { return s.remote }

// Write writes all of b, within writeTimeout. It is for what comes before the tunnel.
func (s *Socket) Write(b []byte) (int, error) {
	var late context.Context // most need none
	written := 0
	for written < len(b) {
		n, err := write(s.fd, b[written:])
		if err == unix.EAGAIN {
			if late == nil {
				var cancel context.CancelFunc
				late, cancel = context.WithTimeout(context.Background(), writeTimeout)
				defer cancel()
			}
			if err := s.wait(late); err != nil {
				return written, err
			}
			continue
		}
		if err != nil {
			return written, os.NewSyscallError("write", err)
		}
		written += n
	}
	return written, nil
}

// Read reads what there is, and waits for it until ctx ends. It is for what comes before the tunnel.
func (s *Socket) Read(ctx context.Context, b []byte) (int, error) {
	for {
		n, err := read(s.fd, b)
		switch {
		case err == unix.EAGAIN:
			if err := s.wait(ctx); err != nil {
				return 0, err
			}
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Close closes the connection, unless a tunnel has it.
func (s *Socket) Close() error {
	if s.fd < 0 {
		return nil
	}
	d := s.descriptor
	s.release()
	d.close()
	return nil
}

// release returns the descriptor, which somebody else closes.
func (s *Socket) release() int {
	fd := s.fd
	s.fd = -1
	return fd
}

// conn makes it a connection of package net. Whether it does or not, it is no Socket any more.
func (s *Socket) conn() (net.Conn, error) {
	defer s.release()
	return s.netConn()
}
