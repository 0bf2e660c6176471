package caddymodule

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/postgres"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
)

const protocolPostgres = "postgres"

// postgresPreamble is what a client of PostgreSQL and its server say in clear before TLS. Each of them hears from
// us alone: nothing that is said in clear is passed on.
type postgresPreamble struct {
	layer4Client
	app *App

	direct bool // the client began with TLS
	tls    bool // the client expects TLS, and to be told in it
}

func inClear(format string, args ...any) error {
	return &preambleError{policy.ReasonPlaintextRefused, fmt.Errorf(format, args...)}
}

func (p *postgresPreamble) hello(buf []byte) (name string, read []byte, err error) {
	first, err := p.negotiate(buf)
	if err != nil {
		return "", nil, err
	}
	return readHello(io.MultiReader(bytes.NewReader(bytes.Clone(first)), p.client), buf)
}

// negotiate answers what the client sends in clear until it begins with TLS. It returns what was read of that.
//
// Whatever comes together with a request is refused: it was sent before the client could know the answer, and it
// must pass neither for part of the TLS stream nor for anything that the client has said in it (CVE-2021-23222).
func (p *postgresPreamble) negotiate(buf []byte) ([]byte, error) {
	for again := false; ; again = true {
		first, n, err := p.readFirst(buf)
		if err != nil {
			return nil, err
		}
		switch {
		case first == postgres.DirectTLS && !again:
			p.direct, p.tls = true, true
			return buf[:n], nil
		case first == postgres.DirectTLS:
			return nil, &preambleError{policy.ReasonNotTLS, errors.New("TLS without an SSLRequest, after a GSSENCRequest")}
		case first == postgres.GSSENCRequest && again:
			return nil, inClear("a second %v", first)
		case first != postgres.SSLRequest && first != postgres.GSSENCRequest:
			return nil, inClear("a %v without TLS names no server", first)
		case n > postgres.RequestSize:
			return nil, inClear("octets in clear behind the %v", first)
		}
		answer := byte(postgres.Refuse)
		if first == postgres.SSLRequest {
			answer, p.tls = postgres.Accept, true
		}
		if _, err := p.client.Write([]byte{answer}); err != nil {
			return nil, fmt.Errorf("%w: %w", errHelloBroke, err)
		}
		if p.tls {
			return nil, nil
		}
	}
}

// readFirst reads what the client sends first, and all that has come with it: n octets.
func (p *postgresPreamble) readFirst(buf []byte) (first postgres.First, n int, err error) {
	for {
		first, need, err := postgres.ReadFirst(buf[:n])
		if err != nil {
			return 0, n, &preambleError{policy.ReasonNotTLS, err}
		}
		if need == 0 {
			return first, n, nil
		}
		// Not all that is needed at once: every octet may tell that no other needs to be waited for.
		m, err := p.client.Read(buf[n:])
		n += m
		if err != nil && m == 0 {
			if err = readError(err, n); errors.Is(err, errHelloEnd) {
				err = &preambleError{policy.ReasonNotTLS, err}
			}
			return 0, n, err
		}
	}
}

// upstream has the server take up TLS, in the way the client has: a server that does not know direct TLS yet
// is not asked for the other.
func (p *postgresPreamble) upstream(up *tunnel.Socket) error {
	if p.direct {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(p.app.DialTimeout))
	defer cancel()
	if _, err := up.Write(postgres.AppendSSLRequest(nil)); err != nil {
		return fmt.Errorf("asking the server for TLS: %w", err)
	}
	var answer [2]byte // one more than may come
	n, err := up.Read(ctx, answer[:])
	switch {
	case err != nil:
		return fmt.Errorf("asking the server for TLS: %w", err)
	case answer[0] != postgres.Accept:
		return fmt.Errorf("the server answers %q to SSLRequest, accepted is %q", answer[0], postgres.Accept)
	case n > 1:
		return errors.New("the server sends more than an octet before TLS")
	}
	return nil
}

// refuse has the client's own program say why, wherever that can be done: by an ErrorResponse, within TLS if the
// client expects TLS.
func (p *postgresPreamble) refuse(r *record, reason policy.Reason, read []byte) {
	switch {
	case !p.tls && (reason == policy.ReasonPlaintextRefused || reason == policy.ReasonLimit):
		closeWith(p.client.Conn, fatal(r, reason), reason != policy.ReasonLimit)
	case !p.tls:
		p.client.Close()
	case !tellable(reason) || !p.tellInTLS(fatal(r, reason), read):
		refuse(p.client.Conn, reason)
	}
}

// tellable reports whether a denial came after a ClientHello that was well formed, so that it can be answered.
func tellable(reason policy.Reason) bool {
	switch reason {
	case policy.ReasonNotTLS, policy.ReasonHelloTimeout, policy.ReasonHelloTooLarge, policy.ReasonHelloMalformed:
		return false
	}
	return true
}

// fatal returns the ErrorResponse that tells a client about a denial.
func fatal(r *record, reason policy.Reason) []byte {
	e := postgres.Fatal{
		Code:    postgres.CodeInvalidAuthorization,
		Message: decision.Printable(fmt.Sprintf("sandboxallow: %v: %s", reason, r.excuse(reason))),
	}
	switch reason {
	case policy.ReasonNoAddress, policy.ReasonResolverError, policy.ReasonDialError, policy.ReasonUpstreamNoTLS:
		e.Code = postgres.CodeConnectionFailure
	case policy.ReasonLimit:
		e.Code = postgres.CodeTooManyConnections
	case policy.ReasonPlaintextRefused:
		e.Hint = "Connect with sslmode=require."
	case policy.ReasonNoName:
		e.Hint = "libpq sends the name since version 14, unless sslsni is 0 or the host is an address."
	case policy.ReasonNotAllowed, policy.ReasonPortNotAllowed:
		// Made of what the client has asked for: it tells nothing of the policy that the reason does not.
		if n, err := policy.ParseName(r.Name); err == nil {
			e.Hint = fmt.Sprintf("The policy lacks a line such as: %s", r.Decision.Hint(n, r.Port))
		}
	}
	return e.Append(nil)
}

// To tell a client within TLS takes half a millisecond of CPU, and at most tellTimeout. Clients may ask for it as
// often as they like: in a crowd, those beyond maxTelling at a time get the TLS alert alone.
const (
	maxTelling  = 64
	tellTimeout = time.Second
)

var telling atomic.Int64

// tellInTLS ends TLS here for once, tells the client in it, and closes the connection. It reports whether it has.
func (p *postgresPreamble) tellInTLS(message, read []byte) bool {
	defer telling.Add(-1)
	if telling.Add(1) > maxTelling {
		return false
	}
	cert, err := throwaway()
	if err != nil {
		return false
	}
	config := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
	if p.direct {
		config.NextProtos = []string{"postgresql"}
	}
	defer p.client.Close()
	p.client.SetDeadline(time.Now().Add(tellTimeout))
	c := tls.Server(&replay{p.client, bytes.NewReader(read)}, config)
	if err := c.Handshake(); err == nil {
		// The client's turn comes first. Whether it uses it or not, and what it says, does not matter.
		c.Read(make([]byte, 512))
		p.client.SetWriteDeadline(time.Now().Add(alertTimeout))
		if _, err := c.Write(message); err == nil {
			c.CloseWrite()
		}
	}
	// Else crypto/tls has sent an alert, which must not be lost either.
	lingerOn(p.client.Conn)
	return true
}

// replay is a connection of which some was read already.
type replay struct {
	net.Conn
	read *bytes.Reader
}

func (r *replay) Read(b []byte) (int, error) {
	if r.read.Len() > 0 {
		return r.read.Read(b)
	}
	return r.Conn.Read(b)
}

// throwaway makes a certificate of its own for this process. It proves nothing, and no client that verifies will
// take it: it is there for those that do not, to have them show a message.
var throwaway = sync.OnceValues(func() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: "sandboxallow denial"},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(10, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
})
