package caddymodule

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// parseAuthority reads `name[:port]`, as it stands in a Host field, in an absolute request target and in the
// target of CONNECT (RFC 9110 §7.2, RFC 9112 §3.2). byDefault is the port where none is written, 0 if one has
// to be.
//
// It is stricter than net.SplitHostPort and net/url, which take user names, NUL and `+443`: what it returns is
// the one reading that there is. The reason is bad_request for what is no authority at all, bad_name for an
// authority whose host is no canonical name: an address, for one.
func parseAuthority(s string, byDefault uint16) (policy.Name, uint16, policy.Reason, error) {
	if i := strings.IndexFunc(s, notInAuthority); i >= 0 {
		return policy.Name{}, 0, policy.ReasonBadRequest, fmt.Errorf("%q cannot stand in an authority, accepted is name:port", s[i:i+1])
	}
	host, digits, written := s, "", false
	// The colons of an IPv6 address, in brackets or not, are none before a port.
	if !strings.HasPrefix(s, "[") && strings.Count(s, ":") <= 1 {
		host, digits, written = strings.Cut(s, ":")
	}
	if host == "" {
		return policy.Name{}, 0, policy.ReasonBadRequest, errors.New("no host")
	}
	port := byDefault
	if written {
		var err error
		if port, err = parsePort(digits); err != nil {
			return policy.Name{}, 0, policy.ReasonBadRequest, err
		}
	}
	n, err := policy.ParseName(host)
	if err != nil {
		return policy.Name{}, port, policy.ReasonBadName, err
	}
	if port == 0 {
		return policy.Name{}, 0, policy.ReasonBadRequest, errors.New("no port, accepted is name:port")
	}
	return n, port, policy.ReasonNone, nil
}

// notInAuthority reports whether c can stand neither in a name, nor in an address, nor in a port.
func notInAuthority(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return false
	}
	return !strings.ContainsRune("-_.:[]", c)
}

// parsePort reads a port as it stands behind a colon: 1 to 65535, without a sign or a leading zero.
func parsePort(s string) (uint16, error) {
	port, err := strconv.ParseUint(s, 10, 16)
	if err != nil || port == 0 || s[0] == '0' {
		return 0, fmt.Errorf("port %q, accepted are 1 to 65535", s)
	}
	return uint16(port), nil
}
