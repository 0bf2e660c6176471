package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
)

// upstream is the server that all tunnels and requests lead to. It runs in a process of its own, so that ten
// thousand tunnels do not have both their ends among the descriptors of one.
type upstream struct {
	addr netip.AddrPort // of tunnels
	web  netip.AddrPort // of plain HTTP
	cmd  *exec.Cmd
	ask  io.WriteCloser
	told *bufio.Reader
}

// upstreamRole is the variable of the environment that makes this program the upstream.
const upstreamRole = "BENCH_UPSTREAM"

// startUpstream starts this program once more. It ends with us: its standard input is closed then.
func startUpstream() (*upstream, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	u := &upstream{cmd: exec.Command(self)}
	u.cmd.Env = append(os.Environ(), upstreamRole+"=1")
	u.cmd.Stderr = os.Stderr
	u.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to handle
	if u.ask, err = u.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := u.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	u.told = bufio.NewReader(out)
	if err := u.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := u.told.ReadString('\n')
	addr, web, _ := strings.Cut(strings.TrimSpace(line), " ")
	if err == nil {
		u.addr, err = netip.ParseAddrPort(addr)
	}
	if err == nil {
		u.web, err = netip.ParseAddrPort(web)
	}
	if err != nil {
		u.close()
		return nil, fmt.Errorf("the upstream does not start: %w", err)
	}
	return u, nil
}

func (u *upstream) close() {
	u.ask.Close()
	u.cmd.Wait()
}

// accepted is how many connections it has had so far, to either address.
func (u *upstream) accepted() (n int64, err error) {
	if _, err := fmt.Fprintln(u.ask); err != nil {
		return 0, err
	}
	_, err = fmt.Fscanln(u.told, &n)
	return n, err
}

// upstreamAddr is not one of the gateways': ours refuses to dial its own, and other loopback addresses only if a
// `private` line does not lift them.
var upstreamAddr = netip.MustParseAddr("127.0.0.2")

// beUpstream serves until in ends. It says where, and for each line of in how many connections it has had.
func beUpstream(in io.Reader, out io.Writer) error {
	var accepted atomic.Int64
	tunnels, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(upstreamAddr, 0)))
	if err != nil {
		return err
	}
	defer tunnels.Close()
	go func() {
		for {
			c, err := tunnels.AcceptTCP()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil { // or a client that was gone before it was accepted
				accepted.Add(1)
				go answer(c)
			}
		}
	}()
	web, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(upstreamAddr, 0)))
	if err != nil {
		return err
	}
	pages := http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(zeros[:pageSize]) }),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				accepted.Add(1)
			}
		},
	}
	defer pages.Close()
	go pages.Serve(web)

	fmt.Fprintln(out, tunnels.Addr(), web.Addr())
	for lines := bufio.NewScanner(in); lines.Scan(); {
		fmt.Fprintln(out, accepted.Load())
	}
	return nil
}

// pageSize is what the upstream sends for a request, in bytes.
const pageSize = 1 << 10

// What a ClientHello asks the upstream for: so many bytes, or one of these.
const (
	askSink = 1 << 63 // to read whatever comes
	askEcho = 1 << 62 // to send back whatever comes
)

// zeros are what the upstream sends.
var zeros = make([]byte, 256<<10)

// answer reads a ClientHello and does what it asks for. Of TLS it knows no more: the exchange has the shape of a
// handshake, without its cost. An SSLRequest before it is granted, as by a PostgreSQL. It ends when the client closes.
func answer(c *net.TCPConn) {
	defer c.Close()
	record, err := readRecord(c)
	if errors.Is(err, errSSLRequest) {
		if _, err = c.Write([]byte{sslGranted}); err == nil {
			record, err = readRecord(c)
		}
	}
	if err != nil {
		return
	}
	switch ask := asked(record); ask {
	case askSink:
		io.CopyBuffer(discard{}, reader{c}, make([]byte, 256<<10))
	case askEcho:
		io.CopyBuffer(writer{c}, reader{c}, make([]byte, 4<<10))
	default:
		for left := ask; left > 0; {
			n, err := c.Write(zeros[:min(left, uint64(len(zeros)))])
			if err != nil {
				return
			}
			left -= uint64(n)
		}
		c.Read(record)
	}
}

var errSSLRequest = errors.New("an SSLRequest of PostgreSQL")

// readRecord reads one TLS record of up to 4 KiB, or an SSLRequest, which is an error.
func readRecord(r io.Reader) ([]byte, error) {
	record := make([]byte, recordHeader, 2<<10)
	if _, err := io.ReadFull(r, record); err != nil {
		return nil, err
	}
	if record[0] == sslRequest[0] {
		record = record[:len(sslRequest)]
		if _, err := io.ReadFull(r, record[recordHeader:]); err != nil || string(record) != sslRequest {
			return nil, fmt.Errorf("% x is neither TLS nor PostgreSQL: %w", record, err)
		}
		return nil, errSSLRequest
	}
	length := int(binary.BigEndian.Uint16(record[3:]))
	if length < asks+8-recordHeader || length > 4<<10 {
		return nil, fmt.Errorf("a record of %d bytes is no ClientHello", length)
	}
	record = append(record, make([]byte, length)...)
	_, err := io.ReadFull(r, record[recordHeader:])
	return record, err
}

// Without these io.Copy would find ways around the buffer, which differ from peer to peer.
type (
	discard struct{}
	reader  struct{ r io.Reader }
	writer  struct{ w io.Writer }
)

func (discard) Write(b []byte) (int, error)  { return len(b), nil }
func (r reader) Read(b []byte) (int, error)  { return r.r.Read(b) }
func (w writer) Write(b []byte) (int, error) { return w.w.Write(b) }

// maybeUpstream makes this process the upstream if it was started to be it, and then does not return.
func maybeUpstream() {
	if os.Getenv(upstreamRole) == "" {
		return
	}
	if err := beUpstream(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench: upstream:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
