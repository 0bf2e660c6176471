package tunnel

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// wait bounds everything that a test waits for.
const wait = 30 * time.Second

// kinds are the pairs of connections that Run treats differently.
var kinds = []struct {
	name string
	wrap func(*net.TCPConn) net.Conn
}{
	{"tcp", func(c *net.TCPConn) net.Conn { return c }},
	{"wrapped", func(c *net.TCPConn) net.Conn { return wrapped{c} }},
}

// wrapped hides that a connection is a *net.TCPConn.
type wrapped struct{ tcp *net.TCPConn }

func (w wrapped) Read(b []byte) (int, error)         { return w.tcp.Read(b) }
func (w wrapped) Write(b []byte) (int, error)        { return w.tcp.Write(b) }
func (w wrapped) Close() error                       { return w.tcp.Close() }
func (w wrapped) CloseWrite() error                  { return w.tcp.CloseWrite() }
func (w wrapped) SetLinger(sec int) error            { return w.tcp.SetLinger(sec) }
func (w wrapped) LocalAddr() net.Addr                { return w.tcp.LocalAddr() }
func (w wrapped) RemoteAddr() net.Addr               { return w.tcp.RemoteAddr() }
func (w wrapped) SetDeadline(t time.Time) error      { return w.tcp.SetDeadline(t) }
func (w wrapped) SetReadDeadline(t time.Time) error  { return w.tcp.SetReadDeadline(t) }
func (w wrapped) SetWriteDeadline(t time.Time) error { return w.tcp.SetWriteDeadline(t) }

// connect returns the two ends of a TCP connection over loopback.
func connect(t testing.TB) (near, far *net.TCPConn) {
	t.Helper()
	ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far = c.(*net.TCPConn)
	near, err = ln.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// running is a tunnel and the peers at its two ends.
type running struct {
	*Tunnel
	client, upstream *net.TCPConn // the peers
	result           chan Result
}

func start(t testing.TB, wrap func(*net.TCPConn) net.Conn, o Options) *running {
	t.Helper()
	return startSized(t, wrap, o, 0)
}

// startSized has all sockets have buffers of so many bytes, unless it is 0.
func startSized(t testing.TB, wrap func(*net.TCPConn) net.Conn, o Options, size int) *running {
	t.Helper()
	nearClient, client := connect(t)
	nearUpstream, upstream := connect(t)
	if size > 0 {
		for _, c := range []*net.TCPConn{client, upstream, nearClient, nearUpstream} {
			c.SetReadBuffer(size)
			c.SetWriteBuffer(size)
		}
	}
	deadline := time.Now().Add(wait)
	client.SetDeadline(deadline)
	upstream.SetDeadline(deadline)
	r := &running{
		Tunnel: New(wrap(nearClient), wrap(nearUpstream), o),
		client: client, upstream: upstream,
		result: make(chan Result, 2), // done is called once, but a test sees a second time too
	}
	r.Start(func(res Result) { r.result <- res })
	t.Cleanup(func() {
		client.Close()
		upstream.Close()
		r.Cut()
	})
	return r
}

// over waits for the end of the tunnel.
func (r *running) over(t testing.TB) Result {
	t.Helper()
	select {
	case res := <-r.result:
		return res
	case <-time.After(wait):
		t.Fatal("tunnel has not ended")
		panic("unreachable")
	}
}

// send writes total bytes in pieces of random size and ends the stream.
func send(c *net.TCPConn, rnd *rand.ChaCha8, total int) (hash.Hash, error) {
	h := sha256.New()
	pick := rand.New(rnd)
	buf := make([]byte, 200<<10)
	for total > 0 {
		n := min(total, 1+pick.IntN(len(buf)))
		if pick.IntN(2) == 0 {
			n = min(total, 1+pick.IntN(1500))
		}
		rnd.Read(buf[:n])
		h.Write(buf[:n])
		if _, err := c.Write(buf[:n]); err != nil {
			return h, err
		}
		total -= n
	}
	return h, c.CloseWrite()
}

func newRand(seed ...byte) *rand.ChaCha8 {
	var s [32]byte
	copy(s[:], seed)
	return rand.NewChaCha8(s)
}

// receive reads to the end of the stream.
func receive(c *net.TCPConn) (hash.Hash, int64, error) {
	h := sha256.New()
	n, err := io.Copy(h, c)
	return h, n, err
}

// exchange sends in both directions at once and checks that what arrives is
// what was sent.
func exchange(t testing.TB, r *running, seed byte, in, out int) {
	t.Helper()
	var wg sync.WaitGroup
	for i, d := range []struct {
		name     string
		src, dst *net.TCPConn
		total    int
	}{
		{"in", r.client, r.upstream, in},
		{"out", r.upstream, r.client, out},
	} {
		sent := make(chan hash.Hash, 1)
		wg.Go(func() {
			h, err := send(d.src, newRand(seed, byte(i)), d.total)
			if err != nil {
				t.Errorf("%s: sending: %v", d.name, err)
			}
			sent <- h
		})
		wg.Go(func() {
			h, n, err := receive(d.dst)
			if err != nil || n != int64(d.total) {
				t.Errorf("%s: received %d bytes and %v, want %d", d.name, n, err, d.total)
			}
			if s := <-sent; !bytes.Equal(h.Sum(nil), s.Sum(nil)) {
				t.Errorf("%s: other bytes were received than sent", d.name)
			}
		})
	}
	wg.Wait()
}

func TestBytes(t *testing.T) {
	for _, k := range kinds {
		for i, size := range [][2]int{{0, 0}, {1, 0}, {0, 1}, {777, 70_000}, {3 << 20, 17}, {20 << 20, 30 << 20}} {
			t.Run(fmt.Sprintf("%s/%d,%d", k.name, size[0], size[1]), func(t *testing.T) {
				r := start(t, k.wrap, Options{})
				exchange(t, r, byte(i), size[0], size[1])
				got, want := r.over(t), Result{In: int64(size[0]), Out: int64(size[1])}
				if got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
			})
		}
	}
}

func TestCounters(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			var c Counters
			r := start(t, k.wrap, Options{Counters: &c})
			say(t, r.client, r.upstream, "four")
			say(t, r.upstream, r.client, "sixsix")
			until(t, "the counters are 4 and 6 while it runs", func() bool {
				return c.In.Load() == 4 && c.Out.Load() == 6
			})
			r.client.Close()
			r.upstream.Close()
			if got, want := r.over(t), (Result{In: 4, Out: 6}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestHalfClose(t *testing.T) {
	for _, k := range kinds {
		for _, first := range []string{"client", "upstream"} {
			t.Run(k.name+"/"+first, func(t *testing.T) {
				r := start(t, k.wrap, Options{})
				a, b := r.client, r.upstream
				if first == "upstream" {
					a, b = b, a
				}
				say(t, a, b, "the question")
				a.CloseWrite()
				ends(t, b)
				say(t, b, a, "the answer, after the end of the question")
				b.CloseWrite()
				ends(t, a)
				if res := r.over(t); res.Err != nil {
					t.Error(res.Err)
				}
			})
		}
	}
}

// A deadline set for the first bytes must not end the tunnel later.
func TestDeadlineOfCallerIsCleared(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			nearClient, client := connect(t)
			nearUpstream, upstream := connect(t)
			nearClient.SetDeadline(time.Now().Add(-time.Second))
			nearUpstream.SetDeadline(time.Now().Add(-time.Second))
			go Run(k.wrap(nearClient), k.wrap(nearUpstream), Options{})
			say(t, client, upstream, "hello")
			say(t, upstream, client, "hello")
		})
	}
}

func TestReset(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Run("ops-005", func(t *testing.T) {
				r := start(t, k.wrap, Options{})
				sent := bytes.Repeat([]byte("0123456789"), 1<<10)
				r.upstream.Write(sent)
				reset(r.upstream)
				got := make([]byte, len(sent))
				if _, err := io.ReadFull(r.client, got); err != nil || !bytes.Equal(got, sent) {
					t.Errorf("bytes before the reset: %v", err)
				}
				wasReset(t, r.client)
				if res := r.over(t); !errors.Is(res.Err, syscall.ECONNRESET) || !strings.HasPrefix(res.Err.Error(), "upstream: ") {
					t.Errorf("got %v, want a reset of the upstream", res.Err)
				}
			})
			t.Run("by the client", func(t *testing.T) {
				r := start(t, k.wrap, Options{})
				say(t, r.client, r.upstream, "hello")
				reset(r.client)
				wasReset(t, r.upstream)
				if res := r.over(t); !errors.Is(res.Err, syscall.ECONNRESET) || !strings.HasPrefix(res.Err.Error(), "client: ") {
					t.Errorf("got %v, want a reset of the client", res.Err)
				}
			})
			// The upstream closes and is sent more: Linux calls what comes
			// then EPIPE, but it is a reset.
			t.Run("after the end of the stream", func(t *testing.T) {
				r := start(t, k.wrap, Options{})
				r.upstream.Close()
				ends(t, r.client)
				until(t, "a reset arrives", func() bool {
					_, err := r.client.Write([]byte("x"))
					return err != nil
				})
				if res := r.over(t); !lost(res.Err) {
					t.Errorf("got %v, want a lost connection", res.Err)
				}
			})
		})
	}
}

func TestCut(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Run("while it runs", func(t *testing.T) {
				r := start(t, k.wrap, Options{})
				say(t, r.client, r.upstream, "hello")
				r.Cut()
				r.Cut()
				if res := r.over(t); !errors.Is(res.Err, net.ErrClosed) {
					t.Errorf("got %v, want %v", res.Err, net.ErrClosed)
				}
				wasReset(t, r.client)
				wasReset(t, r.upstream)
			})
			t.Run("before it starts", func(t *testing.T) {
				nearClient, client := connect(t)
				nearUpstream, upstream := connect(t)
				tun := New(k.wrap(nearClient), k.wrap(nearUpstream), Options{})
				tun.Cut()
				over := make(chan Result, 1)
				tun.Start(func(res Result) { over <- res })
				select {
				case res := <-over:
					if !errors.Is(res.Err, net.ErrClosed) {
						t.Errorf("got %v, want %v", res.Err, net.ErrClosed)
					}
				case <-time.After(wait):
					t.Fatal("tunnel has not ended")
				}
				wasReset(t, client)
				wasReset(t, upstream)
			})
			t.Run("after its end", func(t *testing.T) {
				r := start(t, k.wrap, Options{})
				r.client.Close()
				r.upstream.Close()
				if res := r.over(t); res.Err != nil {
					t.Error(res.Err)
				}
				r.Cut()
				select {
				case res := <-r.result:
					t.Errorf("ended twice, then with %+v", res)
				case <-time.After(10 * time.Millisecond):
				}
			})
		})
	}
}

func TestIdle(t *testing.T) {
	const idle = 80 * time.Millisecond
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			// The upstream accepts and never says a word.
			t.Run("dial-049", func(t *testing.T) {
				began := time.Now()
				r := start(t, k.wrap, Options{Idle: idle})
				if res := r.over(t); res.Err != ErrIdle {
					t.Errorf("got %v, want %v", res.Err, ErrIdle)
				}
				if d := time.Since(began); d < idle {
					t.Errorf("ended after %v, want %v at least", d, idle)
				}
				ends(t, r.client)
				ends(t, r.upstream)
			})
			t.Run("a byte now and then", func(t *testing.T) {
				const long = 2 * time.Second // a quarter is longer than any pause of this machine
				r := start(t, k.wrap, Options{Idle: long})
				for began := time.Now(); time.Since(began) < long+long/2; {
					say(t, r.upstream, r.client, ".")
					time.Sleep(long / 16)
				}
				r.client.Close()
				r.upstream.Close()
				if res := r.over(t); res.Err != nil {
					t.Errorf("a tunnel in use ended with %v", res.Err)
				}
			})
			t.Run("without limit", func(t *testing.T) {
				r := start(t, k.wrap, Options{Idle: -1, HalfClosedIdle: -1})
				r.client.CloseWrite()
				ends(t, r.upstream)
				say(t, r.upstream, r.client, "hello")
				r.upstream.Close()
				if res := r.over(t); res.Err != nil {
					t.Error(res.Err)
				}
			})
		})
	}
}

// Pauses of minutes are normal for model streams, WebSockets and git: the limits
// that hold by default must be longer.
func TestIdleDefaults(t *testing.T) {
	for _, tc := range []struct {
		name             string
		o                Options
		open, halfClosed time.Duration // 0: none
	}{
		{"ops-009", Options{}, 15 * time.Minute, time.Minute},
		{"idle shorter than the half-closed limit", Options{Idle: time.Second}, time.Second, time.Second},
		{"half-closed limit only", Options{Idle: -1}, 0, time.Minute},
		{"none", Options{Idle: -1, HalfClosedIdle: -1}, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tun := &Tunnel{moved: new(Counters)}
			tun.idle.start(tun, tc.o)
			defer tun.idle.stop()
			if tun.idle.limit != tc.open {
				t.Errorf("open: got %v, want %v", tun.idle.limit, tc.open)
			}
			tun.idle.halfClosed()
			if tun.idle.limit != tc.halfClosed {
				t.Errorf("half-closed: got %v, want %v", tun.idle.limit, tc.halfClosed)
			}
		})
	}
}

func TestHalfClosedIdle(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			o := Options{Idle: time.Hour, HalfClosedIdle: 80 * time.Millisecond}
			// The upstream closes, the client neither speaks nor closes.
			t.Run("ops-003", func(t *testing.T) {
				r := start(t, k.wrap, o)
				r.upstream.Close()
				ends(t, r.client) // at once
				if res := r.over(t); res.Err != ErrIdle {
					t.Errorf("got %v, want %v", res.Err, ErrIdle)
				}
			})
			// The client ends its stream, the upstream is silent for good.
			t.Run("forwardproxy-032", func(t *testing.T) {
				base := runtime.NumGoroutine()
				r := start(t, k.wrap, o)
				r.client.CloseWrite()
				ends(t, r.upstream)
				if res := r.over(t); res.Err != ErrIdle {
					t.Errorf("got %v, want %v", res.Err, ErrIdle)
				}
				ends(t, r.client)
				until(t, "goroutines are back to what they were", func() bool {
					return runtime.NumGoroutine() <= base
				})
			})
		})
	}
}

// A receiver that does not read stops the sender, and loses nothing.
func TestBackPressure(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			r := startSized(t, k.wrap, Options{}, 128<<10)
			sent := sha256.New()
			rnd := newRand('b')
			chunk := make([]byte, 64<<10)
			var total int64
			for {
				r.client.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
				rnd.Read(chunk)
				n, err := r.client.Write(chunk)
				sent.Write(chunk[:n])
				total += int64(n)
				if err != nil {
					break
				}
				if total > 16<<20 {
					t.Fatal("the sender is never stopped")
				}
			}
			r.client.CloseWrite()
			got, n, err := receive(r.upstream)
			if err != nil || n != total || !bytes.Equal(got.Sum(nil), sent.Sum(nil)) {
				t.Errorf("received %d bytes and %v, want %d", n, err, total)
			}
			r.upstream.Close()
			if res := r.over(t); res.Err != nil || res.In != total {
				t.Errorf("got %+v, want %d bytes in", res, total)
			}
		})
	}
}

func TestCutWhileStuck(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			r := start(t, k.wrap, Options{})
			stuff(t, r.client)
			r.Cut()
			r.over(t)
		})
	}
}

func TestMany(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			var wg sync.WaitGroup
			for i := range 500 {
				r := start(t, k.wrap, Options{})
				wg.Go(func() {
					exchange(t, r, byte(i), 40_000+i, 150_000-i)
					if res := r.over(t); res.Err != nil {
						t.Error(res.Err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// A connection that panics must not take the process with it, whichever
// direction it is in.
func TestPanic(t *testing.T) {
	for _, side := range []string{"client", "upstream"} {
		t.Run(side, func(t *testing.T) {
			nearClient, client := connect(t)
			nearUpstream, upstream := connect(t)
			conns := map[string]net.Conn{"client": nearClient, "upstream": nearUpstream}
			conns[side] = panics{conns[side]}
			got := make(chan Result, 1)
			go func() { got <- Run(conns["client"], conns["upstream"], Options{}) }()
			select {
			case res := <-got:
				var p *Panic
				if !errors.As(res.Err, &p) || p.Value != "no reading here" || !bytes.Contains(p.Stack, []byte("panics.Read")) {
					t.Errorf("got %+v, want the panic and its stack", res)
				}
			case <-time.After(wait):
				t.Fatal("tunnel has not ended")
			}
			for _, c := range []*net.TCPConn{client, upstream} {
				c.SetDeadline(time.Now().Add(wait))
				ends(t, c)
			}
		})
	}
}

type panics struct{ net.Conn }

func (panics) Read([]byte) (int, error) { panic("no reading here") }

// say sends s from one peer to the other.
func say(t testing.TB, from, to net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(from, s); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(s))
	if _, err := io.ReadFull(to, got); err != nil || string(got) != s {
		t.Fatalf("received %q and %v, want %q", got, err, s)
	}
}

// ends checks that the stream of c ends here, in an orderly manner.
func ends(t testing.TB, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("read %d bytes and %v, want the end of the stream", n, err)
	}
}

func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

func wasReset(t testing.TB, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %d bytes and %v, want a reset", n, err)
	}
}

// stuff writes until nothing more goes in.
func stuff(t testing.TB, c *net.TCPConn) {
	t.Helper()
	chunk := make([]byte, 64<<10)
	for range 10_000 {
		c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		if _, err := c.Write(chunk); err != nil {
			return
		}
	}
	t.Fatal("the sender is never stopped")
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(wait); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v until %s", wait, what)
		}
	}
}
