package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// container is a /proc, laid out by a test.
type container struct {
	proc   string
	tables map[string]string // tcp and tcp6
	inode  int
}

func newContainer(t *testing.T) *container {
	t.Helper()
	c := &container{proc: t.TempDir(), tables: map[string]string{"tcp": head, "tcp6": head}, inode: 1000}
	for _, dir := range []string{"net", "1/fd"} {
		if err := os.MkdirAll(filepath.Join(c.proc, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.write(t)
	return c
}

func (c *container) write(t *testing.T) {
	t.Helper()
	for name, table := range c.tables {
		if err := os.WriteFile(filepath.Join(c.proc, "net", name), []byte(table), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// add puts a listening socket of a user into the table, and returns its inode.
func (c *container) add(t *testing.T, addr netip.AddrPort, uid int) int {
	t.Helper()
	c.inode++
	name, b := "tcp", addr.Addr().AsSlice()
	if addr.Addr().Is6() {
		name = "tcp6"
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	c.tables[name] += fmt.Sprintf("   0: %s:%04X 00:00 0A 0:0 0:0 0 %d 0 %d\n",
		strings.ToUpper(hex.EncodeToString(b)), addr.Port(), uid, c.inode)
	c.write(t)
	return c.inode
}

// hold has process 1 hold a socket.
func (c *container) hold(t *testing.T, inode int) {
	t.Helper()
	link := filepath.Join(c.proc, "1/fd", strconv.Itoa(inode))
	if err := os.Symlink(fmt.Sprintf("socket:[%d]", inode), link); err != nil {
		t.Fatal(err)
	}
}

// hide adds a process that cannot be looked into.
func (c *container) hide(t *testing.T) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(c.proc, "7"), 0o755); err != nil {
		t.Fatal(err)
	}
	// Not by permissions, which root does not mind.
	if err := os.WriteFile(filepath.Join(c.proc, "7/fd"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// listen opens a listener for the time of a test.
func listen(t *testing.T, addr string) (*net.TCPListener, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	at := l.Addr().(*net.TCPAddr).AddrPort()
	return l.(*net.TCPListener), netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// server has each connection served for the time of a test.
func server(t *testing.T, addr string, serve func(net.Conn)) netip.AddrPort {
	t.Helper()
	l, at := listen(t, addr)
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				serve(c)
				<-done // whoever wants it closed, closes it
				c.Close()
			}()
		}
	}()
	return at
}

// The servers that a check can meet.
func closes(c net.Conn)  { io.Copy(io.Discard, c); c.Close() }
func speaks(c net.Conn)  { io.WriteString(c, "220 ready\r\n") }
func holds(net.Conn)     {}
func hangsUp(c net.Conn) { c.Close() }

// says answers what comes over DNS with octets.
func says(answer ...byte) func(net.Conn) {
	return func(c net.Conn) {
		c.Read(make([]byte, 512))
		c.Write(answer)
	}
}

// echoes answers a query with its own octets, changed.
func echoes(change func(message []byte)) func(net.Conn) {
	return func(c net.Conn) {
		b := make([]byte, 14)
		io.ReadFull(c, b)
		change(b[2:])
		c.Write(b)
	}
}

func TestAsk(t *testing.T) {
	for _, tc := range []struct {
		name  string
		dns   bool
		serve func(net.Conn)
		err   string // "" for none
	}{
		{name: "closes", serve: closes},
		{name: "speaks first", serve: speaks},
		{name: "closes at once", serve: hangsUp},
		{name: "never closes", serve: holds, err: "did not close"},

		{name: "dns: answers", dns: true, serve: echoes(func(m []byte) { m[2] |= 0x80 })},
		{name: "dns: the query itself", dns: true, serve: echoes(func([]byte) {}), err: "answered another DNS query"},
		{name: "dns: other id", dns: true, serve: echoes(func(m []byte) { m[2] |= 0x80; m[1]++ }),
			err: "answered another DNS query"},
		{name: "dns: other opcode", dns: true, serve: echoes(func(m []byte) { m[2] = 0x80 }),
			err: "answered another DNS query"},
		{name: "dns: silent", dns: true, serve: holds, err: "did not answer"},
		{name: "dns: closes", dns: true, serve: hangsUp, err: "did not answer"},
		{name: "dns: half a length", dns: true, serve: says(0), err: "did not answer"},
		{name: "dns: half an answer", dns: true, serve: says(0, 12, 1, 2, 3), err: "did not answer"},
		{name: "dns: no message", dns: true, serve: says(0, 0), err: "something else"},
		{name: "dns: half a head", dns: true, serve: says(0, 3, 1, 2, 3), err: "something else"},
		{name: "dns: speaks HTTP", dns: true, serve: says([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")...), err: "did not answer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			addr := server(t, "127.0.0.1:0", tc.serve)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			err := ask(ctx, addr, tc.dns)
			if tc.err == "" && err != nil {
				t.Errorf("got %v, want none", err)
			}
			if tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("got error %v, want one with %q", err, tc.err)
			}
		})
	}
}

// TestAskBacklog has a server that has stopped accepting: the kernel completes its connections all the same.
func TestAskBacklog(t *testing.T) {
	_, addr := listen(t, "127.0.0.1:0")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := ask(ctx, addr, false); err == nil || !strings.Contains(err.Error(), "did not close") {
		t.Errorf("got error %v, want one with %q", err, "did not close")
	}
}

// TestAskMiekg has the server of CoreDNS answer, without its handler, and so without a log or a metric.
func TestAskMiekg(t *testing.T) {
	l, addr := listen(t, "127.0.0.1:0")
	srv := &dns.Server{Listener: l, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		t.Errorf("got %v in the handler, want nothing", m)
		w.Close()
	})}
	go srv.ActivateAndServe()
	t.Cleanup(func() { srv.Shutdown() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := ask(ctx, addr, true); err != nil {
		t.Error(err)
	}
}

func TestDial(t *testing.T) {
	for _, tc := range []struct{ name, listen, dial string }{
		{"loopback", "127.0.0.1:0", "127.0.0.1"},
		{"wildcard", "127.0.0.1:0", "0.0.0.0"},
		{"wildcard of both", "127.0.0.1:0", "::"}, // as where IPv6 is turned off
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr := server(t, tc.listen, closes)
			c, err := dial(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(tc.dial), addr.Port()))
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
		})
	}
	t.Run("nobody", func(t *testing.T) {
		l, addr := listen(t, "127.0.0.1:0")
		l.Close()
		if c, err := dial(t.Context(), addr); err == nil {
			c.Close()
			t.Error("got a connection, want an error")
		}
	})
}

func TestCheck(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()

	t.Run("nothing", func(t *testing.T) {
		c := newContainer(t)
		if got, err := check(ctx, c.proc, 53); err == nil || err.Error() != "nothing listens for TCP" {
			t.Errorf("got %q, %v, want that nothing listens", got, err)
		}
	})

	t.Run("all answer", func(t *testing.T) {
		c := newContainer(t)
		one := server(t, "127.0.0.1:0", closes)
		two := server(t, "127.0.0.1:0", echoes(func(m []byte) { m[2] |= 0x80 }))
		c.hold(t, c.add(t, one, 0))
		c.hold(t, c.add(t, two, 0))
		c.hold(t, c.add(t, two, 0)) // SO_REUSEPORT
		got, err := check(ctx, c.proc, two.Port())
		if err != nil || !strings.Contains(got, one.String()) || strings.Count(got, two.String()) != 1 {
			t.Errorf("got %q, %v, want %s and %s", got, err, one, two)
		}
	})

	t.Run("one does not", func(t *testing.T) {
		c := newContainer(t)
		c.hold(t, c.add(t, server(t, "127.0.0.1:0", closes), 0))
		dead := server(t, "127.0.0.1:0", hangsUp)
		c.hold(t, c.add(t, dead, 0))
		got, err := check(ctx, c.proc, dead.Port())
		if err == nil || !strings.HasPrefix(err.Error(), dead.String()+": did not answer") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("got %q, %v, want one line about %s", got, err, dead)
		}
	})

	t.Run("no table", func(t *testing.T) {
		if got, err := check(ctx, t.TempDir(), 53); err == nil {
			t.Errorf("got %q, want an error", got)
		}
	})
}

func TestListening(t *testing.T) {
	mine, others := os.Getuid(), os.Getuid()+1
	addr := netip.MustParseAddrPort("192.0.2.1:443")
	for _, tc := range []struct {
		name   string
		addr   netip.AddrPort
		uid    int
		held   bool // by the process that can be looked into
		hidden bool // a process cannot be
		want   bool
	}{
		{name: "held", addr: addr, uid: mine, held: true, want: true},
		{name: "held, of another user", addr: addr, uid: others, held: true, want: true},
		{name: "held by nobody here", addr: addr, uid: mine},
		{name: "Docker's resolver", addr: netip.MustParseAddrPort("127.0.0.11:40000"), uid: mine},
		{name: "of the user, maybe held by the hidden", addr: addr, uid: mine, hidden: true, want: true},
		{name: "of another user, maybe held by the hidden", addr: addr, uid: others, hidden: true},
		{name: "held beside the hidden", addr: addr, uid: others, held: true, hidden: true, want: true},
		{name: "link-local", addr: netip.MustParseAddrPort("[fe80::1]:443"), uid: mine, held: true},
		{name: "IPv6", addr: netip.MustParseAddrPort("[2001:db8::1]:443"), uid: mine, held: true, want: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newContainer(t)
			inode := c.add(t, tc.addr, tc.uid)
			if tc.held {
				c.hold(t, inode)
			}
			if tc.hidden {
				c.hide(t)
			}
			var want []netip.AddrPort
			if tc.want {
				want = []netip.AddrPort{tc.addr}
			}
			if got, err := listening(c.proc); err != nil || !slices.Equal(got, want) {
				t.Errorf("got %v, %v, want %v", got, err, want)
			}
		})
	}

	t.Run("kernel without IPv6", func(t *testing.T) {
		c := newContainer(t)
		c.hold(t, c.add(t, addr, mine))
		if err := os.Remove(filepath.Join(c.proc, "net/tcp6")); err != nil {
			t.Fatal(err)
		}
		if got, err := listening(c.proc); err != nil || !slices.Equal(got, []netip.AddrPort{addr}) {
			t.Errorf("got %v, %v, want %s", got, err, addr)
		}
	})

	t.Run("other processes are not shown", func(t *testing.T) {
		c := newContainer(t)
		c.add(t, addr, mine)
		if err := os.Rename(filepath.Join(c.proc, "1"), filepath.Join(c.proc, "99")); err != nil {
			t.Fatal(err)
		}
		if got, err := listening(c.proc); err != nil || !slices.Equal(got, []netip.AddrPort{addr}) {
			t.Errorf("got %v, %v, want %s", got, err, addr)
		}
	})

	t.Run("broken table", func(t *testing.T) {
		c := newContainer(t)
		c.tables["tcp"] += "x\n"
		c.write(t)
		if got, err := listening(c.proc); err == nil || !strings.Contains(err.Error(), "net/tcp: line 2: ") {
			t.Errorf("got %v, %v, want an error with the line", got, err)
		}
	})

	// The tables of this machine: read, and nothing else.
	t.Run("this kernel", func(t *testing.T) {
		if _, err := os.Stat("/proc/net/tcp"); err != nil {
			t.Skip("no /proc here, as on anything but Linux")
		}
		_, addr := listen(t, "127.0.0.1:0")
		if got, err := listening("/proc"); err != nil || !slices.Contains(got, addr) {
			t.Errorf("got %v, %v, want %s among them", got, err, addr)
		}
	})
}
