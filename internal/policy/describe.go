package policy

import (
	"slices"
	"strings"
)

// Reach is what a policy lets through, as its client may be told: where rules stand is not part of it.
type Reach struct {
	Policy  string
	Mode    Mode
	Ports   []uint16 // of rules without ports, and of open and learn; sorted
	Presets []string // whose rules are not among Rules
	Rules   []string // allow rules such as ".example.com:8443", in the order of the document
	More    bool     // there are more rules than were asked for
}

// Reach returns what the client's policy lets through, with the first rules of it, as many as most. It
// reports whether there is such a policy, and none that the listener names and the set lacks.
func (sel Selection) Reach(most int) (Reach, bool) {
	if !sel.valid() {
		return Reach{Policy: sel.Policy()}, false
	}
	p := sel.client
	r := Reach{Policy: p.name, Mode: p.mode, Ports: slices.Clone(p.ports)}
	preset := make([]bool, len(p.files))
	for i, file := range p.files {
		if name, ok := strings.CutPrefix(file, presetPlace); ok {
			preset[i] = true
			r.Presets = append(r.Presets, name)
		}
	}
	for i := range p.rules {
		rule := &p.rules[i]
		if rule.deny || preset[rule.file] {
			continue
		}
		if r.More = len(r.Rules) == most; r.More {
			break // a list may have a million
		}
		text, _ := strings.CutPrefix(string(p.appendRule(nil, rule)), "allow ")
		r.Rules = append(r.Rules, text)
	}
	return r, true
}

// presetPlace is what the place of a rule begins with that comes from a preset.
const presetPlace = "preset/"

// Place returns where a rule stands, "" and 0 for no rule. Whoever keeps that, and not the Rule, does not
// keep the policy in memory.
func (r Rule) Place() (file string, line int) {
	if r.IsZero() {
		return "", 0
	}
	rl := &r.p.rules[r.n-1]
	return r.p.files[rl.file], int(rl.line)
}
