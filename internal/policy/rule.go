package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// scope is which names a rule covers, relative to the name it is written with.
type scope uint8

const (
	exact  scope = iota // api.example.com: that name only
	suffix              // .example.com: the name and everything below it
	below               // *.example.com: everything below, not the name
)

// anyPort stands for every port in a rule, and for "on whatever port" in a question.
const anyPort = 0

// rule is one allow or deny rule of a policy, compiled from one word of a document or one line of a list.
// A million of them are held: keep it small, and without pointers, which the collector would follow each time.
type rule struct {
	at    uint32 // of its name, in Policy.names
	ports uint32 // index into Policy.portSets; 0: none written
	line  uint32
	file  uint16 // index into Policy.files
	size  uint8  // of its name in octets
	scope scope
	deny  bool
}

// ruleName returns the name that a rule is written with.
func (p *Policy) ruleName(r *rule) string { return p.names[r.at : r.at+uint32(r.size)] }

// ruleSpec is a rule as parsed: `name[:port[,port...]]`.
type ruleSpec struct {
	name  Name
	scope scope
	ports []uint16 // nil: none written; [anyPort]: `:*`
}

// matches reports whether the rule covers the name, whatever the port. It is the definition that the
// look-up table is tested against.
func (r ruleSpec) matches(n Name) bool {
	name := r.name.s
	if r.scope != below && n.s == name {
		return true
	}
	return r.scope != exact && len(n.s) > len(name) && strings.HasSuffix(n.s, name) && n.s[len(n.s)-len(name)-1] == '.'
}

// parseRule parses one rule as it stands in a document or a list.
func parseRule(s string) (ruleSpec, error) {
	var r ruleSpec
	host, ports, hasPorts := strings.Cut(s, ":")
	if err := ruleMistake(s, host, ports); err != nil {
		return r, err
	}
	var err error
	if hasPorts {
		if r.ports, err = parsePorts(ports); err != nil {
			return r, fmt.Errorf("rule %s: %w", quote(s), err)
		}
	}
	switch {
	case strings.HasPrefix(host, "*."):
		r.scope, host = below, host[2:]
	case strings.HasPrefix(host, "."):
		r.scope, host = suffix, host[1:]
	}
	if r.name, err = parseRuleName(host); err != nil {
		return r, fmt.Errorf("rule %s: %w", quote(s), err)
	}
	return r, nil
}

const ruleForm = "accepted are example.com, .example.com and *.example.com, each with :port[,port...] or :* behind it"

// ruleMistake recognises what people write where a rule belongs, to say what would be accepted instead.
func ruleMistake(s, host, ports string) error {
	switch {
	case s == "":
		return errors.New("rule is empty, " + ruleForm)
	case strings.Contains(s, "://"):
		rest := s[strings.Index(s, "://")+3:]
		return fmt.Errorf("%s is a URL, write the host name alone: %s", quote(s), quote(strings.SplitN(rest, "/", 2)[0]))
	case strings.ContainsAny(s, "/@"):
		return fmt.Errorf("%s is no rule, write a host name without user or path, %s", quote(s), ruleForm)
	case s[0] == '!' || s[0] == '-':
		return fmt.Errorf("%s is no rule, to refuse a name write a deny line", quote(s))
	case host == "*" || host == "." || host == "*.":
		return fmt.Errorf("%s would be every name, write `mode open` in the policy instead", quote(s))
	case s[0] == '[' || strings.Contains(ports, ":"):
		return fmt.Errorf("%s is an address, only host names are accepted", quote(s))
	}
	return nil
}

func parsePorts(s string) ([]uint16, error) {
	if s == "*" {
		return []uint16{anyPort}, nil
	}
	var ports []uint16
	for p := range strings.SplitSeq(s, ",") {
		port, err := parsePort(p)
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	slices.Sort(ports)
	return slices.Compact(ports), nil
}

// parsePort accepts 1 to 65535 in plain decimal. strconv alone would take "+443" and "0443".
func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] < '1' || s[0] > '9' {
		return 0, fmt.Errorf("port %s, accepted are 1 to 65535", quote(s))
	}
	return uint16(n), nil
}

// parseRuleName is ParseName for what an operator writes: names outside ASCII are made A-labels
// (RFC 5891), but only if nothing else had to be mapped, so that the name in force is the name that was
// reviewed.
func parseRuleName(s string) (Name, error) {
	if !isASCII(s) {
		if len(s) > utf8.UTFMax*maxName { // A-labels are no shorter by more, and take quadratic time
			return Name{}, fmt.Errorf("name %s has %d octets, at most %d are accepted", quote(s), len(s), maxName)
		}
		a, err := toASCII(s)
		if err != nil {
			return Name{}, err
		}
		s = a
	}
	n, err := ParseName(s)
	if err != nil {
		return n, err
	}
	for label := range strings.SplitSeq(n.s, ".") {
		if label[0] == '-' || label[len(label)-1] == '-' {
			return Name{}, fmt.Errorf("label %q begins or ends with '-'", label)
		}
		if strings.HasPrefix(label, "xn--") {
			if _, err := strictIDNA.ToUnicode(label); err != nil || label == "xn--" {
				return Name{}, fmt.Errorf("label %q is no valid A-label (RFC 5890)", label)
			}
		}
	}
	return n, nil
}

// strictIDNA validates and converts but maps nothing. The profiles of package idna that map are made for
// what users type: they turn circled digits into an address.
var strictIDNA = idna.New(idna.ValidateLabels(true), idna.CheckHyphens(true), idna.CheckJoiners(true), idna.BidiRule(), idna.StrictDomainName(false))

func toASCII(s string) (string, error) {
	low := strings.Map(func(r rune) rune {
		l := unicode.ToLower(r)
		if r >= 0x80 && l < 0x80 {
			return r // the Kelvin sign is no k; leave it for the validation to refuse
		}
		return l
	}, s)
	a, err := strictIDNA.ToASCII(low)
	if err == nil {
		var back string
		if back, err = strictIDNA.ToUnicode(a); err == nil && back == low {
			return a, nil
		}
	}
	return "", fmt.Errorf("name %s has characters that are no part of a host name (RFC 5892), write the A-label form (xn--...)", quote(s))
}

func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}
