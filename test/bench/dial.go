package main

import (
	"bytes"
	"fmt"
	"net"
	"time"
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
	c.SetDeadline(time.Now().Add(tunnelPatience))
	defer c.SetDeadline(time.Time{})
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
