package policy

// Existence is what a name server says of a name, so that clients find what the policies admit and learn of
// nothing else.
type Existence uint8

const (
	Absent  Existence = iota // neither the name exists nor anything below it: NXDOMAIN (RFC 8020)
	Empty                    // the name exists, and has no record: NODATA
	Present                  // the name has the gateway's addresses
)

// Existence returns what a name server says of the name that d, a decision on AnyPort, is about.
func (d Decision) Existence() Existence {
	switch {
	case d.Verdict.Admits():
		return Present
	case d.Below:
		return Empty
	}
	return Absent
}
