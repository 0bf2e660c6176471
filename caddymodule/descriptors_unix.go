//go:build unix

package caddymodule

import "golang.org/x/sys/unix"

// descriptorLimit returns how many descriptors the process may have open. The runtime of Go has raised the
// soft limit to the hard one by now.
func descriptorLimit() uint64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	return uint64(l.Cur)
}
