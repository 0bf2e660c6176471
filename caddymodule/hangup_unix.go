//go:build unix && !linux

package caddymodule

import "golang.org/x/sys/unix"

// hangUp breaks a TCP connection off at once, as far as that goes without closing it.
func hangUp(fd int) { unix.Shutdown(fd, unix.SHUT_RDWR) }
