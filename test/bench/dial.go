package main

import (
	"bytes"
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
	c.SetDeadline(time.Now().Add(tunnelPatience))
	switch {
	case s.proxyTo != 0:
		err = s.connect(c, name)
	case s.postgres:
		err = askTLS(c)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	c.SetDeadline(time.Time{})
	return c, nil
}

// tunnel opens a tunnel to a name whose far end does what is asked of it.
func (s *server) tunnel(name string, ask uint64) (*net.TCPConn, error) {
	hello, err := clientHello(name, ask)
	if err != nil {
		return nil, err
	}
	c, err := s.dial(name)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(hello); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// connect has a forward proxy open a tunnel. The client speaks first in it, so nothing comes after the head of a
// response that grants it.
func (s *server) connect(c net.Conn, name string) error {
	if _, err := fmt.Fprintf(c, "CONNECT %[1]s:%[2]d HTTP/1.1\r\nHost: %[1]s:%[2]d\r\n\r\n", name, s.proxyTo); err != nil {
		return err
	}
	var head []byte
	for buf := make([]byte, 512); !bytes.Contains(head, []byte("\r\n\r\n")); {
		n, err := c.Read(buf)
		head = append(head, buf[:n]...)
		if err != nil || len(head) > 8*len(buf) {
			return fmt.Errorf("CONNECT %s: got %q: %v", name, head, err)
		}
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) || !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		return fmt.Errorf("CONNECT %s: got %q", name, head)
	}
	return nil
}

const (
	// sslRequest is how a client of PostgreSQL asks for TLS, and sslGranted what it goes on after.
	sslRequest = "\x00\x00\x00\x08\x04\xd2\x16\x2f"
	sslGranted = 'S'
)

// askTLS has a server of PostgreSQL wait for a ClientHello.
func askTLS(c net.Conn) error {
	if _, err := io.WriteString(c, sslRequest); err != nil {
		return err
	}
	got := make([]byte, 1)
	if _, err := io.ReadFull(c, got); err != nil || got[0] != sslGranted {
		return fmt.Errorf("SSLRequest: got %q: %v", got, err)
	}
	return nil
}
