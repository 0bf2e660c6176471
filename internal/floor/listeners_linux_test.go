package floor

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
)

// TestListening has real listeners of this process, and a port that nobody listens on any more.
func TestListening(t *testing.T) {
	mptcp := func(on bool) (lc net.ListenConfig) {
		lc.SetMultipathTCP(on)
		return lc
	}
	tests := []struct {
		name    string
		config  net.ListenConfig
		network string
		addr    string
		yes, no []string
	}{
		{"loopback", mptcp(false), "tcp4", "127.0.0.1:0", []string{"127.0.0.1", "::ffff:127.0.0.1"}, []string{"127.0.0.2"}},
		{"multipath", mptcp(true), "tcp4", "127.0.0.1:0", []string{"127.0.0.1"}, []string{"127.0.0.2"}},
		{"wildcard", mptcp(false), "tcp4", "0.0.0.0:0", []string{"127.0.0.1", "127.0.0.2"}, nil},
		{"wildcard of either family", mptcp(false), "tcp", ":0", []string{"127.0.0.1", "::1"}, nil},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			ln, err := tc.config.Listen(context.Background(), tc.network, tc.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			port := ln.Addr().(*net.TCPAddr).AddrPort().Port()
			for _, addr := range tc.yes {
				checkAddr(t, New(nil), addr, port, true, false)
			}
			for _, addr := range tc.no {
				checkAddr(t, New(nil), addr, port, true, true)
			}
			if err := ln.Close(); err != nil {
				t.Fatal(err)
			}
			for _, addr := range tc.yes {
				checkAddr(t, New(nil), addr, port, true, true)
				checkAddr(t, New(nil), addr, port, false, false)
			}
		})
	}
}

// TestListeningIgnores has sockets that accept nothing that Check is about.
func TestListeningIgnores(t *testing.T) {
	unix, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	f := New(nil)
	checkAddr(t, f, "127.0.0.1", udp.LocalAddr().(*net.UDPAddr).AddrPort().Port(), true, true)
}

// TestListeningInherited holds that a listener counts that the net package does not know of.
func TestListeningInherited(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	port := ln.Addr().(*net.TCPAddr).AddrPort().Port()
	if yes, err := new(listeners).has(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), true); !yes || err != nil {
		t.Errorf("listening = %v, %v; want true for a descriptor that still listens", yes, err)
	}
}
