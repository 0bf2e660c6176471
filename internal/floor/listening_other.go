//go:build !linux

package floor

import (
	"errors"
	"net/netip"
)

// listening cannot tell here, which Check takes for a yes.
func listening(netip.AddrPort) (bool, error) { return false, errors.ErrUnsupported }
