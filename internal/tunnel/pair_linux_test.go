package tunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// joined returns the far ends of a tunnel that a loop carries, and what becomes of it.
func joined(t *testing.T) (client, up *net.TCPConn, over <-chan Result) {
	t.Helper()
	near, client := connect(t)
	s, up := socketPair(t)
	client.SetDeadline(time.Now().Add(wait))
	tun, err := Join(near, s, Options{})
	if err != nil || tun.pair == nil {
		t.Fatalf("no loop carries it: %v", err)
	}
	ended := make(chan Result, 1)
	tun.Start(func(r Result) { ended <- r })
	return client, up, ended
}

// A read stops where urgent data was sent, and splice(2) does not get past it. What follows must arrive, and the end
// must not come before it.
func TestUrgent(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before int
	}{{"read", 1}, {"spliced", smallTotal + 64<<10}} {
		t.Run(tc.name, func(t *testing.T) {
			client, up, over := joined(t)
			go client.Write(make([]byte, tc.before))
			if _, err := io.ReadFull(up, make([]byte, tc.before)); err != nil {
				t.Fatal(err)
			}
			raw, err := client.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			raw.Control(func(fd uintptr) {
				unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 1)
				unix.Write(int(fd), []byte("abc"))
				unix.Sendto(int(fd), []byte("!"), unix.MSG_OOB, nil)
				unix.Write(int(fd), []byte("defgh"))
				unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 0)
			})
			got := make([]byte, len("abcdefgh"))
			if _, err := io.ReadFull(up, got); string(got) != "abcdefgh" {
				t.Errorf("got %q, %v", got, err)
			}
			client.CloseWrite()
			if rest, err := io.ReadAll(up); len(rest) > 0 || err != nil {
				t.Errorf("at the end got %q, %v", rest, err)
			}
			up.Close()
			<-over
		})
	}
}

// A client that has ended its stream, and then is gone, holds the upstream no longer.
func TestResetAfterEnd(t *testing.T) {
	client, up, over := joined(t)
	io.WriteString(client, "x")
	client.CloseWrite()
	if got, err := io.ReadAll(up); string(got) != "x" || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	client.SetLinger(0)
	client.Close()
	if r := <-over; !errors.Is(r.Err, syscall.ECONNRESET) {
		t.Errorf("ended with %v, want %v", r.Err, syscall.ECONNRESET)
	}
}

// An upstream that answers and closes while the client still sends: its answer says why, and is passed on.
func TestAnswerBeforeReset(t *testing.T) {
	for range 50 {
		client, up, over := joined(t)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for b := make([]byte, 2000); ; time.Sleep(20 * time.Microsecond) {
				if _, err := client.Write(b); err != nil {
					return
				}
			}
		}()
		time.Sleep(2 * time.Millisecond)
		io.WriteString(up, "answer")
		up.Close() // with bytes unread: a reset follows
		if got, err := io.ReadAll(client); string(got) != "answer" {
			t.Fatalf("got %q, %v", got, err)
		}
		client.Close()
		<-sent
		<-over
	}
}

// A tunnel with more to move than a turn takes stands once among those that have another, however many events it has
// until then: each would be a turn that others do not get.
func TestOneTurn(t *testing.T) {
	near, client := connect(t)
	s, up := socketPair(t)
	tun, err := Join(near, s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tun.Cut()
	tun.done = func(Result) {}
	tun.pair.streams[0].stock = noPipes
	go func() {
		for b := make([]byte, 1<<20); ; {
			if _, err := client.Write(b); err != nil {
				return
			}
		}
	}()
	go io.Copy(io.Discard, struct{ io.Reader }{up})
	l := new(loop) // which nobody runs
	until(t, "a turn is not enough", func() bool {
		tun.pair.turn(l, tun.pair.sockets[0].fd, unix.EPOLLIN)
		return len(l.again) > 0
	})
	for range 10 {
		tun.pair.turn(l, tun.pair.sockets[0].fd, unix.EPOLLIN)
	}
	if n := len(l.again); n != 1 {
		t.Errorf("it has %d turns again, want 1", n)
	}
}

// An upstream that takes nothing ends what is written before the tunnel.
func TestSocketWriteTimeout(t *testing.T) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { // so small that a ClientHello does not fit
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 2048)
		})
	}}
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	s, err := Connect(context.Background(), netip.MustParseAddrPort(ln.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	began := time.Now()
	_, err = s.Write(make([]byte, 16<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) > 2*writeTimeout {
		t.Errorf("got %v after %v", err, time.Since(began))
	}
}

// What is spliced goes by how a stream has gone on of late, not by how much it has carried.
func TestCount(t *testing.T) {
	var st stream
	add := func(times, n int) {
		for range times {
			st.count(n)
		}
	}
	for _, step := range []struct {
		name     string
		times, n int
		spliced  bool
	}{
		{"a handshake", 3, 2000, false},
		{"much", smallTotal / smallSize, smallSize, true},
		{"a small piece now and then", smallPieces - 1, 100, true},
		{"much again", 1, smallSize, true},
		{"nearly requests", smallPieces - 1, 100, true},
		{"requests", 1, 100, false},
		{"more of them", 10_000, smallPiece - 1, false},
		{"not much", smallTotal/smallSize - 1, smallSize, false},
		{"much once more", 1, smallSize, true},
	} {
		add(step.times, step.n)
		if spliced := st.small >= smallTotal; spliced != step.spliced {
			t.Errorf("%s: spliced is %v, want %v", step.name, spliced, step.spliced)
		}
	}
}
