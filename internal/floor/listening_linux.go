package floor

import (
	"net/netip"
	"os"
	"strconv"
	"syscall"
)

// listening reports whether this process accepts TCP connections to ap, an address of this host. It asks
// each of the process's own sockets, which sees listeners that were inherited or made by any library, and
// takes some 100 ns a descriptor. A listener on a wildcard address, of either family, accepts connections
// to every address.
func listening(ap netip.AddrPort) (bool, error) {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return false, err
	}
	defer dir.Close()
	fds, err := dir.Readdirnames(-1)
	if err != nil {
		return false, err
	}
	for _, s := range fds {
		fd, err := strconv.Atoi(s)
		if err != nil {
			return false, err
		}
		at, ok := acceptsAt(fd)
		if ok && at.Port() == ap.Port() && (at.Addr() == ap.Addr() || at.Addr().IsUnspecified()) {
			return true, nil
		}
	}
	return false, nil
}

// acceptsAt returns the address that the descriptor listens on, if it is an internet socket that does.
func acceptsAt(fd int) (netip.AddrPort, bool) {
	if on, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN); err != nil || on == 0 {
		return netip.AddrPort{}, false // a file, a connection, closed meanwhile
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, false
	}
	switch sa := sa.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), true
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port)), true
	}
	return netip.AddrPort{}, false
}
