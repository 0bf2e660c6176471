package policy

import (
	"errors"
	"fmt"
	"strings"
)

// Lengths in octets of a name in its textual form (RFC 1035 §2.3.4).
const (
	maxName  = 253
	maxLabel = 63
)

// Name is a host name in its one canonical form: ASCII lower case, without a trailing dot, labels of
// letters, digits, '-' and '_' of 1 to 63 octets, 253 octets in all, and no IP address in any spelling.
//
// Only ParseName makes one, so whoever holds a Name other than the zero value holds a valid one. The
// string that was checked is the string that is dialled. Names are comparable.
type Name struct{ s string }

// String returns the name as it is compared, logged and dialled, such as "api.example.com".
func (n Name) String() string { return n.s }

// IsZero reports whether n is the zero value, which is no name.
func (n Name) IsZero() bool { return n.s == "" }

// ParseName makes the Name of what stood on the wire: a DNS question, a TLS server_name, a Host field, a
// CONNECT target. It folds ASCII letters and drops one trailing dot; it maps, decodes and trims nothing
// else. A string that is canonical already is not copied.
func ParseName(s string) (Name, error) {
	t := strings.TrimSuffix(s, ".")
	if t == "" {
		return Name{}, errors.New("name is empty")
	}
	if len(t) > maxName {
		return Name{}, fmt.Errorf("name %s has %d octets, at most %d are accepted", quote(t), len(t), maxName)
	}
	fold := false
	label := 0 // where the current label starts
	for i := 0; i < len(t); i++ {
		switch c := t[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		case 'A' <= c && c <= 'Z':
			fold = true
		case c == '.':
			if i == label {
				return Name{}, fmt.Errorf("name %s has an empty label", quote(s))
			}
			if i-label > maxLabel {
				return Name{}, errLabel(t, i-label)
			}
			label = i + 1
		default:
			return Name{}, fmt.Errorf("name %s has the character %s, only letters, digits, '-', '_' and '.' are accepted", quote(s), quote(t[i:i+1]))
		}
	}
	last := t[label:]
	if last == "" {
		return Name{}, fmt.Errorf("name %s has an empty label", quote(s))
	}
	if len(last) > maxLabel {
		return Name{}, errLabel(t, len(last))
	}
	if numeric(last) {
		return Name{}, fmt.Errorf("name %s is an address, only host names are accepted", quote(s))
	}
	if fold {
		t = foldASCII(t)
	}
	return Name{t}, nil
}

func errLabel(s string, n int) error {
	return fmt.Errorf("name %s has a label of %d octets, at most %d are accepted", quote(s), n, maxLabel)
}

// numeric reports whether a name that ends in this label is an IPv4 address to somebody's parser: all
// digits, or 0x (WHATWG URL, "ends in a number"). No top-level domain looks like that.
func numeric(last string) bool {
	if len(last) >= 2 && last[0] == '0' && (last[1] == 'x' || last[1] == 'X') {
		return true
	}
	for i := 0; i < len(last); i++ {
		if last[i] < '0' || last[i] > '9' {
			return false
		}
	}
	return true
}

// foldASCII lowers A to Z and nothing else: strings.ToLower would make a 'k' of the Kelvin sign.
func foldASCII(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// quote makes input printable for an error, and short.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return fmt.Sprintf("%q...", s[:most])
	}
	return fmt.Sprintf("%q", s)
}
