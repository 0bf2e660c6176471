//go:build unix

package caddymodule

import "syscall"

func setBacklog(fd uintptr, n int) error { return syscall.Listen(int(fd), n) }
