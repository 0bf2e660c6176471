package tunnel

import (
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// peersEnv makes the test binary play both peers of a tunnel, in a process of
// their own so that the CPU time of this one is that of the tunnel.
const peersEnv = "TUNNEL_TEST_PEERS"

// joiners are what is measured: ours, what io.Copy does with two TCP
// connections, and a copy through user space.
var joiners = []struct {
	name string
	join func(client, upstream *net.TCPConn)
}{
	{"tunnel", func(c, u *net.TCPConn) { Run(c, u, Options{}) }},
	{"iocopy", func(c, u *net.TCPConn) {
		both(c, u, func(dst, src *net.TCPConn) { io.Copy(dst, src) })
	}},
	{"userspace", func(c, u *net.TCPConn) {
		both(c, u, func(dst, src *net.TCPConn) { copyThrough(src, dst, new(atomic.Int64)) })
	}},
}

func both(c, u *net.TCPConn, copy func(dst, src *net.TCPConn)) {
	var wg sync.WaitGroup
	wg.Go(func() { copy(u, c); u.CloseWrite() })
	wg.Go(func() { copy(c, u); c.CloseWrite() })
	wg.Wait()
	c.Close()
	u.Close()
}

// BenchmarkBulk moves 1 MiB per operation from the client to the upstream.
func BenchmarkBulk(b *testing.B) {
	const unit = 1 << 20
	for _, j := range joiners {
		b.Run(j.name, func(b *testing.B) {
			c, u := startPeers(b, "bulk "+strconv.Itoa(b.N*unit))
			b.SetBytes(unit)
			b.ReportAllocs()
			b.ResetTimer()
			before := cpu(b)
			j.join(c, u)
			b.ReportMetric((cpu(b)-before)/(float64(b.N)*unit/1e9), "cpu-s/GB")
		})
	}
}

// BenchmarkPingPong moves 1 KiB there and 1 KiB back per operation.
func BenchmarkPingPong(b *testing.B) {
	for _, j := range joiners {
		b.Run(j.name, func(b *testing.B) {
			c, u := startPeers(b, "pingpong "+strconv.Itoa(b.N))
			b.ReportAllocs()
			b.ResetTimer()
			before := cpu(b)
			j.join(c, u)
			b.ReportMetric((cpu(b)-before)*1e9/float64(b.N), "cpu-ns/op")
		})
	}
}

// startPeers starts the peers in another process and returns the two
// connections to them.
func startPeers(b testing.TB, script string) (client, upstream *net.TCPConn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), peersEnv+"="+script+" "+ln.Addr().String())
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := cmd.Wait(); err != nil {
			b.Error("peers:", err)
		}
	})
	var conns [2]*net.TCPConn
	for i := range conns {
		c, err := ln.Accept()
		if err != nil {
			b.Fatal(err)
		}
		conns[i] = c.(*net.TCPConn)
	}
	return conns[0], conns[1]
}

// cpu is the CPU time of this process in seconds.
func cpu(b *testing.B) float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
