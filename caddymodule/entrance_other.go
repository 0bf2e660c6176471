//go:build !linux

package caddymodule

import (
	"errors"
	"net/netip"
)

// entrance is a socket that accepts connections. There are no event loops here to do so.
type entrance struct {
	addr    netip.AddrPort
	servers []*server
}

func newEntrance(string) (*entrance, error) {
	return nil, errors.New("is for Linux, elsewhere a `sandboxallow` route of the layer4 app does the same")
}

func (*entrance) serve(*server) error { return nil }
func (*entrance) close()              {}
