//go:build unix

package caddymodule

import (
	"errors"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// closeUnlessHTTP closes a connection whose first octet begins no HTTP message: SOCKS, or TLS where none is
// spoken. net/http would wait for the end of a line that such clients never send. The octet is only looked at.
//
// It returns before there is one, but not before it is first in the queue of those who read: net/http, and
// whoever takes the connection over, come behind it. A deadline to read holds for it too.
func closeUnlessHTTP(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	queued := make(chan struct{})
	go func() {
		once := sync.OnceFunc(func() { close(queued) })
		defer once() // the connection may be closed already
		foreign := false
		_ = raw.Read(func(fd uintptr) bool {
			once()
			var b [1]byte
			n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK)
			if foreign = n == 1 && !beginsHTTP(b[0]); foreign {
				hangUp(int(fd)) // while the next in the queue cannot read yet, and answer a line that is none
			}
			return !errors.Is(err, unix.EAGAIN)
		})
		if foreign {
			c.Close()
		}
	}()
	<-queued
}

// beginsHTTP reports whether a request may begin with b: a method, or the empty line that servers forgive
// (RFC 9112 §2.2).
func beginsHTTP(b byte) bool { return b == '\r' || b == '\n' || ' ' < b && b < 0x7f }
