package upstream

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func allowAll(netip.AddrPort, bool) error { return nil }

// The same as in TestDial with real sockets: a listener that drops, as its queue
// is full, one that is not there, and one that lives, all on one port.
func TestDialSockets(t *testing.T) {
	live := listen(t, "127.0.0.3:0")
	full(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), live.port))
	for _, tc := range []struct {
		name   string
		first  string
		within time.Duration
	}{
		{"dial-037", "127.0.0.2", 2 * time.Second},
		{"dial-038", "127.0.0.4", attemptDelay},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, _ := resolver(t, startDNS(t, zone("example.com. 60 IN A "+tc.first, "example.com. 60 IN A 127.0.0.3")))
			d := &Dialer{Resolver: r, check: allowAll}
			if _, err := r.Lookup(t.Context(), name(t, "example.com")); err != nil {
				t.Fatal(err)
			}
			for _, w := range ways {
				began := time.Now()
				c, to, err := w.dial(t.Context(), d, name(t, "example.com"), live.port, nil)
				if err != nil {
					t.Fatalf("%s: %v", w.name, err)
				}
				defer c.Close()
				if took := time.Since(began); took > tc.within {
					t.Errorf("%s: took %v, want %v at most", w.name, took, tc.within)
				}
				if got := to.Addr().String(); got != "127.0.0.3" {
					t.Errorf("%s: connected to %s", w.name, got)
				}
			}
		})
	}
	t.Run("timeout", func(t *testing.T) {
		r, _ := resolver(t, startDNS(t, zone("example.com. 60 IN A 127.0.0.2")))
		d := &Dialer{Resolver: r, check: allowAll, Timeout: 200 * time.Millisecond}
		for _, w := range ways {
			if _, _, err := w.dial(t.Context(), d, name(t, "example.com"), live.port, nil); !TimedOut(err) {
				t.Errorf("%s: got %v, want a time-out", w.name, err)
			}
		}
	})
}

func TestSocketOptions(t *testing.T) {
	ln := listen(t, "127.0.0.1:0")
	r, _ := resolver(t, startDNS(t, zone("example.com. 60 IN A 127.0.0.1")))
	d := &Dialer{Resolver: r, check: allowAll}
	c, err := d.Dial(t.Context(), name(t, "example.com"), ln.port, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct {
		name             string
		level, opt, want int
	}{
		{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAlive.Idle / time.Second)},
	} {
		err := raw.Control(func(fd uintptr) {
			if got, err := unix.GetsockoptInt(int(fd), o.level, o.opt); err != nil || got != o.want {
				t.Errorf("%s is %d (%v), want %d", o.name, got, err, o.want)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// full makes a listener that has no room in its queue, and so drops whoever else
// wants to connect.
func full(t *testing.T, ap netip.AddrPort) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	crowd(t, ap)
}

// crowd fills the queue of a listener.
func crowd(t *testing.T, ap netip.AddrPort) {
	t.Helper()
	for range 10 {
		c, err := net.DialTimeout("tcp", ap.String(), 200*time.Millisecond)
		if err != nil {
			return
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("the queue is never full")
}
