package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Set is the compiled policies of one source. It is immutable.
type Set struct {
	policies []*Policy
	byName   map[string]*Policy
	clients  clientTable
	fallback *Policy // the policy without a client line, nil if there is none
	hash     string
	warnings []string
}

// Load reads and compiles a source. Its error says file:line and what would be accepted.
func Load(src Source) (*Set, error) {
	_, set, err := src.load()
	return set, err
}

// Hash returns 64 hex digits that are the same wherever the same policies are in force: over the
// directives and rules in the order of the document, presets and lists included; comments, blanks and
// the spelling of names do not count.
func (s *Set) Hash() string { return s.hash }

// Warnings returns what deserves a look, each with file:line.
func (s *Set) Warnings() []string { return s.warnings }

// HasPolicy reports whether the set has a policy of that name.
func (s *Set) HasPolicy(name string) bool { return s.byName[name] != nil }

// Policies returns the names of the policies in the order of the document.
func (s *Set) Policies() []string {
	names := make([]string, len(s.policies))
	for i, p := range s.policies {
		names[i] = p.name
	}
	return names
}

// Rules returns the number of rules of all policies.
func (s *Set) Rules() int {
	n := 0
	for _, p := range s.policies {
		n += len(p.rules)
	}
	return n
}

// compiler makes a Set of a snapshot.
type compiler struct {
	snapshot *snapshot
	set      *Set
}

func (s *snapshot) compile() (*Set, error) {
	if s.err != nil {
		return nil, s.err
	}
	c := &compiler{snapshot: s, set: &Set{byName: make(map[string]*Policy)}}
	if s.inline {
		if err := c.policy(Line{}, defaultPolicy, s.lines); err != nil {
			return nil, err
		}
	} else if err := c.document(s.lines); err != nil {
		return nil, err
	}
	c.set.hash = c.set.sum()
	return c.set, nil
}

// defaultPolicy is the name of a policy that stands inline.
const defaultPolicy = "default"

const policyForm = "accepted is: policy NAME {"

func (c *compiler) document(lines []Line) error {
	for len(lines) > 0 {
		head := lines[0]
		switch {
		case head.Words[0] != "policy":
			return head.errorf("unknown word %s, %s", quote(head.Words[0]), policyForm)
		case len(head.Words) != 3 || head.Words[2] != "{":
			return head.errorf("policy line with %d words, %s", len(head.Words), policyForm)
		case !ValidPolicyName(head.Words[1]):
			return head.errorf("policy name %s, accepted are 1 to 63 letters, digits, '-' and '_'", quote(head.Words[1]))
		}
		end := slices.IndexFunc(lines, func(l Line) bool { return slices.Equal(l.Words, []string{"}"}) })
		if end < 0 {
			return head.errorf("policy %q is not closed, accepted is a last line with } alone", head.Words[1])
		}
		if err := c.policy(head, head.Words[1], lines[1:end]); err != nil {
			return err
		}
		lines = lines[end+1:]
	}
	if len(c.set.policies) == 0 {
		return fmt.Errorf("%s:1: document without a policy, %s", c.snapshot.files[0].path, policyForm)
	}
	return nil
}

// ValidPolicyName reports whether a policy can have the name: 1 to 63 letters, digits, '-' and '_'.
func ValidPolicyName(s string) bool {
	for _, c := range []byte(s) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return 0 < len(s) && len(s) <= 63
}

var defaultPorts = []uint16{80, 443}

// policy compiles the body of one policy.
func (c *compiler) policy(head Line, name string, body []Line) error {
	if c.set.byName[name] != nil {
		return head.errorf("second policy of the name %q", name)
	}
	b := &builder{
		compiler: c,
		p:        &Policy{name: name, portSets: [][]uint16{nil}},
		ports:    make(map[string]uint32),
	}
	for _, l := range body {
		if err := b.directive(l); err != nil {
			return err
		}
	}
	p := b.p
	p.names = string(b.names)
	if p.ports == nil {
		p.ports = defaultPorts
	}
	if len(p.clients) == 0 {
		if c.set.fallback != nil {
			return head.errorf("second policy without a client line; the first is %q", c.set.fallback.name)
		}
		c.set.fallback = p
	}
	p.compile()
	c.set.policies = append(c.set.policies, p)
	c.set.byName[name] = p
	return nil
}

// builder collects what the body of a policy says.
type builder struct {
	*compiler
	p     *Policy
	mode  bool              // there was a mode line
	ports map[string]uint32 // index of a set of ports in p.portSets
	names []byte            // p.names, as yet
}

const directives = "accepted are mode, preset, allow, deny, allow_list, ports, client and private"

func (b *builder) directive(l Line) error {
	if len(l.Words) == 0 {
		return l.errorf("line without a word, %s", directives)
	}
	args := l.Words[1:]
	if len(args) == 0 {
		switch l.Words[0] {
		case "mode", "preset", "allow", "deny", "allow_list", "ports", "client", "private":
			return l.errorf("%s without an argument", l.Words[0])
		}
	}
	switch l.Words[0] {
	case "mode":
		return b.setMode(l, args)
	case "ports":
		return b.setPorts(l, args)
	case "preset":
		return each(args, func(name string) error { return b.preset(l, name) })
	case "allow", "deny":
		file, err := b.file(l, l.File)
		if err != nil {
			return err
		}
		return each(args, func(s string) error { return b.rule(file, l.Line, s, l.Words[0] == "deny") })
	case "allow_list":
		return each(args, func(path string) error { return b.list(l, path) })
	case "client":
		return each(args, func(s string) error { return b.client(l, s) })
	case "private":
		return each(args, func(s string) error { return b.private(l, s) })
	}
	return l.errorf("unknown word %s, %s", quote(l.Words[0]), directives)
}

func each(args []string, f func(string) error) error {
	for _, a := range args {
		if err := f(a); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) setMode(l Line, args []string) error {
	if b.mode {
		return l.errorf("second mode line")
	}
	b.mode = true
	if len(args) == 1 {
		for _, m := range []Mode{Strict, Open, Learn} {
			if args[0] == m.String() {
				b.p.mode = m
				return nil
			}
		}
	}
	return l.errorf("mode %s, accepted are strict, open and learn", quote(strings.Join(args, " ")))
}

func (b *builder) setPorts(l Line, args []string) error {
	if b.p.ports != nil {
		return l.errorf("second ports line")
	}
	for _, a := range args {
		port, err := parsePort(a)
		if err != nil {
			return l.errorf("%w", err)
		}
		b.p.ports = append(b.p.ports, port)
	}
	slices.Sort(b.p.ports)
	b.p.ports = slices.Compact(b.p.ports)
	return nil
}

// file returns the index of a file in which rules stand.
func (b *builder) file(l Line, path string) (uint16, error) {
	if n := len(b.p.files); n > 0 && b.p.files[n-1] == path {
		return uint16(n - 1), nil
	}
	if i := slices.Index(b.p.files, path); i >= 0 {
		return uint16(i), nil
	}
	if len(b.p.files) == 1<<16 {
		return 0, l.errorf("policy with more than %d files", 1<<16)
	}
	b.p.files = append(b.p.files, path)
	return uint16(len(b.p.files) - 1), nil
}

func (b *builder) rule(file uint16, line int, text string, deny bool) error {
	spec, err := parseRule(text)
	if err != nil {
		return fmt.Errorf("%s:%d: %w", b.p.files[file], line, err)
	}
	if len(b.p.rules) == maxRules {
		return fmt.Errorf("%s:%d: more than %d rules", b.p.files[file], line, maxRules)
	}
	if uint64(len(b.names)) > math.MaxUint32-maxName {
		return fmt.Errorf("%s:%d: rules whose names have more than 4 GiB", b.p.files[file], line)
	}
	r := rule{
		at: uint32(len(b.names)), size: uint8(len(spec.name.s)),
		line: uint32(line), file: file, scope: spec.scope, deny: deny,
	}
	b.names = append(b.names, spec.name.s...)
	if spec.ports != nil {
		r.ports = b.portSet(spec.ports)
	}
	if !deny {
		for _, w := range ruleWarnings(spec) {
			b.set.warnings = append(b.set.warnings, fmt.Sprintf("%s:%d: %s", b.p.files[file], line, w))
		}
	}
	b.p.rules = append(b.p.rules, r)
	return nil
}

// portSet returns the index of a set of ports in the policy; equal ones are held once.
func (b *builder) portSet(ports []uint16) uint32 {
	key := fmt.Sprint(ports)
	i, ok := b.ports[key]
	if !ok {
		i = uint32(len(b.p.portSets))
		b.p.portSets = append(b.p.portSets, ports)
		b.ports[key] = i
	}
	return i
}

func (b *builder) list(l Line, path string) error {
	f := b.snapshot.file(l.path(path))
	if err := checkText(f.path, f.data); err != nil {
		return err
	}
	file, err := b.file(l, f.path)
	if err != nil {
		return err
	}
	b.p.rules = slices.Grow(b.p.rules, strings.Count(f.data, "\n"))
	b.names = slices.Grow(b.names, len(f.data))
	return listLines(f.data, func(line int, rule string) error {
		if strings.ContainsAny(rule, " \t") {
			return fmt.Errorf("%s:%d: several words %s, accepted is one rule a line", f.path, line, quote(rule))
		}
		return b.rule(file, line, rule, false)
	})
}

func (b *builder) preset(l Line, name string) error {
	parts, ok := presetLists(name)
	if !ok {
		return l.errorf("unknown preset %s, accepted are %s", quote(name), strings.Join(Presets(), ", "))
	}
	for _, part := range parts {
		file, err := b.file(l, presetPlace+part.name)
		if err != nil {
			return err
		}
		if err := listLines(part.text, func(line int, rule string) error { return b.rule(file, line, rule, false) }); err != nil {
			return l.errorf("%w", err)
		}
	}
	return nil
}

func (b *builder) client(l Line, s string) error {
	if b.snapshot.inline {
		return l.errorf("client lines need a policy file, an inline policy is for every client")
	}
	pr, err := ParsePrefix(s)
	if err != nil {
		return l.errorf("client %w", err)
	}
	if p := b.set.clients.byPrefix[pr]; p != nil {
		return l.errorf("second policy for the client %s; the first is %q", pr, p.name)
	}
	b.set.clients.add(pr, b.p)
	b.p.clients = append(b.p.clients, pr)
	return nil
}

func (b *builder) private(l Line, s string) error {
	pr, err := ParsePrefix(s)
	if err != nil {
		return l.errorf("private %w", err)
	}
	n, only := metadataIn(pr)
	if only {
		return l.errorf("private %s names cloud metadata addresses only, they are never dialled", pr)
	}
	if n > 0 {
		b.set.warnings = append(b.set.warnings, fmt.Sprintf("%s: private %s has cloud metadata addresses in it, they stay denied", l.place(), pr))
	}
	b.p.private = append(b.p.private, pr)
	return nil
}

// ParsePrefix accepts a prefix without host bits, such as 10.0.0.0/8, or a single address.
func ParsePrefix(s string) (netip.Prefix, error) {
	const form = "accepted are 10.0.0.0/8, 10.0.0.1, fd00::/8 and fd00::1"
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	pr, err := netip.ParsePrefix(s)
	if err != nil || pr.Addr().Is4In6() {
		return pr, fmt.Errorf("%s is no address prefix, %s", quote(s), form)
	}
	if pr != pr.Masked() {
		return pr, fmt.Errorf("%s has host bits, write %s", quote(s), pr.Masked())
	}
	return pr, nil
}

// sum hashes what the policies say, not how it is written.
func (s *Set) sum() string {
	h := sha256.New()
	buf := make([]byte, 0, 64<<10)
	for _, p := range s.policies {
		buf = fmt.Appendf(buf, "policy %s\nmode %s\nports %v\n", p.name, p.mode, p.ports)
		for _, pr := range p.clients {
			buf = fmt.Appendf(buf, "client %s\n", pr)
		}
		for _, pr := range p.private {
			buf = fmt.Appendf(buf, "private %s\n", pr)
		}
		for i := range p.rules {
			buf = append(p.appendRule(buf, &p.rules[i]), '\n')
			if len(buf) > 60<<10 {
				h.Write(buf)
				buf = buf[:0]
			}
		}
	}
	h.Write(buf)
	return hex.EncodeToString(h.Sum(nil))
}

// appendRule appends the canonical text of a rule, such as "allow .example.com:443,8443".
func (p *Policy) appendRule(b []byte, r *rule) []byte {
	if r.deny {
		b = append(b, "deny "...)
	} else {
		b = append(b, "allow "...)
	}
	switch r.scope {
	case suffix:
		b = append(b, '.')
	case below:
		b = append(b, "*."...)
	}
	b = append(b, p.ruleName(r)...)
	for i, port := range p.portSets[r.ports] {
		if i == 0 {
			b = append(b, ':')
		} else {
			b = append(b, ',')
		}
		if port == anyPort {
			b = append(b, '*')
		} else {
			b = strconv.AppendUint(b, uint64(port), 10)
		}
	}
	return b
}

// String returns "file:line", "" for no rule.
func (r Rule) String() string {
	if r.IsZero() {
		return ""
	}
	rl := &r.p.rules[r.n-1]
	return r.p.files[rl.file] + ":" + strconv.FormatUint(uint64(rl.line), 10)
}

// Text returns the rule in its canonical form, such as "allow .example.com:8443", "" for no rule.
func (r Rule) Text() string {
	if r.IsZero() {
		return ""
	}
	return string(r.p.appendRule(nil, &r.p.rules[r.n-1]))
}
