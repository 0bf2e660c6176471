package caddymodule

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hangUp breaks a TCP connection off at once: the peer gets a reset, whoever reads or writes here next an error.
// This is connect(2) to no address, for which package unix has no form.
func hangUp(fd int) {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
}
