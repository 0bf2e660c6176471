package caddymodule

import (
	"net"
	"net/netip"
)

// addrOf returns the address that selects the policy, the zero value where a has none.
func addrOf(a net.Addr) netip.Addr { return addrPortOf(a).Addr().Unmap().WithZone("") }

// portOf returns the port of a, 0 if it has none.
func portOf(a net.Addr) uint16 { return addrPortOf(a).Port() }

func addrPortOf(a net.Addr) netip.AddrPort {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.AddrPort()
	case *net.UDPAddr: // HTTP/3
		return a.AddrPort()
	}
	return netip.AddrPort{}
}
