package main

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
)

// upstream is the server that all tunnels lead to. Of TLS it knows only that a ClientHello comes first, and
// sends at once as many bytes as that asks for: the exchange has the shape of a handshake, without its cost. To
// an SSLRequest before it the upstream is a PostgreSQL.
type upstream struct {
	addr     netip.AddrPort
	listener *net.TCPListener
	accepted atomic.Int64 // connections so far
}

// newUpstream listens on an address that is not the gateways': ours refuses to dial its own ones, and other
// loopback addresses only if a `private` line does not lift them.
func newUpstream() (*upstream, error) {
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), 0)
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return nil, err
	}
	u := &upstream{addr: l.Addr().(*net.TCPAddr).AddrPort(), listener: l}
	go u.serve()
	return u, nil
}

func (u *upstream) close() { u.listener.Close() }

func (u *upstream) serve() {
	for {
		c, err := u.listener.AcceptTCP()
		if err != nil {
			return
		}
		u.accepted.Add(1)
		go u.answer(c)
	}
}

// zeros are what the upstream sends.
var zeros = make([]byte, 256<<10)

// answer grants the SSLRequest if there is one, reads the ClientHello, sends what it asks for, and waits for the client to close.
func (u *upstream) answer(c *net.TCPConn) {
	defer c.Close()
	record := make([]byte, 4<<10)
	if _, err := io.ReadFull(c, record[:recordHeader]); err != nil {
		return
	}
	if record[0] == sslRequest[0] {
		if _, err := io.ReadFull(c, record[recordHeader:len(sslRequest)]); err != nil || string(record[:len(sslRequest)]) != sslRequest {
			return
		}
		if _, err := c.Write([]byte{sslGranted}); err != nil {
			return
		}
		if _, err := io.ReadFull(c, record[:recordHeader]); err != nil {
			return
		}
	}
	length := int(binary.BigEndian.Uint16(record[3:]))
	if recordHeader+length > len(record) {
		return
	}
	if _, err := io.ReadFull(c, record[recordHeader:recordHeader+length]); err != nil {
		return
	}
	for left := asked(record); left > 0; {
		n, err := c.Write(zeros[:min(left, uint64(len(zeros)))])
		if err != nil {
			return
		}
		left -= uint64(n)
	}
	c.Read(record)
}
