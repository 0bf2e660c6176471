//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
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

// decided waits for the one decision with a message on a name behind a mark, of layer tls, and fails if it is
// not there or has not the fields that each one has.
func (g *gateway) decided(tb testing.TB, mark int, msg, name string) decision {
	tb.Helper()
	return g.decidedBy(tb, overTLS.layer, mark, msg, name)
}

// decidedBy is decided for any layer.
func (g *gateway) decidedBy(tb testing.TB, layer string, mark int, msg, name string) decision {
	tb.Helper()
	ds := g.decidedEach(tb, layer, mark, msg, name)
	// Denials that were folded come up to a second late: those of whoever came before may be among them.
	if len(ds) != 1 && msg != msgDenied {
		tb.Fatalf("%d decisions %q on %q, want 1", len(ds), msg, name)
	}
	return ds[len(ds)-1]
}

// decidedEach is decidedBy for a name that a client comes to several times in a row. It waits for the first.
func (g *gateway) decidedEach(tb testing.TB, layer string, mark int, msg, name string) (ds []decision) {
	tb.Helper()
	must(tb, 5*time.Second, fmt.Sprintf("a decision %q on %q of layer %s", msg, name, layer), func() bool {
		ds = nil
		for _, d := range g.decisions(mark) {
			if d.Msg == msg && d.Name == name && d.Layer == layer {
				ds = append(ds, d)
			}
		}
		return len(ds) > 0
	})
	for _, d := range ds {
		if !d.Client.IsValid() || d.Port == 0 || d.Duration <= 0 {
			tb.Errorf("decision %+v: client, port or duration is not what it should be", d)
		}
		if (d.Verdict == "allow") != (d.Reason == "") {
			tb.Errorf("decision %+v: a reason belongs to a denial, and only to a denial", d)
		}
	}
	return ds
}

// denied fails unless the gateway denied a name for a reason, on layer tls, and by the line of the policy that
// begins with rule; "" is by none.
func (g *gateway) denied(tb testing.TB, mark int, name, reason, rule string) {
	tb.Helper()
	g.deniedBy(tb, overTLS.layer, mark, name, reason, rule)
}

// deniedBy is denied for any layer.
func (g *gateway) deniedBy(tb testing.TB, layer string, mark int, name, reason, rule string) {
	tb.Helper()
	d := g.decidedBy(tb, layer, mark, msgDenied, name)
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
