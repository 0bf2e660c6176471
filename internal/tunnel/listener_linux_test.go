package tunnel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// accepting returns a Listener that hands over the clients that it has accepted.
func accepting(t testing.TB, addr string) (*Listener, <-chan *Client) {
	t.Helper()
	ln, err := Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	clients := make(chan *Client, 1000)
	if err := ln.Serve(func(c *Client) { clients <- c }); err != nil {
		t.Fatal(err)
	}
	return ln, clients
}

// reach connects to a Listener.
func reach(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(wait))
	return c.(*net.TCPConn)
}

func TestListener(t *testing.T) {
	for _, tc := range []struct {
		name, addr string
		at         []string
	}{
		{"IPv4", "127.0.0.1:0", []string{"127.0.0.1"}},
		{"IPv6", "[::1]:0", []string{"::1"}},
		{"both", ":0", []string{"127.0.0.1", "::1"}},
		{"all of IPv4", "0.0.0.0:0", []string{"127.0.0.1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ln, clients := accepting(t, tc.addr)
			for _, host := range tc.at {
				peer := reach(t, netip.AddrPortFrom(netip.MustParseAddr(host), ln.Addr().Port()).String())
				c := <-clients
				if want := peer.LocalAddr().(*net.TCPAddr).AddrPort(); c.RemoteAddr() != want {
					t.Errorf("client %v, want %v", c.RemoteAddr(), want)
				}
				for _, o := range []struct {
					name             string
					level, opt, want int
				}{
					{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
					{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
					{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(KeepAliveIdle / time.Second)},
					{"SO_PROTOCOL", unix.SOL_SOCKET, unix.SO_PROTOCOL, unix.IPPROTO_TCP}, // not MPTCP
				} {
					if got, err := unix.GetsockoptInt(c.fd, o.level, o.opt); got != o.want || err != nil {
						t.Errorf("%s is %d (%v), want %d", o.name, got, err, o.want)
					}
				}
				if flags, err := unix.FcntlInt(uintptr(c.fd), unix.F_GETFD, 0); flags&unix.FD_CLOEXEC == 0 || err != nil {
					t.Errorf("a child process inherits the client: %x, %v", flags, err)
				}
				var n int
				var err error
				c.Do(func() { n, err = c.Read(make([]byte, 1)) })
				if n != 0 || err != ErrNotYet {
					t.Errorf("from a silent client: %d, %v", n, err)
				}
				c.Do(c.Close)
			}
		})
	}
}

func TestListenErrors(t *testing.T) {
	taken, at := listen(t, "tcp4", "127.0.0.1:0")
	defer taken.Close()
	before := descriptors(t)
	for addr, want := range map[string]string{
		at.String():     "address already in use",
		"192.0.2.1:1":   "cannot assign requested address",
		"127.0.0.1":     "missing port in address",
		"127.0.0.1:x":   "unknown port",
		"127.0.0.1:1:1": "too many colons",
	} {
		ln, err := Listen(addr)
		if err == nil {
			ln.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), addr) && want != "unknown port" {
			t.Errorf("%s: got %v, want %q", addr, err, want)
		}
	}
	if n := descriptors(t) - before; n != 0 {
		t.Errorf("%d descriptors are left", n)
	}
}

// Two that share an address share those who come; a third that does not share gets none.
func TestListenShared(t *testing.T) {
	ln, _ := accepting(t, "127.0.0.1:0")
	other, err := Listen(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if l, err := net.Listen("tcp", ln.Addr().String()); err == nil {
		l.Close()
		t.Error("one that does not share has the address too")
	}
}

func TestListenerClose(t *testing.T) {
	before := descriptors(t)
	ln, _ := accepting(t, "127.0.0.1:0")
	addr := ln.Addr().String()
	for range 2 {
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after the end: %v", err)
	}
	for _, s := range ln.sockets {
		s.l.mu.Lock()
		if _, ok := s.l.watchers[s.fd]; ok {
			t.Error("a loop watches it still")
		}
		s.l.mu.Unlock()
	}

	// Who was not accepted is reset.
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := reach(t, ln.Addr().String())
	ln.Close()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("who waited sees %v", err)
	}
	c.Close()
	if n := descriptors(t) - before; n != 0 {
		t.Errorf("%d descriptors are left", n)
	}
}

// After Close nobody is accepted, whoever comes meanwhile, and no descriptor is closed that is another's by then.
func TestListenerCloseMeanwhile(t *testing.T) {
	before := descriptors(t)
	for range 30 {
		ln, err := Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var closed atomic.Bool
		var accepted atomic.Int64
		if err := ln.Serve(func(c *Client) { accepted.Add(1); c.Close() }); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for !closed.Load() {
					if c, err := net.Dial("tcp", ln.Addr().String()); err == nil {
						c.SetDeadline(time.Now().Add(wait))
						c.Read(make([]byte, 1)) // the end, or a reset
						c.Close()
					}
				}
			})
		}
		until(t, "some are accepted", func() bool { return accepted.Load() > 20 })
		ln.Close()
		// Numbers are given again.
		var fds []int
		for range 4 {
			fd, err := unix.Dup(0)
			if err != nil {
				t.Fatal(err)
			}
			fds = append(fds, fd)
		}
		closed.Store(true)
		wg.Wait()
		for _, fd := range fds {
			if err := unix.Close(fd); err != nil {
				t.Errorf("descriptor %d was closed: %v", fd, err)
			}
		}
	}
	until(t, "all descriptors are given back", func() bool { return descriptors(t) <= before })
}

// A crowd that waits is accepted by all loops, and each once.
func TestListenerCrowd(t *testing.T) {
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var peers []string
	for range 10 * acceptMax {
		peers = append(peers, reach(t, ln.Addr().String()).LocalAddr().String())
	}
	clients := make(chan *Client, 2*len(peers))
	if err := ln.Serve(func(c *Client) { clients <- c }); err != nil {
		t.Fatal(err)
	}
	var got []string
	for range peers {
		c := <-clients
		got = append(got, c.RemoteAddr().String())
		c.Do(c.Close)
	}
	slices.Sort(got)
	slices.Sort(peers)
	if !slices.Equal(got, peers) {
		t.Errorf("accepted %q, want %q", got, peers)
	}
	if len(clients) > 0 {
		t.Errorf("%d more than connected", len(clients))
	}
}

// Where there is no descriptor for those who come they wait, and nobody spins. Afterwards they are served.
func TestListenerExhausted(t *testing.T) {
	for _, closes := range []bool{false, true} {
		t.Run(fmt.Sprintf("closed meanwhile: %v", closes), func(t *testing.T) {
			ln, err := Listen("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			const n = 20
			var peers []*net.TCPConn
			for range n {
				peers = append(peers, reach(t, ln.Addr().String()))
			}
			var was unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
				t.Fatal(err)
			}
			defer unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
				t.Fatal(err)
			}
			clients := make(chan *Client, n)
			if err := ln.Serve(func(c *Client) { clients <- c }); err != nil {
				t.Fatal(err)
			}
			before := processorTime(t)
			time.Sleep(20 * acceptPause)
			if used := processorTime(t) - before; used > 5*acceptPause {
				t.Errorf("used the processor for %v", used)
			}
			if len(clients) > 0 {
				t.Fatal("accepted without a descriptor")
			}
			if closes {
				ln.Close()
			}
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
				t.Fatal(err)
			}
			if closes {
				time.Sleep(3 * acceptPause) // when those that have paused would begin again
				for _, s := range ln.sockets {
					s.l.mu.Lock()
					if _, ok := s.l.watchers[s.fd]; ok {
						t.Error("a closed listener is watched")
					}
					s.l.mu.Unlock()
				}
				for _, c := range peers {
					wasReset(t, c)
				}
				return
			}
			began := time.Now()
			for _, p := range peers {
				io.WriteString(p, "x")
			}
			for range n {
				c := <-clients
				c.Do(c.Close)
			}
			if took := time.Since(began); took > 20*acceptPause {
				t.Errorf("took %v", took)
			}
		})
	}
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
