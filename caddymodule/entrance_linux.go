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
	e := &entrance{ln: ln, addr: ln.Addr()}
	return e, ln.Serve(e.begin)
}

// begin receives a connection.
func (e *entrance) begin(c *tunnel.Client) {
	if s := e.serving.Load(); s != nil {
		s.receive(c)
		return
	}
	c.Close() // there is no server yet
}

func (e *entrance) close() { e.ln.Close() }
