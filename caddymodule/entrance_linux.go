package caddymodule

import (
	"net/netip"
	"sync/atomic"

	"github.com/sandboxallow/sandboxallow/internal/tunnel"
)

// entrance is a socket that accepts connections, and who serves them.
type entrance struct {
	ln      *tunnel.Listener
	addr    netip.AddrPort
	servers []*server // the last of which serves
	serving atomic.Pointer[server]
}

func newEntrance(addr string) (*entrance, error) {
	ln, err := tunnel.Listen(addr)
	if err != nil {
		return nil, err
	}
	return &entrance{ln: ln, addr: ln.Addr()}, nil
}

// serve has a server serve in the place of another. Until there is one, who connects waits.
func (e *entrance) serve(s *server) error {
	if e.serving.Swap(s) != nil {
		return nil
	}
	return e.ln.Serve(func(c *tunnel.Client) { e.serving.Load().receive(c) })
}

func (e *entrance) close() { e.ln.Close() }
