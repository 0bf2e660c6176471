package tunnel

import (
	"bytes"
	"errors"
	"fmt"
	"hash"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// emfileEnv makes TestOutOfDescriptors do its work, in a process of its own.
const emfileEnv = "TUNNEL_TEST_EMFILE"

// ours lets the tunnels of one test have a stock of their own.
func ours(t *testing.T, max int) *conduits {
	was, s := stock, &conduits{max: max}
	stock = func() *conduits { return s }
	t.Cleanup(func() {
		stock = was
		for _, c := range s.idle {
			unix.Close(c.r)
			unix.Close(c.w)
		}
	})
	return s
}

// count is the number of pipes that exist and how many of them nobody holds.
func (s *conduits) count() (pipes, idle int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pipes, len(s.idle)
}

func descriptors(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// bytesRead is what this process has read by read(2) and its like.
func bytesRead(t testing.TB) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(b), "rchar: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// The payload never enters this process: splice(2) is the only way to achieve
// that. The same look at a copy through user space shows that it would be seen.
func TestSplice(t *testing.T) {
	const payload = 64 << 20
	for _, tc := range []struct {
		name     string
		wrap     func(*net.TCPConn) net.Conn
		min, max int64
	}{
		{"tcp", kinds[0].wrap, 0, payload / 100},
		{"wrapped", kinds[1].wrap, payload, payload + payload/100},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client, upstream := startPeers(t, fmt.Sprint("bulk ", payload))
			before := bytesRead(t)
			res := Run(tc.wrap(client), tc.wrap(upstream), Options{})
			if res.Err != nil || res.In != payload {
				t.Errorf("got %+v, want %d bytes in", res, payload)
			}
			if got := bytesRead(t) - before; got < tc.min || got > tc.max {
				t.Errorf("read %d bytes into this process, want %d to %d", got, tc.min, tc.max)
			}
		})
	}
}

// An idle tunnel costs two descriptors and no goroutine, even after it was busy;
// the pipes kept are few and do not grow with the tunnels.
func TestIdleCost(t *testing.T) {
	const tunnels = 200
	s := ours(t, pipesMax)
	loops() // which stay
	fds, goroutines := descriptors(t), runtime.NumGoroutine()
	var open []*running
	for range tunnels {
		r := start(t, kinds[0].wrap, Options{})
		say(t, r.client, r.upstream, strings.Repeat("in", smallTotal))
		say(t, r.upstream, r.client, strings.Repeat("out", smallTotal))
		open = append(open, r)
	}
	// Of the four descriptors of each tunnel here two are its peers'.
	until(t, "only sockets and idle pipes are left", func() bool {
		pipes, idle := s.count()
		return pipes == idle && idle <= pipesIdle && descriptors(t)-fds == 4*tunnels+2*idle
	})
	if got := runtime.NumGoroutine() - goroutines; got > 0 { // less if one of an earlier test has ended
		t.Errorf("%d tunnels have %d goroutines, want none", tunnels, got)
	}
	for _, r := range open {
		r.client.Close()
		r.upstream.Close()
		r.over(t)
	}
	_, idle := s.count()
	until(t, "descriptors are back to what they were", func() bool {
		return descriptors(t) == fds+2*idle
	})
}

// Far more stuck tunnels than pipes: those that get none go on by buffers.
func TestMoreTunnelsThanPipes(t *testing.T) {
	const pipes, tunnels, payload = 4, 16, 4 << 20
	s := ours(t, pipes)
	var open []*running
	sums := make([]chan hash.Hash, tunnels)
	for i := range sums {
		r := startSized(t, kinds[0].wrap, Options{}, 128<<10)
		sums[i] = make(chan hash.Hash, 1)
		go func() {
			h, err := send(r.client, newRand(byte(i)), payload)
			if err != nil {
				t.Error(err)
			}
			sums[i] <- h
		}()
		open = append(open, r)
	}
	until(t, "all pipes are held", func() bool {
		n, idle := s.count()
		return n == pipes && idle == 0
	})
	for i, r := range open {
		h, n, err := receive(r.upstream)
		if sent := <-sums[i]; err != nil || n != payload || !bytes.Equal(h.Sum(nil), sent.Sum(nil)) {
			t.Errorf("tunnel %d: received %d bytes and %v", i, n, err)
		}
		if n, _ := s.count(); n > pipes {
			t.Fatalf("%d pipes, want %d at most", n, pipes)
		}
		r.upstream.Close()
		if res := r.over(t); res.Err != nil {
			t.Error(res.Err)
		}
	}
}

// A pipe with the bytes of a broken tunnel in it is never used again.
func TestPipeWithBytesIsClosed(t *testing.T) {
	s := ours(t, pipesMax)
	loops()
	fds := descriptors(t)
	// A stream whose last piece was a small one is stuck without a pipe.
	for tries, held := 0, false; !held; tries++ {
		if tries == 20 {
			t.Fatal("no pipe is held")
		}
		r := start(t, kinds[0].wrap, Options{})
		stuff(t, r.client) // waits, so the loop is done
		n, idle := s.count()
		held = n-idle == 1
		reset(r.upstream)
		r.over(t)
		r.client.Close()
	}
	n, idle := s.count()
	if n != idle {
		t.Errorf("%d pipes and %d of them idle, want all idle", n, idle)
	}
	for _, c := range s.idle {
		if held, err := unix.IoctlGetInt(c.r, unix.TIOCINQ); held != 0 || err != nil {
			t.Errorf("idle pipe holds %d bytes (%v)", held, err)
		}
	}
	if got := descriptors(t); got != fds+2*idle {
		t.Errorf("%d descriptors, want %d", got, fds+2*idle)
	}
}

// A socket that cannot be spliced is copied.
func TestSpliceUnsupported(t *testing.T) {
	s := ours(t, pipesMax)
	for range 2 { // not a pipe: splice says EINVAL, as for a socket without it
		f, err := os.Create(filepath.Join(t.TempDir(), "file"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		fd2, err := unix.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		s.idle = append(s.idle, &conduit{r: fd, w: fd2})
		s.pipes++
	}
	r := start(t, kinds[0].wrap, Options{})
	exchange(t, r, 'u', 1<<20, 1<<20)
	if res := r.over(t); res.Err != nil || res.In != 1<<20 || res.Out != 1<<20 {
		t.Errorf("got %+v", res)
	}
}

// Without a descriptor to spare tunnels go on, and splice again later.
func TestOutOfDescriptors(t *testing.T) {
	if os.Getenv(emfileEnv) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOutOfDescriptors$", "-test.v")
		cmd.Env = append(os.Environ(), emfileEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestOutOfDescriptors")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	s := ours(t, pipesMax)
	var open []*running
	for range 10 {
		open = append(open, start(t, kinds[0].wrap, Options{}))
	}
	until(t, "nobody holds a pipe", func() bool {
		n, idle := s.count()
		return n == idle
	})
	s.mu.Lock()
	for _, c := range s.idle {
		unix.Close(c.r)
		unix.Close(c.w)
	}
	s.idle, s.pipes = nil, 0
	s.mu.Unlock()

	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	if fd, err := unix.Dup(0); err == nil {
		t.Fatalf("descriptor %d can still be had", fd)
	}
	for i, r := range open[:9] {
		exchange(t, r, byte(i), 300_000, 2_000_000)
		if res := r.over(t); res.Err != nil {
			t.Error(res.Err)
		}
	}
	if n, _ := s.count(); n != 0 {
		t.Errorf("%d pipes without a descriptor for one", n)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	exchange(t, open[9], 9, 300_000, 2_000_000)
	if n, _ := s.count(); n == 0 {
		t.Error("no pipe although there are descriptors again")
	}
}

func TestPipeDescriptors(t *testing.T) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	if got := PipeDescriptors(); got <= 0 || got > 2*pipesMax || uint64(got) > l.Cur/8 {
		t.Errorf("got %d of %d descriptors", got, l.Cur)
	}
}

// A panic in a loop ends the tunnel that it is about, and no other.
func TestPanicInLoop(t *testing.T) {
	other := start(t, kinds[0].wrap, Options{})
	say(t, other.client, other.upstream, "hello")
	for range 2 * len(loops()) { // each of them
		nearClient, client := connect(t)
		nearUpstream, upstream := connect(t)
		tun := New(nearClient, nearUpstream, Options{})
		tun.pair.streams[0].moved = nil
		over := make(chan Result, 1)
		tun.Start(func(res Result) { over <- res })
		if _, err := client.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		select {
		case res := <-over:
			var p *Panic
			if !errors.As(res.Err, &p) || !bytes.Contains(p.Stack, []byte("(*pair)")) {
				t.Errorf("got %+v, want the panic and its stack", res)
			}
		case <-time.After(wait):
			t.Fatal("tunnel has not ended")
		}
		for _, c := range []*net.TCPConn{client, upstream} {
			c.SetDeadline(time.Now().Add(wait))
		}
		ends(t, client)
		say(t, other.upstream, other.client, "still there")
	}
	if len(loops()) == 0 {
		t.Error("no loops")
	}
}
