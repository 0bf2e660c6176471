package caddymodule

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
)

// readByUs returns how many octets this process has read so far by read(2) and its kin, which splice(2) is not.
func readByUs(t *testing.T) (n int) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		if _, err := fmt.Sscanf(string(line), "rchar: %d", &n); err == nil {
			return n
		}
	}
	t.Fatalf("no rchar in %q", data)
	return 0
}

// Bytes move by splice(2) between two bare TCP connections: nothing may wrap the client's.
func TestConnectBare(t *testing.T) {
	g := startProxy(t, setup{document: opaqueDocument})
	g.plain()
	c := g.open(t, "www.example.com")
	up := g.origin(t)
	const size = 64 << 20
	before := readByUs(t)
	go func() {
		b := make([]byte, 1<<20)
		for range size / len(b) {
			c.Write(b)
		}
		c.Conn.(*net.TCPConn).CloseWrite()
	}()
	if n, err := io.Copy(io.Discard, up); n != size || err != nil {
		t.Errorf("the origin got %d octets, %v", n, err)
	}
	// The origin's end is in this process too, and reads all of it.
	if n := readByUs(t) - before; n > size+size/2 {
		t.Errorf("%d octets were read for a tunnel that carried %d: the client's connection is wrapped", n, size)
	}
}
