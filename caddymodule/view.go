package caddymodule

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// What a dashboard shows at most of what a journal does not bound.
const (
	shownTunnels  = 100
	shownPolicies = 100
	shownPrefixes = 16 // of the clients of a policy
)

// view is what a dashboard shows: as a page, and in events as what has changed since. Its fields are text as
// it is shown, times as in RFC 3339. What a client chose is printable ASCII.
type view struct {
	Cursor    string         `json:"-"`
	Now       string         `json:"-"`
	Totals    totalsView     `json:"totals"`
	Clients   []clientView   `json:"clients,omitempty"` // in a page the latest first, in an event last
	Forgotten string         `json:"forgotten"`
	Decisions []decisionView `json:"decisions,omitempty"` // as the clients
	Gap       bool           `json:"gap,omitempty"`       // older decisions are missing
	Tunnels   *tunnelsView   `json:"tunnels,omitempty"`
	InForce   *inForceView   `json:"in_force,omitempty"`

	Blank blankView `json:"-"` // what makes rows for events
}

type totalsView struct {
	Begun     string `json:"begun"`
	Denied    string `json:"denied"`
	WouldDeny string `json:"would_deny"`
	Allowed   string `json:"allowed"`
	Open      string `json:"open"`
	In        string `json:"in"`
	Out       string `json:"out"`
}

type clientView struct {
	Client    string       `json:"client"`
	Policy    string       `json:"policy"`
	Denied    string       `json:"denied"`
	WouldDeny string       `json:"would_deny"`
	Allowed   string       `json:"allowed"`
	Denials   []denialView `json:"denials,omitempty"`
	Forgotten string       `json:"forgotten"`
}

type denialView struct {
	Key     string `json:"key"`
	Name    string `json:"name"`
	Port    string `json:"port"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason"`
	Count   string `json:"count"`
	Last    string `json:"last"`
	Hint    string `json:"hint"`   // what would have it allowed
	Remedy  string `json:"remedy"` // what the hint is: a line of a policy, advice, or that it is allowed by now
}

// What a hint can be.
const (
	remedyNone   = ""
	remedyLine   = "line"
	remedyAdvice = "advice"
	remedyDone   = "done"
)

type decisionView struct {
	Key      string `json:"key"`
	Time     string `json:"time"`
	Layer    string `json:"layer"`
	Client   string `json:"client"`
	Name     string `json:"name"`
	Port     string `json:"port"`
	Verdict  string `json:"verdict"`
	Outcome  string `json:"outcome"` // the verdict and the reason, for people
	Rule     string `json:"rule"`
	Upstream string `json:"upstream"`
	Error    string `json:"error"`
}

type tunnelsView struct {
	Rows []tunnelView `json:"rows"`
	More string       `json:"more"`
}

type tunnelView struct {
	Key      string `json:"key"`
	Client   string `json:"client"`
	Name     string `json:"name"`
	Port     string `json:"port"`
	Layer    string `json:"layer"`
	Upstream string `json:"upstream"`
	In       string `json:"in"`
	Out      string `json:"out"`
	Age      string `json:"age"`
}

type inForceView struct {
	Stale bool         `json:"stale"`
	Hash  string       `json:"hash"`
	Rows  []policyView `json:"rows"`
	More  string       `json:"more"`
}

type policyView struct {
	Name    string `json:"name"`
	Mode    string `json:"mode"`
	Rules   string `json:"rules"`
	Ports   string `json:"ports"`
	Clients string `json:"clients"`
}

type blankView struct {
	Client   clientView
	Denial   denialView
	Tunnel   tunnelView
	Policy   policyView
	Decision decisionView
}

// viewOf makes what there is to see of a past, of the tunnels, and of the policies that are in force.
func viewOf(p past, open []*openTunnel, store *policy.Store, now time.Time) view {
	set := store.Set()
	v := view{
		Now:       timeText(now),
		Totals:    totalsOf(p, open),
		Forgotten: moreText(p.forgotten, "client", "no longer kept"),
		Gap:       p.gap,
		Tunnels:   tunnelsOf(open, now),
		InForce:   inForceOf(set, store.Stale()),
	}
	for _, c := range p.clients {
		v.Clients = append(v.Clients, clientOf(set, c))
	}
	for i := range p.notes {
		v.Decisions = append(v.Decisions, decisionOf(&p.notes[i]))
	}
	return v
}

// latestFirst turns the order of events into that of a page.
func (v *view) latestFirst() {
	slices.Reverse(v.Decisions)
	slices.Reverse(v.Clients)
	for _, c := range v.Clients {
		slices.Reverse(c.Denials)
	}
}

func totalsOf(p past, open []*openTunnel) totalsView {
	t := p.totals
	for _, o := range open {
		t.in += o.counters.In.Load()
		t.out += o.counters.Out.Load()
	}
	return totalsView{
		Begun:  timeText(p.begun),
		Denied: countText(t.denied), WouldDeny: countText(t.wouldDeny), Allowed: countText(t.allowed),
		Open: countText(uint64(len(open))), In: bytesText(t.in), Out: bytesText(t.out),
	}
}

func clientOf(set *policy.Set, c pastClient) clientView {
	v := clientView{
		Client: addressText(c.addr), Policy: c.policy,
		Denied: countText(c.denied), WouldDeny: countText(c.wouldDeny), Allowed: countText(c.allowed),
		Forgotten: moreText(c.forgotten, "name", "no longer kept"),
	}
	for i := range c.denials {
		v.Denials = append(v.Denials, denialOf(set, c.addr, &c.denials[i]))
	}
	return v
}

func denialOf(set *policy.Set, client netip.Addr, d *pastDenial) denialView {
	v := denialView{
		Name: decision.Printable(d.name), Port: portText(d.port), Verdict: d.verdict.String(), Reason: d.reason.String(),
		Count: countText(d.count), Last: timeText(d.at),
	}
	v.Key = v.Name + ":" + v.Port
	v.Hint, v.Remedy = d.hint(set, client)
	return v
}

// hint returns what would have the name allowed as the policies are now.
func (d *pastDenial) hint(set *policy.Set, client netip.Addr) (text, remedy string) {
	switch d.reason {
	case policy.ReasonNotAllowed, policy.ReasonDenied, policy.ReasonPortNotAllowed, policy.ReasonNoPolicy:
	default:
		return "", remedyNone // no policy decided
	}
	n, err := policy.ParseName(d.name)
	if err != nil {
		return "", remedyNone
	}
	switch now := set.Select(client, d.listener).Lookup(n, d.port); {
	case now.Verdict == policy.Allow:
		return "allowed by now", remedyDone
	case now.Reason == policy.ReasonDenied:
		return now.Hint(n, d.port), remedyAdvice
	case now.Reason == policy.ReasonNoPolicy:
		return "no policy is for this client", remedyAdvice
	default:
		return now.Hint(n, d.port), remedyLine
	}
}

func decisionOf(n *note) decisionView {
	return decisionView{
		Key: strconv.FormatUint(n.change, 10), Time: timeText(n.at), Layer: n.layer.String(), Client: addressText(n.client),
		Name: decision.Printable(n.name()), Port: portText(n.port), Verdict: n.verdict.String(), Outcome: n.outcome(),
		Rule: n.rule(), Upstream: upstreamText(n.upstream), Error: decision.Printable(n.detail),
	}
}

func (n *note) outcome() string {
	switch {
	case n.revoked:
		return "closed: " + n.reason.String()
	case n.verdict == policy.Allow:
		return "allowed"
	case n.verdict == policy.WouldDeny:
		return "would be denied: " + n.reason.String()
	}
	return n.reason.String()
}

// tunnelsOf shows those that were opened last.
func tunnelsOf(open []*openTunnel, now time.Time) *tunnelsView {
	slices.SortFunc(open, func(a, b *openTunnel) int { return cmp.Compare(b.number, a.number) })
	v := &tunnelsView{Rows: []tunnelView{}}
	for _, t := range open[:min(len(open), shownTunnels)] {
		v.Rows = append(v.Rows, tunnelView{
			Key: strconv.FormatUint(t.number, 10), Client: addressText(t.client), Layer: t.layer.String(),
			Name: t.name.String(), Port: portText(t.port), Upstream: upstreamText(t.upstream),
			In: bytesText(t.counters.In.Load()), Out: bytesText(t.counters.Out.Load()),
			Age: ageText(now.Sub(t.start)),
		})
	}
	v.More = moreText(uint64(len(open)-len(v.Rows)), "tunnel", "opened before")
	return v
}

func inForceOf(set *policy.Set, stale bool) *inForceView {
	all := set.Overview()
	v := &inForceView{Stale: stale, Hash: set.Hash(), Rows: []policyView{}}
	for _, o := range all[:min(len(all), shownPolicies)] {
		v.Rows = append(v.Rows, policyView{
			Name: o.Name, Mode: o.Mode.String(), Rules: countText(uint64(o.Rules)), Ports: portsText(o.Ports),
			Clients: clientsText(o.Clients),
		})
	}
	v.More = moreText(uint64(len(all)-len(v.Rows)), "policy", "")
	return v
}

func clientsText(prefixes []netip.Prefix) string {
	if len(prefixes) == 0 {
		return "all others"
	}
	var words []string
	for _, p := range prefixes[:min(len(prefixes), shownPrefixes)] {
		if p.IsSingleIP() {
			words = append(words, p.Addr().String())
		} else {
			words = append(words, p.String())
		}
	}
	if more := len(prefixes) - len(words); more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, " ")
}

func portsText(ports []uint16) string {
	words := make([]string, len(ports))
	for i, p := range ports {
		words[i] = portText(p)
	}
	return strings.Join(words, " ")
}

func portText(port uint16) string {
	if port == 0 {
		return ""
	}
	return strconv.Itoa(int(port))
}

func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return "unknown"
	}
	return a.String()
}

func upstreamText(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// moreText tells of what is not shown, "" if there is nothing.
func moreText(n uint64, what, why string) string {
	if n == 0 {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("and %s more %s %s", countText(n), english.PluralWord(int(n), what, ""), why))
}

func timeText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func countText(n uint64) string { return humanize.Comma(int64(n)) }

func bytesText(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }

// ageText is coarse, so that it does not change all the time.
func ageText(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", max(d, 0)/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d d", d/(24*time.Hour))
}
