package tunnel

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of loops and sockets, none of which ever waits. The runtime
// is not told of them: it would take a processor from who is 20 µs in a call,
// as on a busy machine many are, and wake a thread for it, which costs more than
// the calls themselves.

// raw makes a call that is repeated after a signal. What its arguments point to must not move meanwhile, as what
// is on the stack may.
//
//go:uintptrescapes
func raw(call, a, b, c uintptr) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(call, a, b, c)
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.EINTR {
			return -1, errno
		}
	}
}

func read(fd int, b []byte) (int, error) {
	return raw(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
}

func write(fd int, b []byte) (int, error) {
	return raw(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
}

func splice(from, to, n int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n),
			unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.EINTR {
			return -1, errno
		}
	}
}

func shutdownWrite(fd int) { raw(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0) }

// closeFD must not be repeated, whatever it says: the number may be another's.
func closeFD(fd int) { unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

func setOption(fd, level, option, value int) error {
	v := int32(value)
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&v)), unsafe.Sizeof(v), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// newSocket returns a socket that does not block.
func newSocket(family int) (int, error) {
	return raw(unix.SYS_SOCKET, uintptr(family), unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
}

// connectFD begins to connect a socket, or asks how it stands. EINTR is an answer
// here: it goes on.
func connectFD(fd int, to netip.AddrPort) error {
	port := networkOrder(to.Port())
	var errno unix.Errno
	if to.Addr().Is4() {
		sa := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: port, Addr: to.Addr().As4()}
		_, _, errno = unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	} else {
		sa := unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: port, Addr: to.Addr().As16()}
		_, _, errno = unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// acceptFD accepts a connection, which does not block.
func acceptFD(listener int) (int, netip.AddrPort, error) {
	var sa unix.RawSockaddrInet6 // the larger of the two
	size := uint32(unsafe.Sizeof(sa))
	fd, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&sa)),
		uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if errno != 0 {
		return -1, netip.AddrPort{}, errno
	}
	return int(fd), addrPort(&sa), nil
}

// discard reads up to n bytes, and keeps none.
func discard(fd, n int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, uintptr(n), unix.MSG_TRUNC, 0, 0)
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.EINTR {
			return -1, errno
		}
	}
}

// localAddr is where a socket is bound.
func localAddr(fd int) (netip.AddrPort, error) {
	var sa unix.RawSockaddrInet6 // the larger of the two
	size := uint32(unsafe.Sizeof(sa))
	if _, err := raw(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size))); err != nil {
		return netip.AddrPort{}, err
	}
	return addrPort(&sa), nil
}

// addrPort reads an address that the kernel has written, of either family.
func addrPort(sa *unix.RawSockaddrInet6) netip.AddrPort {
	port := networkOrder(sa.Port)
	if sa.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(sa)).Addr), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), port)
}

// networkOrder is htons(3) and ntohs(3).
func networkOrder(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

// epollControl sets what a socket is watched for. Its events have fd and nth in them.
func epollControl(epoll, op, fd int, nth int32, events uint32) error {
	e := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: nth}
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epoll), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(&e)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// epollNow returns how many of events there are, and does not wait for any.
func epollNow(epoll int, events []unix.EpollEvent) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))),
		uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
