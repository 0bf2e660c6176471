//go:build !linux

package caddymodule

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/mholt/caddy-l4/layer4"
)

// entrance is a socket that accepts connections, and who serves them. There are no event loops here: each connection
// has a goroutine that does what the handler does.
type entrance struct {
	ln      net.Listener
	addr    netip.AddrPort
	servers []*server // the last of which serves
	serving atomic.Pointer[server]
}

func newEntrance(addr string) (*entrance, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &entrance{ln: ln, addr: ln.Addr().(*net.TCPAddr).AddrPort()}, nil
}

// serve has a server serve in the place of another. Until there is one, who connects waits.
func (e *entrance) serve(s *server) error {
	if e.serving.Swap(s) == nil {
		go e.accept()
	}
	return nil
}

func (e *entrance) accept() {
	const pause = 20 * time.Millisecond // for descriptors to become free
	for {
		c, err := e.ln.Accept()
		switch {
		case err == nil:
			go e.serving.Load().receive(c)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(pause)
		}
	}
}

func (e *entrance) close() { e.ln.Close() }

func (s *server) receive(c net.Conn) {
	defer c.Close()
	h := &Handler{UpstreamPort: s.port, Policy: s.listener.Policy, app: s.app}
	_ = h.Handle(layer4.WrapConnection(c, nil, s.app.log), nil) // it reports to the decision log
}
