package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/sandboxallow/sandboxallow/internal/floor"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

var (
	// ErrNoAddress is what a lookup error is (errors.Is) when the resolver
	// says that the name does not exist or has neither an A nor an AAAA record.
	ErrNoAddress = errors.New("no address")

	// ErrResolver is what a lookup error is when nothing is known about the
	// name because no server gave a usable reply.
	ErrResolver = errors.New("resolver failed")
)

// LookupError says why a name has no addresses for us. It is either ErrNoAddress
// or ErrResolver, never both.
type LookupError struct {
	Name policy.Name
	Err  error // what the servers said, or that they said nothing
}

func (e *LookupError) Error() string { return fmt.Sprintf("resolving %q: %v", e.Name, e.Err) }
func (e *LookupError) Unwrap() error { return e.Err }

// Is makes whatever does not prove that there is no address a failure.
func (e *LookupError) Is(target error) bool {
	return target == ErrResolver && !errors.Is(e.Err, ErrNoAddress)
}

// DialError says why none of the addresses of a name was connected to.
type DialError struct {
	Name policy.Name
	Err  error // a *floor.Error, or the errors of all attempts
}

func (e *DialError) Error() string { return fmt.Sprintf("dialling %q: %v", e.Name, e.Err) }
func (e *DialError) Unwrap() error { return e.Err }

// Reason is the reason for which an error of Dial or Lookup denies a
// connection: private_address, no_address, resolver_error or, for all else,
// dial_error. It is ReasonNone for nil.
func Reason(err error) policy.Reason {
	var private *floor.Error
	switch {
	case err == nil:
		return policy.ReasonNone
	case errors.As(err, &private):
		return policy.ReasonPrivateAddress
	case errors.Is(err, ErrNoAddress):
		return policy.ReasonNoAddress
	case errors.Is(err, ErrResolver):
		return policy.ReasonResolverError
	default:
		return policy.ReasonDialError
	}
}

// TimedOut reports whether err is a dial_error for want of an answer, rather
// than a refusal: to an HTTP client that is 504, not 502. A resolver that did
// not answer is no dial_error.
func TimedOut(err error) bool {
	if Reason(err) != policy.ReasonDialError {
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// attemptErrors are the errors of several attempts, in the order they came.
type attemptErrors []error

func (e attemptErrors) Error() string {
	text := make([]string, len(e))
	for i, err := range e {
		text[i] = err.Error()
	}
	return strings.Join(text, "; ")
}

func (e attemptErrors) Unwrap() []error { return e }
