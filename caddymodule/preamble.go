package caddymodule

import (
	"net"

	"github.com/mholt/caddy-l4/layer4"

	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
)

// front is a client's side of a connection on whose name is decided.
type front interface {
	// refuse tells the client of a denial, of which the record may not know yet, and closes the connection. read
	// is what was read of it.
	refuse(r *record, reason policy.Reason, read []byte)
	// ahead is what was read of it besides.
	ahead() []byte
	// upstream has the upstream expect a ClientHello.
	upstream(up *tunnel.Socket) error
	// join makes it a tunnel to the upstream.
	join(up *tunnel.Socket, o tunnel.Options) (*tunnel.Tunnel, error)
	// conn has a site take it over. Refusing it is possible still.
	conn() (net.Conn, error)
}

// preamble is a front by way of layer4: what its protocol has before the ClientHello, and how it tells a client of a
// denial.
type preamble interface {
	front
	// hello reads up to the server name, as readHello does.
	hello(buf []byte) (name string, read []byte, err error)
}

// layer4Client is what all preambles have.
type layer4Client struct{ client *layer4.Connection }

func (c layer4Client) ahead() []byte           { return c.client.MatchingBytes() }
func (c layer4Client) conn() (net.Conn, error) { return c.client.Conn, nil }

func (c layer4Client) join(up *tunnel.Socket, o tunnel.Options) (*tunnel.Tunnel, error) {
	return tunnel.Join(c.client.Conn, up, o)
}

// noPreamble is of TLS from the first octet on.
type noPreamble struct{ layer4Client }

func (p noPreamble) hello(buf []byte) (string, []byte, error)         { return readHello(p.client, buf) }
func (p noPreamble) upstream(*tunnel.Socket) error                    { return nil }
func (p noPreamble) refuse(_ *record, reason policy.Reason, _ []byte) { refuse(p.client.Conn, reason) }

// preambleError is why a preamble is none, or not one that is taken.
type preambleError struct {
	reason policy.Reason
	err    error
}

func (e *preambleError) Error() string { return e.err.Error() }
func (e *preambleError) Unwrap() error { return e.err }
