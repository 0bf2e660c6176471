package listener

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestEach(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	want := ln.Addr().(*net.TCPAddr).AddrPort()
	found := func() (found bool) {
		if err := Each(func(_ int, at netip.AddrPort) { found = found || at == want }); err != nil {
			t.Fatal(err)
		}
		return found
	}
	if !found() {
		t.Errorf("%v is not among the listeners", want)
	}
	ln.Close()
	if found() {
		t.Errorf("%v is among the listeners after it was closed", want)
	}
}

// The kernel completes one connection more than the backlog, and leaves further clients to try again.
func TestSetBacklog(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	other, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	const backlog = 4
	if err := SetBacklog(2 * backlog); err != nil { // both have a half
		t.Fatal(err)
	}
	connected := 0
	for range 2 * backlog {
		c, err := net.DialTimeout("tcp", ln.Addr().String(), 200*time.Millisecond)
		if err == nil {
			defer c.Close()
			connected++
		}
	}
	if connected < backlog || connected > backlog+1 {
		t.Errorf("%d connections wait to be accepted, want %d", connected, backlog+1)
	}
	if _, err := ln.Accept(); err != nil {
		t.Errorf("the listener accepts no more: %v", err)
	}
}
