package learn

import (
	"bytes"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// entry is one decision as a log has it. Its bytes are part of the line that it was read from.
type entry struct {
	time    []byte // as in JSON: a number, or a string with its quotes; nil if the line has none
	msg     []byte
	layer   []byte
	client  []byte
	policy  []byte
	name    []byte
	verdict []byte
	reason  []byte
	port    uint16 // 0: a question of DNS, which has none

	upstream []byte // the address that was connected to, nothing if none was

	repeated   uint64 // decisions that the line stands for, if more than one
	suppressed uint64 // decisions of which the log has no more than their number
}

// maxCount bounds what one line says it stands for, so that no sum overflows.
const maxCount = 1 << 32

// kind is what a line is.
type kind uint8

const (
	other      kind = iota // no decision of ours
	decided                // the entry holds a decision
	suppressed             // the entry holds the number of decisions that were not logged
	malformed              // it looks like one and cannot be read
	unsure                 // of scan: decode has to tell
)

// logger is the name of Caddy's logger, and of CoreDNS's plugin.
const logger = "sandboxallow"

// parse reads a line. It counts only if it is from its first byte on what Caddy or the plugin write: what stands
// behind something else may be what a sandbox has printed or sent.
func (e *entry) parse(line []byte) kind {
	line = bytes.TrimRight(line, " \r\n")
	if len(line) > 0 && line[0] == '{' {
		return e.parseJSON(line)
	}
	if text, ok := pluginText(line); ok {
		return e.parsePairs(text)
	}
	return other
}

// pluginText returns what the plugin has written, behind "[INFO] plugin/sandboxallow: ".
func pluginText(line []byte) ([]byte, bool) {
	level, text, ok := bytes.Cut(line, []byte(" plugin/"+logger+": "))
	if !ok {
		return nil, false
	}
	switch string(level) {
	case "[DEBUG]", "[INFO]", "[WARNING]", "[ERROR]":
		return text, true
	}
	return nil, false
}

// complete tells a decision from what else we log.
func (e *entry) complete() kind {
	if e.suppressed > 0 {
		return suppressed
	}
	switch string(e.verdict) {
	case policy.Allow.String(), policy.Deny.String(), policy.WouldDeny.String():
	default:
		return other
	}
	if bytes.HasPrefix(e.msg, []byte("closed")) { // the end of what was decided before
		return other
	}
	if len(e.layer) == 0 {
		return malformed
	}
	e.repeated = max(e.repeated, 1)
	return decided
}

// admitted reports whether the client got through.
func (e *entry) admitted() bool { return string(e.verdict) != policy.Deny.String() }

// connected reports whether the client was connected to the name.
func (e *entry) connected() bool { return e.admitted() && e.port != 0 && len(e.upstream) > 0 }

// missing reports whether a rule would have let the client through.
func (e *entry) missing() bool {
	switch string(e.reason) {
	case policy.ReasonNotAllowed.String(), policy.ReasonPortNotAllowed.String():
		return true
	}
	return false
}
