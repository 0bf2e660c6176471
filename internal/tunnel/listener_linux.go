package tunnel

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// acceptMax is how many connections a loop accepts in one turn, so that what goes on gets its turn, too.
	acceptMax = 16

	// acceptPause is how long a loop accepts nothing after there was no descriptor for it, or no memory, or while
	// too much is left for Later: nobody takes the log, say.
	acceptPause = 20 * time.Millisecond
)

// Listener accepts TCP connections on the loops that will carry them. Each has a socket of its own, among which the
// kernel divides those who connect (SO_REUSEPORT): one socket would wake all loops for each of them, as EPOLLEXCLUSIVE
// does not get through to who sleeps in the runtime's poller.
type Listener struct {
	addr    netip.AddrPort
	begin   func(*Client)
	sockets []*listening

	mu     sync.RWMutex // held while accepting, as the number of a closed descriptor may be another's
	closed bool
}

// listening is the socket of a loop.
type listening struct {
	ln *Listener
	l  *loop
	fd int
}

// Listen listens on a TCP address such as ":443", which is of both families, or "172.30.0.20:443". Others may listen on
// the same address if they too have SO_REUSEPORT set, as Caddy has. Serve must follow.
//
// What it accepts has TCP_NODELAY set and keep-alive probes on.
func Listen(addr string) (*Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	loops := loops()
	if len(loops) == 0 {
		return nil, os.NewSyscallError("epoll_create1", unix.EMFILE)
	}
	ln := new(Listener)
	for _, l := range loops {
		s := &listening{ln: ln, l: l}
		if s.fd, ln.addr, err = listenFD(addr); err != nil {
			ln.Close()
			return nil, err
		}
		ln.sockets = append(ln.sockets, s)
		addr = net.JoinHostPort(host, strconv.Itoa(int(ln.addr.Port()))) // which may have been 0
	}
	return ln, nil
}

func listenFD(addr string) (int, netip.AddrPort, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); e != nil {
			return e
		}
		return os.NewSyscallError("setsockopt", err)
	}}
	config.SetMultipathTCP(false) // which is not spliced before Linux 6.5
	tcp, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return -1, netip.AddrPort{}, err
	}
	defer tcp.Close()
	fd, err := dup(tcp.(*net.TCPListener))
	if err != nil {
		return -1, netip.AddrPort{}, err
	}
	// Connections inherit all three.
	for _, o := range []struct{ level, option, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(KeepAliveIdle / time.Second)},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
	} {
		if err := setOption(fd, o.level, o.option, o.value); err != nil {
			closeFD(fd)
			return -1, netip.AddrPort{}, os.NewSyscallError("setsockopt", err)
		}
	}
	return fd, tcp.Addr().(*net.TCPAddr).AddrPort(), nil
}

// Addr is where it listens.
func (ln *Listener) Addr() netip.AddrPort { return ln.addr }

// Serve has begin called with each connection from now on, by a loop, so it must not wait for anything. It is to be
// called once.
func (ln *Listener) Serve(begin func(*Client)) error {
	ln.begin = begin
	for _, s := range ln.sockets {
		if err := s.watch(); err != nil {
			ln.Close()
			return err
		}
	}
	return nil
}

// Close ends it. Those who have connected and were not accepted yet are reset.
func (ln *Listener) Close() error {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.closed {
		return nil
	}
	ln.closed = true
	for _, s := range ln.sockets {
		s.l.forget(s.fd)
		closeFD(s.fd) // which takes it out of epoll, as the only descriptor
	}
	return nil
}

// watch has the loop told of connections for as long as there are any.
func (s *listening) watch() error { return s.l.watch(s.fd, s, unix.EPOLL_CTL_ADD, unix.EPOLLIN) }

// turn implements watcher.
func (s *listening) turn(l *loop, _ int, _ uint32) {
	if l.behind() {
		s.pause()
		return
	}
	for range acceptMax {
		fd, remote, err := s.accept()
		switch err {
		case nil:
			c := &Client{
				descriptor: descriptor{fd: fd, l: l, op: unix.EPOLL_CTL_ADD},
				remote:     netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()),
			}
			c.Do(func() { s.ln.begin(c) })
		case unix.EINTR, unix.ECONNABORTED, unix.EPROTO, unix.EPERM: // this one is gone, or a firewall's
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			s.pause()
			return
		default: // there is none, or the listener is closed
			return
		}
	}
	l.more = true
}

func (s *listening) accept() (int, netip.AddrPort, error) {
	s.ln.mu.RLock()
	defer s.ln.mu.RUnlock()
	if s.ln.closed {
		return -1, netip.AddrPort{}, unix.EBADF
	}
	return acceptFD(s.fd)
}

// pause has the loop accept nothing for a moment. The socket would wake it at once, again and again.
func (s *listening) pause() {
	s.ln.mu.Lock()
	defer s.ln.mu.Unlock()
	if !s.ln.closed && s.l.leave(s.fd) == nil {
		time.AfterFunc(acceptPause, s.resume)
	}
}

func (s *listening) resume() {
	s.ln.mu.Lock()
	defer s.ln.mu.Unlock()
	if !s.ln.closed && s.watch() != nil {
		time.AfterFunc(acceptPause, s.resume)
	}
}
