package tunnel

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// descriptor is a socket and the loop that watches it, or may come to.
type descriptor struct {
	fd int
	l  *loop
	op int // how the loop comes to watch it: EPOLL_CTL_ADD, and once it does EPOLL_CTL_MOD
}

// watch has w told of what happens to the socket, from now on.
func (d *descriptor) watch(w watcher, events uint32) error {
	if err := d.l.watch(d.fd, w, d.op, events); err != nil {
		return err
	}
	d.op = unix.EPOLL_CTL_MOD
	return nil
}

// leave has nobody watch the socket, which stays open.
func (d *descriptor) leave() error {
	if d.op == unix.EPOLL_CTL_ADD {
		return nil
	}
	d.op = unix.EPOLL_CTL_ADD
	return d.l.leave(d.fd)
}

// close closes the socket.
func (d *descriptor) close() {
	if d.op == unix.EPOLL_CTL_MOD {
		d.l.forget(d.fd)
	}
	closeFD(d.fd)
}

// netConn makes it a connection of package net. The socket is that one's then, or closed if there is an error.
func (d *descriptor) netConn() (net.Conn, error) {
	err := d.leave()
	f := os.NewFile(uintptr(d.fd), "socket")
	defer f.Close()
	if err != nil {
		return nil, err
	}
	return net.FileConn(f) // of a descriptor of its own
}
