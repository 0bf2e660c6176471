package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/sandboxallow/sandboxallow/internal/floor"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func TestReason(t *testing.T) {
	n := name(t, "example.com")
	private := &floor.Error{Addr: netip.MustParseAddr("169.254.169.254"), Range: "169.254.0.0/16", Name: "Link-local"}
	timeout := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	for _, tc := range []struct {
		name    string
		err     error
		reason  policy.Reason
		timeout bool
		text    string
	}{
		{"none", nil, policy.ReasonNone, false, ""},
		{"no such name", &LookupError{n, nxdomain}, policy.ReasonNoAddress, false, `resolving "example.com": NXDOMAIN`},
		{"no record", &LookupError{n, nodata}, policy.ReasonNoAddress, false, `resolving "example.com": no A or AAAA record`},
		{"resolver failed", &LookupError{n, errors.New("SERVFAIL at 1.1.1.1:53")}, policy.ReasonResolverError, false, `resolving "example.com": SERVFAIL at 1.1.1.1:53`},
		{"resolver timed out", &LookupError{n, timeout}, policy.ReasonResolverError, false, `resolving "example.com": dial: i/o timeout`},
		{"private", &DialError{n, private}, policy.ReasonPrivateAddress, false, `dialling "example.com": 169.254.169.254 is in 169.254.0.0/16 (Link-local)`},
		{"private at connect", &DialError{n, &net.OpError{Op: "dial", Err: private}}, policy.ReasonPrivateAddress, false, ""},
		{"refused", &DialError{n, syscall.ECONNREFUSED}, policy.ReasonDialError, false, `dialling "example.com": connection refused`},
		{"timed out", &DialError{n, timeout}, policy.ReasonDialError, true, ""},
		{"timed out by the system", &DialError{n, os.NewSyscallError("connect", syscall.ETIMEDOUT)}, policy.ReasonDialError, true, ""},
		{"out of time", &DialError{n, context.DeadlineExceeded}, policy.ReasonDialError, true, ""},
		{"refused and timed out", &DialError{n, attemptErrors{syscall.ECONNREFUSED, timeout}}, policy.ReasonDialError, true, `dialling "example.com": connection refused; dial: i/o timeout`},
		{"all refused", &DialError{n, attemptErrors{syscall.ECONNREFUSED, syscall.EHOSTUNREACH}}, policy.ReasonDialError, false, ""},
		{"client left while resolving", &LookupError{n, context.Canceled}, policy.ReasonResolverError, false, ""},
		{"out of time while resolving", &LookupError{n, context.DeadlineExceeded}, policy.ReasonResolverError, false, ""},
		{"anything else", io.EOF, policy.ReasonDialError, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Reason(tc.err); got != tc.reason {
				t.Errorf("reason is %q, want %q", got, tc.reason)
			}
			if got := TimedOut(tc.err); got != tc.timeout {
				t.Errorf("timed out is %v, want %v", got, tc.timeout)
			}
			if tc.text != "" && tc.err.Error() != tc.text {
				t.Errorf("text is %q, want %q", tc.err, tc.text)
			}
		})
	}
}
