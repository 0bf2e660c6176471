package caddymodule

import (
	"io"
	"net"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// TLS alert descriptions (RFC 8446 §6).
const (
	alertAccessDenied     = 49
	alertDecodeError      = 50
	alertInternalError    = 80
	alertUnrecognizedName = 112
)

// alertFor returns the TLS alert that tells a client about a denial, 0 for none.
func alertFor(r policy.Reason) byte {
	switch r {
	case policy.ReasonNotAllowed, policy.ReasonDenied, policy.ReasonPortNotAllowed, policy.ReasonNoPolicy,
		policy.ReasonNoName, policy.ReasonBadName, policy.ReasonNameMismatch, policy.ReasonBadRequest,
		policy.ReasonNotBrokered:
		return alertUnrecognizedName
	case policy.ReasonPrivateAddress:
		return alertAccessDenied
	case policy.ReasonHelloMalformed, policy.ReasonHelloTooLarge:
		return alertDecodeError
	case policy.ReasonNoAddress, policy.ReasonResolverError, policy.ReasonDialError, policy.ReasonUpstreamNoTLS,
		policy.ReasonLimit:
		return alertInternalError
	}
	return 0
}

const (
	alertTimeout = time.Second            // to write an alert, or an error of PostgreSQL
	lingerTime   = 100 * time.Millisecond // for the client to close first
	lingerBytes  = 64 << 10
)

// refuse tells a client of TLS why and closes the connection. A gateway that is out of descriptors does not linger.
func refuse(c net.Conn, r policy.Reason) {
	closeWith(c, alertRecord(r), r != policy.ReasonLimit)
}

// alertRecord returns the TLS record with the alert for a reason, nothing for none.
func alertRecord(r policy.Reason) []byte {
	if alert := alertFor(r); alert != 0 {
		return []byte{21, 3, 3, 0, 2, 2, alert}
	}
	return nil
}

// closeWith writes the last that a client is told, if there is anything, and closes the connection.
//
// A connection that is closed with bytes unread is reset, and what was written last may be lost with it. So what
// the client still sends is read, for a moment, if linger is set.
func closeWith(c net.Conn, last []byte, linger bool) {
	defer c.Close()
	if len(last) == 0 {
		return
	}
	c.SetDeadline(time.Now().Add(alertTimeout))
	if _, err := c.Write(last); err != nil {
		return
	}
	if linger {
		lingerOn(c)
	}
}

// lingerOn ends what is written to a connection, and reads on until the client ends it too, or for a moment.
func lingerOn(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		tcp.CloseWrite()
	}
	c.SetReadDeadline(time.Now().Add(lingerTime))
	io.CopyN(io.Discard, c, lingerBytes)
}
