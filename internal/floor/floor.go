// Package floor says which addresses may never be dialled, whatever a policy allows: everything but
// global unicast, the special-purpose ranges in it, cloud metadata services, and the gateway itself.
//
// A name that is allowed can resolve to any address, for its owner chooses it. The floor is what keeps
// such a name from reaching the networks that the gateway can reach and the sandbox must not. It is
// checked on the address that is handed to connect(2), on every attempt.
package floor

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// Floor checks addresses. It is safe for concurrent use. The zero value is one without further ranges.
type Floor struct {
	deny      []netip.Prefix
	own       ownAddrs
	listeners listeners
	listens   func(ap netip.AddrPort, ask bool) (bool, error) // default: listeners.has
}

// New returns a floor that also denies what the operator names in deny, such as public addresses of the
// gateway that are on none of its interfaces. A prefix of IPv4-mapped addresses stands for the IPv4
// addresses; one that is not valid names none.
func New(deny []netip.Prefix) *Floor {
	f := &Floor{deny: make([]netip.Prefix, len(deny))}
	for i, p := range deny {
		if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		f.deny[i] = p.Masked()
	}
	return f
}

// Check returns nil if ap may be dialled, else an *Error. lifted says that a `private` line of the policy
// names the address. That line lifts the table of special-purpose ranges, and the gateway's own addresses
// but for the ports on which this very process listens; nothing lifts
//
//   - what is no place to connect to: no address, an unspecified or a zoned one, port 0;
//   - cloud metadata addresses;
//   - the ranges that were given to New.
//
// An IPv4-mapped address is its IPv4 address. Others that embed one, such as NAT64's, are in the table;
// where they are lifted, they are also checked as what they embed.
func (f *Floor) Check(ap netip.AddrPort, lifted bool) error { return f.check(ap, lifted, true) }

// Known is Check for who cannot wait until the system has been asked: ErrDue if it would have to be.
func (f *Floor) Known(ap netip.AddrPort, lifted bool) error { return f.check(ap, lifted, false) }

// ErrDue is within the error of Known if Check has to be asked.
var ErrDue = errors.New("the system is to be asked anew")

// check is Check. Only if ask is set the system may be asked.
func (f *Floor) check(ap netip.AddrPort, lifted, ask bool) error {
	a := ap.Addr().Unmap()
	switch {
	case !a.IsValid():
		return &Error{Name: "no address"}
	case ap.Addr().Zone() != "": // Unmap drops it
		return &Error{Addr: ap.Addr(), Name: "an address with a zone"}
	case a.IsUnspecified(): // connect(2) takes it for loopback
		return &Error{Addr: a, Name: "the unspecified address"}
	case ap.Port() == 0:
		return &Error{Addr: a, Name: "without a port"}
	}
	if err := f.never(a, lifted); err != nil {
		return err
	}
	own, err := f.own.has(a, ask)
	switch {
	case err != nil:
		return &Error{Addr: a, Name: "not to be told from the gateway's own addresses", Err: err}
	case own && lifted:
		return f.itself(netip.AddrPortFrom(a, ap.Port()), ask)
	case own:
		return &Error{Addr: a, Name: "an address of the gateway"}
	case lifted:
		return f.embeds(a, ask)
	}
	if e, denied := Special(a); denied {
		return &Error{Addr: a, Range: e.Prefix.String(), Name: e.Name}
	}
	return nil
}

// never refuses what nothing lifts. a is unmapped.
func (f *Floor) never(a netip.Addr, lifted bool) error {
	if policy.MetadataAddr(a) {
		e, _ := Special(a)
		err := &Error{Addr: a, Range: e.Prefix.String(), Name: e.Name}
		if lifted {
			err.Name += "; a cloud metadata address, which nothing lifts"
		}
		return err
	}
	for _, p := range f.deny {
		if p.Contains(a) {
			return &Error{Addr: a, Range: p.String(), Name: "denied by the operator"}
		}
	}
	return nil
}

// itself refuses an own address on a port on which this process listens: the admin API, or the gateway,
// which would dial itself until it has no descriptors left.
func (f *Floor) itself(ap netip.AddrPort, ask bool) error {
	listens := f.listens
	if listens == nil {
		listens = f.listeners.has
	}
	switch yes, err := listens(ap, ask); {
	case err != nil:
		return &Error{Addr: ap.Addr(), Name: fmt.Sprintf("an address of the gateway, which may listen on port %d", ap.Port()), Err: err}
	case yes:
		return &Error{Addr: ap.Addr(), Name: fmt.Sprintf("an address of the gateway, which listens on port %d", ap.Port())}
	}
	return nil
}

// embeds refuses a lifted address for the IPv4 address that a translator or a tunnel makes of it.
func (f *Floor) embeds(a netip.Addr, ask bool) error {
	for _, v4 := range embedded(a) {
		if err := f.never(v4, true); err != nil {
			return &Error{Addr: a, Name: "an address that embeds another", Err: err}
		}
		if own, err := f.own.has(v4, ask); own || err != nil {
			return &Error{Addr: a, Name: fmt.Sprintf("an address that embeds %v, one of the gateway's", v4), Err: err}
		}
	}
	return nil
}

// Error says why an address may not be dialled.
type Error struct {
	Addr  netip.Addr // unmapped; the zero Addr if there was none
	Range string     // the range it is in, such as "169.254.0.0/16"; "" if it is refused for itself
	Name  string     // what the range or the address is, such as "Link-local"
	Err   error      // what kept the floor from telling, or the error of the address that is embedded
}

// Error returns a text such as "169.254.169.254 is in 169.254.0.0/16 (Link-local)".
func (e *Error) Error() string {
	s := e.Addr.String() + " is "
	if e.Range != "" {
		s += "in " + e.Range + " (" + e.Name + ")"
	} else {
		s += e.Name
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }
