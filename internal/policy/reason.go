package policy

// Reason says why a decision is not a plain yes. The set is closed and public: a reason is a metric
// label, a field of the decision record, and the first word of what the sandbox is told. Reasons may be
// added, never renamed.
type Reason uint8

const (
	ReasonNone             Reason = iota // allowed, nothing to say
	ReasonNotTLS                         // the first bytes are no TLS handshake
	ReasonHelloTimeout                   // the ClientHello did not arrive in time
	ReasonHelloTooLarge                  // the ClientHello exceeds 64 KiB
	ReasonHelloMalformed                 // the ClientHello is not one that crypto/tls would take
	ReasonNoName                         // the ClientHello names no server
	ReasonBadName                        // the name is not canonical, see ParseName
	ReasonNoPolicy                       // no policy is for this client, or the listener's is gone
	ReasonNotAllowed                     // no rule allows the name
	ReasonDenied                         // a deny rule matches
	ReasonPortNotAllowed                 // a rule allows the name, but not on this port
	ReasonBadRequest                     // the HTTP request does not name one host
	ReasonNameMismatch                   // the name inside a tunnel is not the one it was opened for
	ReasonPrivateAddress                 // the name has only addresses that may not be dialled
	ReasonNoAddress                      // the name does not exist or has no address
	ReasonResolverError                  // the resolver failed
	ReasonDialError                      // no address could be connected to
	ReasonLimit                          // too many open tunnels
	ReasonAuthRequired                   // the forward proxy wants a user name and a password
	ReasonPlaintextRefused               // a Postgres client that does not begin with TLS
	ReasonUpstreamNoTLS                  // the Postgres server does not take up TLS
	ReasonNotBrokered                    // no site brokers the name
	reasons                              // how many there are
)

var reasonText = [reasons]string{
	ReasonNotTLS:           "not_tls",
	ReasonHelloTimeout:     "hello_timeout",
	ReasonHelloTooLarge:    "hello_too_large",
	ReasonHelloMalformed:   "hello_malformed",
	ReasonNoName:           "no_name",
	ReasonBadName:          "bad_name",
	ReasonNoPolicy:         "no_policy",
	ReasonNotAllowed:       "not_allowed",
	ReasonDenied:           "denied",
	ReasonPortNotAllowed:   "port_not_allowed",
	ReasonBadRequest:       "bad_request",
	ReasonNameMismatch:     "name_mismatch",
	ReasonPrivateAddress:   "private_address",
	ReasonNoAddress:        "no_address",
	ReasonResolverError:    "resolver_error",
	ReasonDialError:        "dial_error",
	ReasonLimit:            "limit",
	ReasonAuthRequired:     "auth_required",
	ReasonPlaintextRefused: "plaintext_refused",
	ReasonUpstreamNoTLS:    "upstream_no_tls",
	ReasonNotBrokered:      "not_brokered",
}

// String returns the reason as it stands in logs and metrics, such as "not_allowed"; "" for ReasonNone.
func (r Reason) String() string {
	if r >= reasons {
		return "unknown"
	}
	return reasonText[r]
}

// Verdict is the outcome of a decision. Its zero value denies.
type Verdict uint8

const (
	Deny      Verdict = iota // refused
	Allow                    // admitted
	WouldDeny                // admitted by a learn policy; strict would refuse
)

// String returns "deny", "allow" or "would_deny".
func (v Verdict) String() string {
	switch v {
	case Allow:
		return "allow"
	case WouldDeny:
		return "would_deny"
	default:
		return "deny"
	}
}

// Admits reports whether the client gets through.
func (v Verdict) Admits() bool { return v == Allow || v == WouldDeny }
