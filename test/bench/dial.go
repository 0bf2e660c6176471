package main

import (
	"fmt"
	"io"
	"net"
)

// dial connects to a server so that what is written next is the beginning of a tunnel to a name.
func (s *server) dial(name string) (*net.TCPConn, error) {
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(s.addr))
	if err != nil {
		return nil, err
	}
	if s.proxyTo == 0 {
		return c, nil
	}
	if err := s.connect(c, name); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// connected200 is all that a forward proxy says to a CONNECT that it grants.
const connected200 = "HTTP/1.1 200 Connection Established\r\n\r\n"

// connect has a forward proxy open a tunnel.
func (s *server) connect(c net.Conn, name string) error {
	if _, err := fmt.Fprintf(c, "CONNECT %[1]s:%[2]d HTTP/1.1\r\nHost: %[1]s:%[2]d\r\n\r\n", name, s.proxyTo); err != nil {
		return err
	}
	got := make([]byte, len(connected200))
	n, err := io.ReadFull(c, got)
	if err != nil || string(got) != connected200 {
		return fmt.Errorf("CONNECT %s: got %q: %v", name, got[:n], err)
	}
	return nil
}
