package tunnel

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// acceptMax is how many connections a loop accepts in one turn, so that what goes on gets its turn, too.
	acceptMax = 16

	// acceptPause is how long nothing is accepted after there was no descriptor for it, or no memory.
	acceptPause = 20 * time.Millisecond
)

// Listener accepts TCP connections on the loops that will carry them.
type Listener struct {
	fd    int
	addr  netip.AddrPort
	begin func(*Client)
	loops []*loop

	mu     sync.RWMutex // held while accepting, as the number of a closed descriptor may be another's
	closed bool
}

// Listen listens on a TCP address such as ":443", which is of both families, or "172.30.0.20:443". Others may listen on
// the same address if they too have SO_REUSEPORT set, as Caddy has. Serve must follow.
//
// What it accepts has TCP_NODELAY set and keep-alive probes on.
func Listen(addr string) (*Listener, error) {
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
		return nil, err
	}
	defer tcp.Close()
	loops := loops()
	if len(loops) == 0 {
		return nil, os.NewSyscallError("epoll_create1", unix.EMFILE)
	}
	fd, err := dup(tcp.(*net.TCPListener))
	if err != nil {
		return nil, err
	}
	// Connections inherit all three.
	for _, o := range []struct{ level, option, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(KeepAliveIdle / time.Second)},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
	} {
		if err := setOption(fd, o.level, o.option, o.value); err != nil {
			closeFD(fd)
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	return &Listener{fd: fd, addr: tcp.Addr().(*net.TCPAddr).AddrPort(), loops: loops}, nil
}

// Addr is where it listens.
func (ln *Listener) Addr() netip.AddrPort { return ln.addr }

// Serve has begin called with each connection from now on, by a loop, so it must not wait for anything. It is to be
// called once.
func (ln *Listener) Serve(begin func(*Client)) error {
	ln.begin = begin
	for _, l := range ln.loops {
		if err := ln.watch(l); err != nil {
			ln.Close()
			return err
		}
	}
	return nil
}

// watch has a loop told of connections for as long as there are any. Not all loops need to be.
func (ln *Listener) watch(l *loop) error {
	return l.watch(ln.fd, ln, unix.EPOLL_CTL_ADD, unix.EPOLLIN|unix.EPOLLEXCLUSIVE)
}

// Close ends it. Those who have connected and were not accepted yet are reset.
func (ln *Listener) Close() error {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.closed {
		return nil
	}
	ln.closed = true
	for _, l := range ln.loops {
		l.forget(ln.fd)
	}
	closeFD(ln.fd) // which takes it out of epoll, as the only descriptor
	return nil
}

// turn implements watcher.
func (ln *Listener) turn(l *loop, _ int, _ uint32) {
	for range acceptMax {
		conn, remote, err := ln.accept()
		switch err {
		case nil:
			c := &Client{fd: conn, remote: netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()), l: l, op: unix.EPOLL_CTL_ADD}
			c.Do(func() { ln.begin(c) })
		case unix.EINTR, unix.ECONNABORTED, unix.EPROTO, unix.EPERM: // this one is gone, or a firewall's
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			ln.pause(l)
			return
		default: // there is none, or the listener is closed
			return
		}
	}
	l.more = true
}

func (ln *Listener) accept() (int, netip.AddrPort, error) {
	ln.mu.RLock()
	defer ln.mu.RUnlock()
	if ln.closed {
		return -1, netip.AddrPort{}, unix.EBADF
	}
	return acceptFD(ln.fd)
}

// pause has a loop accept nothing for a moment. The listener would wake it at once, again and again.
func (ln *Listener) pause(l *loop) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.closed || l.leave(ln.fd) != nil {
		return
	}
	time.AfterFunc(acceptPause, func() {
		ln.mu.Lock()
		defer ln.mu.Unlock()
		if !ln.closed {
			_ = ln.watch(l) // what it needs was there before
		}
	})
}
