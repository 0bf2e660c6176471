package caddymodule

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// toldRules is how many rules of its policy a client is told. Policies have up to a million.
const toldRules = 200

// welcome is what a client gets that asks the gateway for nothing but itself: what this is, and what the
// policy for its address lets through.
type welcome struct {
	Gateway string   `json:"gateway"` // sandboxallow
	Client  string   `json:"client"`
	Policy  string   `json:"policy"` // "" if none is for the client
	Mode    string   `json:"mode,omitempty"`
	Ports   []uint16 `json:"ports,omitempty"` // of rules without ports
	Presets []string `json:"presets,omitempty"`
	Allow   []string `json:"allow,omitempty"`
	More    bool     `json:"more,omitempty"` // there are more rules
	Why     string   `json:"why"`            // the name whose TXT record says why NAME is denied
}

// whyName is answered by the CoreDNS plugin.
const whyName = "NAME.why.sandboxallow"

// welcome answers a request for / of the gateway itself: one whose Host is the very address that the client
// connected to. It is no decision, as nobody is let through. It reports whether the request was one.
func (h *HTTPHandler) welcome(w http.ResponseWriter, r *http.Request) bool {
	if h.ForwardProxy || r.Method != http.MethodGet && r.Method != http.MethodHead || r.URL.Path != "/" || !h.asksForGateway(r) {
		return false
	}
	client := clientOfRequest(r)
	reach, ok := h.app.store.Set().Select(client, h.Policy).Reach(toldRules)
	page := welcome{Gateway: "sandboxallow", Client: addressText(client), Why: whyName}
	if ok {
		page.Policy, page.Mode, page.Ports = reach.Policy, reach.Mode.String(), reach.Ports
		page.Presets, page.Allow, page.More = reach.Presets, reach.Rules, reach.More
	}
	head := w.Header()
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Cache-Control", "no-store")
	head.Set("Vary", "Accept")
	if prefersJSON(r) {
		head.Set("Content-Type", typeJSON)
		json.NewEncoder(w).Encode(page) // an error is that of a client that has gone
		return true
	}
	head.Set("Content-Type", typeText+"; charset=utf-8")
	io.WriteString(w, page.text(reach.Mode, h.Policy))
	return true
}

// asksForGateway reports whether the Host of a request is the address that the client connected to, on the
// port that it connected to, or on that which this handler takes for it.
func (h *HTTPHandler) asksForGateway(r *http.Request) bool {
	local := localAddrOf(r)
	port := h.UpstreamPort
	if port == 0 {
		port = portOf(local)
	}
	asked, err := netip.ParseAddrPort(r.Host)
	if err != nil {
		host := strings.TrimSuffix(strings.TrimPrefix(r.Host, "["), "]")
		addr, err := netip.ParseAddr(host)
		if err != nil || addr.Is6() != strings.HasPrefix(r.Host, "[") {
			return false
		}
		asked = netip.AddrPortFrom(addr, httpPort)
	}
	return asked.Addr().IsValid() && asked.Addr() == addrOf(local) && (asked.Port() == port || asked.Port() == portOf(local))
}

// text is the page for people.
func (p *welcome) text(mode policy.Mode, listener string) string {
	var b strings.Builder
	b.WriteString("This is sandboxallow, the way out of this sandbox. It leads to the names that a policy allows, and\n" +
		"nowhere else.\n\n")
	fmt.Fprintf(&b, "your address  %s\n", p.Client)
	if p.Policy == "" {
		b.WriteString("your policy   none, so everything is denied\n")
		return b.String()
	}
	fmt.Fprintf(&b, "your policy   %s, mode %s\n", p.Policy, p.Mode)
	if listener != "" && listener != p.Policy {
		fmt.Fprintf(&b, "              and of that only what the policy %s of this listener allows too\n", listener)
	}
	fmt.Fprintf(&b, "ports         %s, unless a rule names its own\n\nIt allows, but for what it denies:\n\n", portsText(p.Ports))
	if mode != policy.Strict {
		b.WriteString("    any public name\n")
	}
	for _, name := range p.Presets {
		fmt.Fprintf(&b, "    the preset %s\n", name)
	}
	for _, rule := range p.Allow {
		fmt.Fprintf(&b, "    %s\n", rule)
	}
	switch {
	case p.More:
		b.WriteString("    and more\n")
	case mode == policy.Strict && len(p.Presets)+len(p.Allow) == 0:
		b.WriteString("    nothing\n")
	}
	fmt.Fprintf(&b, "\nexample.com is that name only, .example.com also what is below it, *.example.com only what is below it.\n\n"+
		"Why a name is denied, and what would allow it, the name server says:\n\n    dig +short TXT %s\n", p.Why)
	return b.String()
}
