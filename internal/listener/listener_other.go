//go:build !linux

// Package listener finds the sockets on which this process accepts TCP connections, whoever opened them.
package listener

import (
	"errors"
	"net/netip"
)

// Each fails where there is no /proc.
func Each(func(fd int, at netip.AddrPort)) error { return errors.ErrUnsupported }

// SetBacklog fails where Each does.
func SetBacklog(int) error { return errors.ErrUnsupported }
