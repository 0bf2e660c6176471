//go:build linux

package e2e

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// packet is what a tap knows of an IP packet.
type packet struct {
	out      bool // leaves the namespace; false: arrives
	from, to netip.Addr
	proto    byte // of IP: unix.IPPROTO_TCP
	port     uint16
	syn      bool // opens a TCP connection
}

// tap sees the packets on all interfaces of a namespace, loopback included, and keeps those that a test asks
// for. It tells of connections that nobody can accept, and of those that were begun and given up.
type tap struct {
	ns   *namespace
	keep func(packet) bool
	fd   int
	done chan struct{}

	mu   sync.Mutex
	kept []packet
	mark int // packets of flush that were seen
}

// newTap watches a namespace for the time of a test.
func newTap(tb testing.TB, n *namespace, keep func(packet) bool) *tap {
	tb.Helper()
	t := &tap{ns: n, keep: keep, done: make(chan struct{})}
	err := n.do(func() (err error) {
		// SOCK_DGRAM: packets come without the header of the link. The protocol is in network byte order.
		all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
		t.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	_ = unix.SetsockoptTimeval(t.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
	_ = unix.SetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	stop := make(chan struct{})
	go t.run(stop)
	tb.Cleanup(func() {
		close(stop)
		<-t.done
		_ = unix.Close(t.fd)
	})
	return t
}

func (t *tap) run(stop <-chan struct{}) {
	defer close(t.done)
	b := make([]byte, 128)
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, from, err := unix.Recvfrom(t.fd, b, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		p, ok := decode(b[:n])
		if link, isLink := from.(*unix.SockaddrLinklayer); ok && isLink {
			p.out = link.Pkttype == unix.PACKET_OUTGOING
			t.see(p)
		}
	}
}

func (t *tap) see(p packet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.to == markAddr.Addr() && p.port == markAddr.Port() {
		t.mark++
	} else if t.keep(p) {
		t.kept = append(t.kept, p)
	}
}

// decode reads the headers of an IP packet; IPv6 extension headers, which nobody sends here, hide the rest.
func decode(b []byte) (p packet, ok bool) {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		p.proto = b[9]
		p.from, _ = netip.AddrFromSlice(b[12:16])
		p.to, _ = netip.AddrFromSlice(b[16:20])
		b = b[min(int(b[0]&0x0f)*4, len(b)):]
	case len(b) >= 40 && b[0]>>4 == 6:
		p.proto = b[6]
		p.from, _ = netip.AddrFromSlice(b[8:24])
		p.to, _ = netip.AddrFromSlice(b[24:40])
		b = b[40:]
	default:
		return p, false
	}
	if (p.proto == unix.IPPROTO_TCP || p.proto == unix.IPPROTO_UDP) && len(b) >= 4 {
		p.port = binary.BigEndian.Uint16(b[2:4])
	}
	const flagSYN, flagACK = 0x02, 0x10
	p.syn = p.proto == unix.IPPROTO_TCP && len(b) >= 14 && b[13]&(flagSYN|flagACK) == flagSYN
	return p, true
}

// packets returns what was kept of all that was sent before the call.
func (t *tap) packets(tb testing.TB) []packet {
	tb.Helper()
	t.flush(tb)
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.kept)
}

// markAddr is the discard port of the namespace itself.
var markAddr = netip.MustParseAddrPort("127.0.0.1:9")

// flush waits until the tap has seen everything that was sent before. Packets come in order, so it sends one
// more and waits for that.
func (t *tap) flush(tb testing.TB) {
	tb.Helper()
	t.mu.Lock()
	before := t.mark
	t.mu.Unlock()
	c, err := t.ns.dial("udp", markAddr)
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write([]byte("mark"))
	must(tb, 5*time.Second, "the tap sees a packet that was just sent", func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.mark > before
	})
}
