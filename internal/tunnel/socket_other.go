//go:build !linux

package tunnel

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// Socket is a TCP connection to an upstream, as Connect makes it.
type Socket struct {
	tcp    *net.TCPConn
	remote netip.AddrPort
}

// Connect connects to an address.
func Connect(ctx context.Context, to netip.AddrPort) (*Socket, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return &Socket{c.(*net.TCPConn), to}, nil
}

// RemoteAddr is the address that it is connected to.
func (s *Socket) RemoteAddr() netip.AddrPort { return s.remote }

// Write writes all of b, within writeTimeout. It is for what comes before the tunnel.
func (s *Socket) Write(b []byte) (int, error) {
	s.tcp.SetWriteDeadline(time.Now().Add(writeTimeout))
	return s.tcp.Write(b)
}

// Read reads what there is, and waits for it until ctx ends. It is for what comes before the tunnel.
func (s *Socket) Read(ctx context.Context, b []byte) (int, error) {
	late, _ := ctx.Deadline()
	s.tcp.SetReadDeadline(late)
	return s.tcp.Read(b)
}

// Close closes the connection.
func (s *Socket) Close() error { return s.tcp.Close() }

func (s *Socket) conn() (net.Conn, error) { return s.tcp, nil }
