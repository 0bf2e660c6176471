package tunnel

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// accepted returns a client and its peer.
func accepted(t testing.TB) (*Client, *net.TCPConn) {
	t.Helper()
	ln, clients := accepting(t, "127.0.0.1:0")
	peer := reach(t, ln.Addr().String())
	return <-clients, peer
}

// awaits has a client await, and returns what it is told.
func awaits(t testing.TB, c *Client, d time.Duration) <-chan bool {
	t.Helper()
	told := make(chan bool, 10)
	c.Do(func() {
		if err := c.Await(d, func(late bool) { told <- late }); err != nil {
			t.Error(err)
		}
	})
	return told
}

// is waits to be told.
func is(t testing.TB, told <-chan bool, late bool) {
	t.Helper()
	select {
	case got := <-told:
		if got != late {
			t.Errorf("told late: %v, want %v", got, late)
		}
	case <-time.After(wait):
		t.Fatalf("waited %v", wait)
	}
}

// quiet holds that nothing is told for a moment.
func quiet(t testing.TB, told <-chan bool) {
	t.Helper()
	select {
	case late := <-told:
		t.Errorf("told once more, late: %v", late)
	case <-time.After(30 * time.Millisecond):
	}
}

func TestAwait(t *testing.T) {
	t.Run("late", func(t *testing.T) {
		c, peer := accepted(t)
		defer c.Do(c.Close)
		began := time.Now()
		told := awaits(t, c, 50*time.Millisecond)
		is(t, told, true)
		if took := time.Since(began); took < 50*time.Millisecond {
			t.Errorf("late after %v", took)
		}
		io.WriteString(peer, "x")
		quiet(t, told)
	})
	t.Run("past", func(t *testing.T) {
		c, _ := accepted(t)
		defer c.Do(c.Close)
		is(t, awaits(t, c, -time.Second), true)
	})
	t.Run("early", func(t *testing.T) {
		c, peer := accepted(t)
		defer c.Do(c.Close)
		told := awaits(t, c, 30*time.Millisecond)
		io.WriteString(peer, "x")
		is(t, told, false)
		time.Sleep(40 * time.Millisecond)
		quiet(t, told)
	})
	t.Run("before", func(t *testing.T) { // what was there by then is told of the first time
		c, peer := accepted(t)
		defer c.Do(c.Close)
		io.WriteString(peer, "x")
		time.Sleep(10 * time.Millisecond)
		is(t, awaits(t, c, wait), false)
	})
	t.Run("again", func(t *testing.T) {
		c, peer := accepted(t)
		defer c.Do(c.Close)
		var got []byte
		over := make(chan struct{})
		var read func(bool)
		read = func(late bool) {
			if late {
				t.Error("late")
			}
			for {
				n, err := c.Read(c.Buffer())
				if err == ErrNotYet {
					if err := c.Await(wait, read); err != nil {
						t.Error(err)
					}
					return
				}
				if n == 0 || err != nil {
					close(over)
					return
				}
				got = append(got, c.Buffer()[:n]...)
			}
		}
		told := awaits(t, c, wait)
		io.WriteString(peer, "0")
		is(t, told, false)
		c.Do(func() { read(false) })
		want := []byte("0")
		for i := range 200 {
			b := bytes.Repeat([]byte{byte(i)}, 1+i*37%5000)
			want = append(want, b...)
			peer.Write(b)
		}
		peer.CloseWrite()
		select {
		case <-over:
		case <-time.After(wait):
			t.Fatal("the end is not told")
		}
		if !bytes.Equal(got, want) {
			t.Errorf("read %d bytes, want the %d that were sent", len(got), len(want))
		}
	})
	for _, tc := range []struct {
		name string
		end  func(c *net.TCPConn)
		want error
	}{
		{"end", func(c *net.TCPConn) { c.CloseWrite() }, nil},
		{"reset", reset, syscall.ECONNRESET},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, peer := accepted(t)
			defer c.Do(c.Close)
			told := awaits(t, c, wait)
			tc.end(peer)
			is(t, told, false)
			c.Do(func() {
				if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, tc.want) {
					t.Errorf("read %d bytes, %v, want %v", n, err, tc.want)
				}
			})
		})
	}
	// What was awaited before is not awaited any more.
	t.Run("closed", func(t *testing.T) {
		c, peer := accepted(t)
		told := awaits(t, c, 30*time.Millisecond)
		c.Do(c.Close)
		io.WriteString(peer, "x")
		time.Sleep(40 * time.Millisecond)
		quiet(t, told)
	})
}

// watchers for TestStaleEvents: who has his turn first closes the other, and opens one that gets its number.
type taker struct {
	t      *testing.T
	fd     int
	other  *taker
	turns  int
	newOne *taker
	peer   int
}

func (k *taker) turn(l *loop, fd int, _ uint32) {
	k.turns++
	if k.other == nil || k.other.fd < 0 {
		return
	}
	was := k.other.fd
	k.other.fd = -1
	l.forget(was)
	closeFD(was)
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		k.t.Error(err)
		return
	}
	if p[0] != was {
		k.t.Errorf("got descriptor %d, want %d again", p[0], was)
	}
	k.newOne = &taker{t: k.t, fd: p[0], peer: p[1]}
	if err := l.watch(p[0], k.newOne, unix.EPOLL_CTL_ADD, happens); err != nil {
		k.t.Error(err)
	}
}

// An event of a socket that was closed in the same turn is not the event of who has its number by then.
func TestStaleEvents(t *testing.T) {
	l, _, err := newLoop() // which only this test runs
	if err != nil {
		t.Fatal(err)
	}
	defer l.file.Close()
	var takers [2]*taker
	for i := range takers {
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		takers[i] = &taker{t: t, fd: p[0], peer: p[1]}
	}
	takers[0].other, takers[1].other = takers[1], takers[0]
	for _, k := range takers {
		if err := l.watch(k.fd, k, unix.EPOLL_CTL_ADD, happens); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range takers {
		unix.Write(k.peer, []byte("x"))
	}
	l.run(0)
	if got := takers[0].turns + takers[1].turns; got != 1 {
		t.Fatalf("%d turns, want that of who was first", got)
	}
	first := takers[0]
	if takers[1].turns > 0 {
		first = takers[1]
	}
	if first.newOne == nil {
		t.Fatal("no new socket")
	}
	if first.newOne.turns != 0 {
		t.Error("the new socket has had the event of the old one")
	}
	unix.Write(first.newOne.peer, []byte("x"))
	l.run(0)
	if first.newOne.turns != 1 {
		t.Errorf("its own event was told %d times", first.newOne.turns)
	}
	for _, fd := range []int{first.fd, first.peer, first.other.peer, first.newOne.fd, first.newOne.peer} {
		unix.Close(fd)
	}
}

// closeWith calls CloseWith, and returns what is closed when it is over.
func closeWith(c *Client, last string, linger time.Duration) <-chan bool {
	closed := make(chan bool, 2)
	c.Do(func() { c.CloseWith([]byte(last), linger, func() { closed <- true }) })
	return closed
}

func TestCloseWith(t *testing.T) {
	const short, long = 50 * time.Millisecond, 10 * time.Second
	for _, tc := range []struct {
		name   string
		before int // bytes that the client has sent, and nobody has read
		last   string
		linger time.Duration
		then   func(peer *net.TCPConn)
		got    string
		err    error
		least  time.Duration // until it is closed
		most   time.Duration
	}{
		{"silent", 0, "bye", short, nil, "bye", nil, short, long},
		{"stays", 40_000, "bye", short, nil, "bye", nil, short, long},
		{"closes", 40_000, "bye", long, func(p *net.TCPConn) { p.CloseWrite() }, "bye", nil, 0, long / 2},
		{"sends and closes", 40_000, "bye", long, func(p *net.TCPConn) { p.Write(make([]byte, 20_000)); p.CloseWrite() }, "bye", nil, 0, long / 2},
		{"sends as much as is read", 1, "bye", long, func(p *net.TCPConn) { p.Write(make([]byte, lingerMax-1)) }, "bye", nil, 0, long / 2},
		{"no last words", 0, "", long, nil, "", nil, 0, short},
		{"no last words, with bytes unread", 40_000, "", long, nil, "", syscall.ECONNRESET, 0, short},
		{"no linger", 0, "bye", 0, nil, "bye", nil, 0, short},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, peer := accepted(t)
			peer.Write(make([]byte, tc.before))
			until(t, "the client's bytes are there", func() bool {
				n, err := unix.IoctlGetInt(c.fd, unix.TIOCINQ)
				return err == nil && n == tc.before
			})
			began := time.Now()
			closed := closeWith(c, tc.last, tc.linger)
			if tc.then != nil {
				tc.then(peer)
			}
			got, err := io.ReadAll(peer)
			if string(got) != tc.got || !errors.Is(err, tc.err) {
				t.Errorf("the client got %q, %v, want %q, %v", got, err, tc.got, tc.err)
			}
			is(t, closed, true)
			if took := time.Since(began); took < tc.least || took > tc.most {
				t.Errorf("closed after %v, want %v to %v", took, tc.least, tc.most)
			}
			quiet(t, closed)
		})
	}
	// One that sends without end is read for so long, and no longer.
	t.Run("sends on", func(t *testing.T) {
		c, peer := accepted(t)
		closed := closeWith(c, "bye", long)
		var err error
		for b := make([]byte, 4096); err == nil; {
			_, err = peer.Write(b)
		}
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("got %v, want a reset", err)
		}
		is(t, closed, true)
	})
	t.Run("drips", func(t *testing.T) {
		c, peer := accepted(t)
		began := time.Now()
		closed := closeWith(c, "bye", 2*short)
		go func() {
			for {
				if _, err := peer.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
		is(t, closed, true)
		if took := time.Since(began); took < 2*short || took > long {
			t.Errorf("closed after %v", took)
		}
	})
	t.Run("resets", func(t *testing.T) {
		c, peer := accepted(t)
		closed := closeWith(c, "bye", long)
		reset(peer)
		is(t, closed, true)
	})
	t.Run("is gone", func(t *testing.T) {
		c, peer := accepted(t)
		told := awaits(t, c, wait)
		reset(peer)
		is(t, told, false)
		is(t, closeWith(c, "bye", long), true)
	})
	// Last words that do not fit are not waited for.
	t.Run("takes nothing", func(t *testing.T) {
		c, _ := accepted(t)
		for {
			if _, err := write(c.fd, make([]byte, 64<<10)); err != nil {
				break
			}
		}
		is(t, closeWith(c, "bye", long), true)
	})
}

// What turns leave for later is called in that order, and may wait.
func TestLater(t *testing.T) {
	c, peer := accepted(t)
	defer c.Do(c.Close)
	calls := make(chan int, 100)
	i := 0
	var more func(bool)
	more = func(bool) {
		for range 3 {
			n := i
			i++
			c.Later(func() { time.Sleep(time.Millisecond); calls <- n })
		}
		for {
			if _, err := c.Read(c.Buffer()); err != nil {
				break
			}
		}
		if i < 30 {
			if err := c.Await(wait, more); err != nil {
				t.Error(err)
			}
		}
	}
	c.Do(func() {
		if err := c.Await(wait, more); err != nil {
			t.Error(err)
		}
	})
	var got []int
	for len(got) < 30 {
		io.WriteString(peer, "x")
		for range 3 {
			select {
			case n := <-calls:
				got = append(got, n)
			case <-time.After(wait):
				t.Fatalf("called %v, and no more", got)
			}
		}
	}
	if !slices.IsSorted(got) {
		t.Errorf("called in the order %v", got)
	}
}

// sendEarly sends "early", while the client is being watched or without.
func sendEarly(t *testing.T, c *Client, peer net.Conn, watched bool) {
	t.Helper()
	if !watched {
		io.WriteString(peer, "early")
		return
	}
	told := awaits(t, c, wait)
	io.WriteString(peer, "early")
	is(t, told, false)
}

// What a client has sent is there for who takes it over, whatever was awaited before.
func TestClientConn(t *testing.T) {
	for _, watched := range []bool{false, true} {
		c, peer := accepted(t)
		sendEarly(t, c, peer, watched)
		conn, err := c.Conn()
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(wait))
		b := make([]byte, 5)
		if _, err := io.ReadFull(conn, b); string(b) != "early" {
			t.Errorf("got %q, %v", b, err)
		}
		say(t, peer, conn, "question")
		say(t, conn, peer, "answer")
		conn.Close()
		ends(t, peer)
	}
	t.Run("without a descriptor", func(t *testing.T) {
		c, peer := accepted(t)
		told := awaits(t, c, wait)
		io.WriteString(peer, "x")
		is(t, told, false)
		var was unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
		before := descriptors(t)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
		conn, err := c.Conn()
		unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
		if err == nil {
			conn.Close()
			t.Fatal("there was one")
		}
		if n := descriptors(t); n != before-1 {
			t.Errorf("%d descriptors, want that of the client given back of %d", n, before)
		}
		wasReset(t, peer)
	})
}

// A tunnel of a client moves all that was sent before it, whether the client was watched or not, and whichever loop
// carries it.
func TestClientJoin(t *testing.T) {
	for _, same := range []bool{true, false} {
		for _, watched := range []bool{true, false} {
			c, client := accepted(t)
			sendEarly(t, c, client, watched)
			ln, addr := listen(t, "tcp4", "127.0.0.1:0")
			var s *Socket
			for range 100 {
				var err error
				if s, err = Connect(t.Context(), addr); err != nil {
					t.Fatal(err)
				}
				if (s.l == c.l) == same || len(loops()) == 1 {
					break
				}
				s.Close()
				if p, err := ln.AcceptTCP(); err == nil {
					p.Close()
				}
			}
			up, err := ln.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			up.SetDeadline(time.Now().Add(wait))
			io.WriteString(up, "hello")
			over := make(chan Result, 1)
			c.Join(s, Options{}).Start(func(r Result) { over <- r })
			for _, e := range []struct {
				c    net.Conn
				want string
			}{{up, "early"}, {client, "hello"}} {
				b := make([]byte, 5)
				if _, err := io.ReadFull(e.c, b); string(b) != e.want {
					t.Errorf("same loop: %v, watched: %v: got %q, %v, want %q", same, watched, b, err, e.want)
				}
			}
			say(t, client, up, "question")
			say(t, up, client, "answer")
			client.Close()
			ends(t, up)
			up.Close()
			if r := <-over; r != (Result{In: 13, Out: 11}) {
				t.Errorf("got %+v", r)
			}
		}
	}
}

// begun returns a Socket as Connect of a Client has it.
func begun(t *testing.T, to netip.AddrPort) (s *Socket) {
	t.Helper()
	c, _ := accepted(t)
	c.Do(func() {
		var err error
		if s, err = c.Connect(to); err != nil {
			t.Fatal(err)
		}
		if s.l != c.l {
			t.Error("on another loop than the client")
		}
	})
	t.Cleanup(func() { s.Close(); c.Do(c.Close) })
	return s
}

// offered offers until there is a connection, or will be none.
func offered(t *testing.T, s *Socket, b []byte) (n int, err error) {
	t.Helper()
	until(t, "it is connected or not", func() bool {
		n, err = s.Offer(b)
		return err != ErrNotYet
	})
	return n, err
}

func TestOffer(t *testing.T) {
	t.Run("connected", func(t *testing.T) {
		for _, tc := range []struct{ network, addr string }{{"tcp4", "127.0.0.1:0"}, {"tcp6", "[::1]:0"}} {
			ln, addr := listen(t, tc.network, tc.addr)
			s := begun(t, addr)
			if n, err := offered(t, s, []byte("hello")); n != 5 || err != nil {
				t.Fatalf("offered %d bytes, %v", n, err)
			}
			if got, err := unix.GetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY); got != 1 || err != nil {
				t.Errorf("TCP_NODELAY is %d (%v)", got, err)
			}
			peer, err := ln.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			s.Close()
			if got, err := io.ReadAll(peer); string(got) != "hello" || err != nil {
				t.Errorf("the peer got %q, %v", got, err)
			}
			peer.Close()
		}
	})
	t.Run("refused", func(t *testing.T) {
		ln, addr := listen(t, "tcp4", "127.0.0.1:0")
		ln.Close()
		c, _ := accepted(t)
		defer c.Do(c.Close)
		var s *Socket
		var err error
		c.Do(func() { s, err = c.Connect(addr) })
		if err == nil {
			defer s.Close()
			_, err = offered(t, s, []byte("hello"))
		}
		var op *net.OpError
		if !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &op) || op.Addr.String() != addr.String() {
			t.Errorf("got %v, want that %v refuses", err, addr)
		}
	})
	t.Run("late", func(t *testing.T) {
		ln, addr := crowded(t)
		c, _ := accepted(t)
		defer c.Do(c.Close)
		var s *Socket
		told := make(chan bool, 10)
		c.Do(func() {
			var err error
			if s, err = c.Connect(addr); err != nil {
				t.Error(err)
				return
			}
			if n, err := s.Offer([]byte("hello")); n != 0 || err != ErrNotYet {
				t.Errorf("offered %d bytes, %v", n, err)
			}
			if err := c.AwaitUpstream(s, 30*time.Millisecond, func(late bool) { told <- late }); err != nil {
				t.Error(err)
			}
		})
		is(t, told, true)
		c.Do(func() {
			if err := c.AwaitUpstream(s, wait, func(late bool) { told <- late }); err != nil {
				t.Error(err)
			}
		})
		go func() {
			for {
				p, err := ln.AcceptTCP()
				if err != nil {
					return
				}
				defer p.Close()
			}
		}()
		is(t, told, false)
		if n, err := s.Offer([]byte("hello")); n != 5 || err != nil {
			t.Errorf("offered %d bytes, %v", n, err)
		}
		s.Close()
	})
	t.Run("resumed", func(t *testing.T) {
		ln, addr := crowded(t)
		s := begun(t, addr)
		if n, err := s.Offer([]byte("hello")); n != 0 || err != ErrNotYet {
			t.Fatalf("offered %d bytes, %v", n, err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Resume(t.Context()) }()
		go func() {
			for {
				p, err := ln.AcceptTCP()
				if err != nil {
					return
				}
				defer p.Close()
			}
		}()
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(wait):
			t.Fatal("Resume does not return")
		}
		if n, err := s.Write([]byte("hello")); n != 5 || err != nil {
			t.Errorf("wrote %d bytes, %v", n, err)
		}
	})
	t.Run("more than it takes", func(t *testing.T) {
		ln, addr := listen(t, "tcp4", "127.0.0.1:0")
		s := begun(t, addr)
		sent := make([]byte, 16<<20)
		newRand('o').Read(sent)
		n, err := offered(t, s, sent)
		if n == 0 || n == len(sent) || err != nil {
			t.Fatalf("offered %d bytes, %v", n, err)
		}
		peer, err := ln.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		written := make(chan struct{})
		go func() { defer close(written); s.Write(sent[n:]); s.Close() }()
		if got, err := io.ReadAll(peer); !bytes.Equal(got, sent) || err != nil {
			t.Errorf("the peer got %d bytes, %v", len(got), err)
		}
		<-written
	})
	// TCP connects to itself where nobody listens on the port that was picked for the near end.
	for _, resume := range []bool{false, true} {
		t.Run("itself", func(t *testing.T) {
			c, _ := accepted(t)
			defer c.Do(c.Close)
			ln, addr := listen(t, "tcp4", "127.0.0.1:0")
			ln.Close()
			s, err := c.l.socket(addr)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := unix.Bind(s.fd, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}); err != nil {
				t.Fatal(err)
			}
			if err := connectFD(s.fd, addr); err != nil && err != unix.EINPROGRESS {
				t.Fatal(err)
			}
			n := 0
			if resume {
				err = s.Resume(t.Context())
			} else {
				n, err = offered(t, s, []byte("hello"))
			}
			if n != 0 || !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("resumed: %v: %d bytes, %v, want %v", resume, n, err, syscall.ECONNREFUSED)
			}
		})
	}
}
