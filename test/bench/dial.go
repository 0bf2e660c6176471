package main

import (
	"fmt"
	"io"
	"net"
	"time"
)

// dial connects to a server so that what is written next is the beginning of a tunnel to a name.
func (s *server) dial(name string) (*net.TCPConn, error) {
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(s.addr))
	if err != nil {
		return nil, err
	}
	if s.before == nil {
		return c, nil
	}
	c.SetDeadline(time.Now().Add(tunnelPatience))
	if err := s.before(c, name); err != nil {
		c.Close()
		return nil, err
	}
	c.SetDeadline(time.Time{})
	return c, nil
}

// connected200 is all that a forward proxy says to a CONNECT that it grants.
const connected200 = "HTTP/1.1 200 Connection Established\r\n\r\n"

// connect has a forward proxy open tunnels to a port.
func connect(port uint16) func(net.Conn, string) error {
	return func(c net.Conn, name string) error {
		if _, err := fmt.Fprintf(c, "CONNECT %[1]s:%[2]d HTTP/1.1\r\nHost: %[1]s:%[2]d\r\n\r\n", name, port); err != nil {
			return err
		}
		got := make([]byte, len(connected200))
		n, err := io.ReadFull(c, got)
		if err != nil || string(got) != connected200 {
			return fmt.Errorf("CONNECT %s: got %q: %v", name, got[:n], err)
		}
		return nil
	}
}

const (
	// sslRequest is how a client of PostgreSQL asks for TLS, and sslGranted what it goes on after.
	sslRequest = "\x00\x00\x00\x08\x04\xd2\x16\x2f"
	sslGranted = 'S'
)

// askTLS has a server of PostgreSQL wait for a ClientHello.
func askTLS(c net.Conn, _ string) error {
	if _, err := io.WriteString(c, sslRequest); err != nil {
		return err
	}
	got := make([]byte, 1)
	if _, err := io.ReadFull(c, got); err != nil || got[0] != sslGranted {
		return fmt.Errorf("SSLRequest: got %q: %v", got, err)
	}
	return nil
}
