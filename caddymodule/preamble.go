package caddymodule

import (
	"net"

	"github.com/mholt/caddy-l4/layer4"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// preamble is what a protocol has before the ClientHello, and how it tells a client of a denial.
type preamble interface {
	// hello reads up to the server name, as readHello does.
	hello(buf []byte) (name string, read []byte, err error)
	// upstream has the upstream expect a ClientHello.
	upstream(up *net.TCPConn) error
	// refuse tells the client of a denial, of which the record may not know yet, and closes the connection. read
	// is what hello has returned.
	refuse(r *record, reason policy.Reason, read []byte)
}

// noPreamble is of TLS from the first octet on.
type noPreamble struct{ client *layer4.Connection }

func (p noPreamble) hello(buf []byte) (string, []byte, error)         { return readHello(p.client, buf) }
func (p noPreamble) upstream(*net.TCPConn) error                      { return nil }
func (p noPreamble) refuse(_ *record, reason policy.Reason, _ []byte) { refuse(p.client.Conn, reason) }

// preambleError is why a preamble is none, or not one that is taken.
type preambleError struct {
	reason policy.Reason
	err    error
}

func (e *preambleError) Error() string { return e.err.Error() }
func (e *preambleError) Unwrap() error { return e.err }
