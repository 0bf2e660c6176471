//go:build linux

package e2e

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"
)

// decision is a line of the gateway's decision log: a decision, or the end of a tunnel.
type decision struct {
	Level    string
	Logger   string
	Msg      string
	Layer    string
	Client   netip.Addr
	Policy   string
	Name     string
	Port     uint16
	Verdict  string
	Reason   string
	Rule     string // file:line
	Upstream string // address:port
	BytesIn  int64  `json:"bytes_in"`
	BytesOut int64  `json:"bytes_out"`
	Duration float64
	Error    string
}

// Messages of the decision log.
const (
	msgAllowed = "allowed"
	msgDenied  = "denied"
	msgClosed  = "closed"
	msgRevoked = "closed, no longer allowed"
)

// decisions returns the lines of the decision log behind a mark of caddy's journal.
func (g *gateway) decisions(mark int) (ds []decision) {
	for _, line := range g.caddy.log.lines(mark) {
		var d decision
		if json.Unmarshal([]byte(line), &d) == nil && d.Logger == "sandboxallow" && d.Verdict != "" {
			ds = append(ds, d)
		}
	}
	return ds
}

// decided waits for the one decision with a message on a name behind a mark, and fails if it is not there or
// has not the fields that each one has.
func (g *gateway) decided(tb testing.TB, mark int, msg, name string) decision {
	tb.Helper()
	var found []decision
	eventually(5*time.Second, func() bool {
		found = nil
		for _, d := range g.decisions(mark) {
			if d.Msg == msg && d.Name == name {
				found = append(found, d)
			}
		}
		return len(found) > 0
	})
	if len(found) != 1 {
		tb.Fatalf("%d decisions %q on %q, want 1", len(found), msg, name)
	}
	d := found[0]
	if d.Layer != "tls" || !d.Client.IsValid() || d.Port == 0 || d.Duration <= 0 {
		tb.Errorf("decision %+v: layer, client, port or duration is not what it should be", d)
	}
	if (d.Verdict == "allow") != (d.Reason == "") {
		tb.Errorf("decision %+v: a reason belongs to a denial, and only to a denial", d)
	}
	return d
}

// denied fails unless the gateway denied a name for a reason, and by the line of the policy that begins with
// rule; "" is by none.
func (g *gateway) denied(tb testing.TB, mark int, name, reason, rule string) {
	tb.Helper()
	d := g.decided(tb, mark, msgDenied, name)
	if d.Verdict != "deny" || d.Reason != reason {
		tb.Errorf("%s: verdict %q, reason %q, want deny, %q", name, d.Verdict, d.Reason, reason)
	}
	if want := g.line(rule); d.Rule != want {
		tb.Errorf("%s: rule %q, want %q (%q)", name, d.Rule, want, rule)
	}
	if d.Upstream != "" {
		tb.Errorf("%s: denied, but connected to %s", name, d.Upstream)
	}
}

// line returns file:line of the line of the policy that has a text, "" for "".
func (g *gateway) line(text string) string {
	if text == "" {
		return ""
	}
	for i, line := range strings.Split(g.document, "\n") {
		if strings.Contains(line, text) {
			return g.policyFile + ":" + strconv.Itoa(i+1)
		}
	}
	return "no line has " + text
}
