package tunnel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// listen returns a listener on loopback and its address.
func listen(t testing.TB, network, addr string) (*net.TCPListener, netip.AddrPort) {
	t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.(*net.TCPListener), ln.Addr().(*net.TCPAddr).AddrPort()
}

// socket returns a Socket and its peer.
func socketPair(t testing.TB) (*Socket, *net.TCPConn) {
	t.Helper()
	ln, addr := listen(t, "tcp4", "127.0.0.1:0")
	s, err := Connect(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	peer, err := ln.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	peer.SetDeadline(time.Now().Add(wait))
	t.Cleanup(func() { s.Close(); peer.Close() })
	return s, peer
}

func TestConnect(t *testing.T) {
	for _, tc := range []struct{ network, addr string }{{"tcp4", "127.0.0.1:0"}, {"tcp6", "[::1]:0"}} {
		t.Run(tc.network, func(t *testing.T) {
			ln, addr := listen(t, tc.network, tc.addr)
			s, err := Connect(t.Context(), addr)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			peer, err := ln.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()
			if s.RemoteAddr() != addr {
				t.Errorf("connected to %v, want %v", s.RemoteAddr(), addr)
			}
			if got, err := unix.GetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY); got != 1 || err != nil {
				t.Errorf("TCP_NODELAY is %d (%v)", got, err)
			}
			if _, err := s.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			s.Close()
			s.Close()
			if got, err := io.ReadAll(peer); string(got) != "hello" || err != nil {
				t.Errorf("the peer got %q, %v", got, err)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		ln, addr := listen(t, "tcp4", "127.0.0.1:0")
		ln.Close()
		_, err := Connect(t.Context(), addr)
		if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), addr.String()) {
			t.Errorf("got %v, want that %v refuses", err, addr)
		}
	})
	// One that answers late: the first SYN is dropped as the queue is full, and the next comes a second later.
	t.Run("late", func(t *testing.T) {
		ln, addr := crowded(t)
		go func() {
			time.Sleep(50 * time.Millisecond)
			for {
				c, err := ln.AcceptTCP()
				if err != nil {
					return
				}
				defer c.Close()
			}
		}()
		s, err := Connect(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		if s.woken == nil {
			t.Error("it was not waited for")
		}
		s.Close()
	})
	t.Run("silent", func(t *testing.T) {
		fds := descriptors(t)
		_, addr := crowded(t)
		held := descriptors(t) - fds
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := Connect(ctx, addr); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v, want %v", err, os.ErrDeadlineExceeded)
		}
		if got := descriptors(t) - fds; got != held {
			t.Errorf("%d descriptors are left", got-held)
		}
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		if _, err := Connect(ctx, addr); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
}

// crowded returns a listener whose queue is full, so that it drops whoever else wants to connect.
func crowded(t testing.TB) (*net.TCPListener, netip.AddrPort) {
	t.Helper()
	ln, addr := listen(t, "tcp4", "127.0.0.1:0")
	raw, err := ln.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 0) })
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		c, err := net.DialTimeout("tcp", addr.String(), 100*time.Millisecond)
		if err != nil {
			return ln, addr
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("the queue is never full")
	return nil, addr
}

// What does not fit the socket at once is written when there is room, and is not lost when a tunnel follows.
func TestSocketWrite(t *testing.T) {
	s, peer := socketPair(t)
	sent := make([]byte, 8<<20)
	newRand('w').Read(sent)
	got := make(chan []byte)
	go func() {
		time.Sleep(20 * time.Millisecond)
		b := make([]byte, len(sent))
		io.ReadFull(peer, b)
		got <- b
	}()
	if n, err := s.Write(sent); n != len(sent) || err != nil {
		t.Fatalf("wrote %d bytes, %v", n, err)
	}
	if s.woken == nil {
		t.Error("it was not waited for")
	}
	if b := <-got; !bytes.Equal(b, sent) {
		t.Error("other bytes were received than sent")
	}
	// The loop knows this socket already, and what the peer says before the tunnel has it.
	near, client := connect(t)
	client.SetDeadline(time.Now().Add(wait))
	if _, err := io.WriteString(peer, "early"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	tun, err := Join(near, s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan Result, 1)
	tun.Start(func(r Result) { over <- r })
	b := make([]byte, 5)
	if _, err := io.ReadFull(client, b); string(b) != "early" {
		t.Errorf("the client got %q, %v", b, err)
	}
	s.Close() // is not its owner any more
	say(t, client, peer, "question")
	client.Close()
	peer.Close()
	if r := <-over; r != (Result{In: 8, Out: 5}) {
		t.Errorf("got %+v", r)
	}
}

// What the upstream says before the tunnel is waited for, and no more of it is taken than there is room for.
func TestSocketRead(t *testing.T) {
	s, peer := socketPair(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	b := make([]byte, 2)
	if n, err := s.Read(ctx, b); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("from a silent peer: %d, %v", n, err)
	}
	go func() {
		time.Sleep(10 * time.Millisecond)
		peer.Write([]byte("abc"))
		peer.Close()
	}()
	for _, want := range []struct {
		text string
		err  error
	}{{"ab", nil}, {"c", nil}, {"", io.EOF}} {
		if n, err := s.Read(t.Context(), b); string(b[:n]) != want.text || err != want.err {
			t.Errorf("got %q, %v, want %q, %v", b[:n], err, want.text, want.err)
		}
	}
}

// A client that is not a bare TCP connection has a tunnel to a Socket too.
func TestJoinWrapped(t *testing.T) {
	for _, waited := range []bool{false, true} {
		s, peer := socketPair(t)
		if waited {
			if err := s.wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		near, client := connect(t)
		client.SetDeadline(time.Now().Add(wait))
		tun, err := Join(wrapped{near}, s, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if tun.Detached() {
			t.Error("it is detached from what the client's connection stands on")
		}
		over := make(chan Result, 1)
		tun.Start(func(r Result) { over <- r })
		say(t, client, peer, "question")
		say(t, peer, client, "answer")
		client.Close()
		ends(t, peer)
		peer.Close()
		if r := <-over; r != (Result{In: 8, Out: 6}) {
			t.Errorf("got %+v", r)
		}
	}
}

// Probes begin once a tunnel is old enough, whatever its limits.
func TestKeepAlive(t *testing.T) {
	s, _ := socketPair(t)
	near, _ := connect(t)
	tun, err := Join(near, s, Options{Idle: -1, HalfClosedIdle: -1})
	if err != nil {
		t.Fatal(err)
	}
	tun.Start(func(Result) {})
	defer tun.Cut()
	fd := tun.pair.sockets[1].fd
	probed := func() (on, idle int) {
		on, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		idle, _ = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
		return on, idle
	}
	if on, _ := probed(); on != 0 {
		t.Error("a new socket is probed")
	}
	if !tun.idle.timer.Reset(0) {
		t.Error("no look is to come")
	}
	until(t, "the socket is probed", func() bool {
		on, idle := probed()
		return on == 1 && idle == 60
	})
}
