package doctor

import (
	"context"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

const (
	doOneDNS = "start the sandbox with one --dns, the address of the gateway's CoreDNS"
	doCoreD  = "let no other server block of the Corefile, and no plugin before sandboxallow, answer the sandboxes"
)

// checkNameservers looks at whom the clients of a sandbox ask: our CoreDNS and nobody else.
func checkNameservers(ctx context.Context, s *surroundings) (fs []Finding) {
	if s.stubErr != nil {
		return failure(doOneDNS, "/etc/resolv.conf cannot be read: %s", why(s.stubErr))
	}
	if len(s.stub.servers) == 0 {
		fs = failure(doOneDNS, "no nameserver in /etc/resolv.conf: clients ask 127.0.0.1")
	}
	for i, server := range s.stub.servers {
		fs = append(fs, s.judge(ctx, server, i, "in /etc/resolv.conf")...)
	}
	for _, odd := range s.stub.odd {
		fs = append(fs, warning("remove the line", "nameserver %q in /etc/resolv.conf is no address", odd)...)
	}
	if !s.stub.docker() {
		return fs
	}
	for i, server := range s.stub.forwards {
		fs = append(fs, s.judge(ctx, server, i, "that Docker forwards to")...)
	}
	for _, server := range s.stub.byHost {
		fs = append(fs, failure(doOneDNS, "Docker asks %s in the network of the host for what is no container", server)...)
	}
	return fs
}

// judge asks a name server who it is. i is its place in the list that it stands in.
func (s *surroundings) judge(ctx context.Context, server netip.Addr, i int, where string) []Finding {
	at := netip.AddrPortFrom(server, dnsPort)
	r, err := s.askTXT(ctx, at, nobody)
	switch {
	case err == nil && ours(r):
	case i > 0:
		return failure(doOneDNS, "%s nameserver %s %s: clients ask all they have", ordinal(i), server, where)
	case err != nil:
		return failure(doOneDNS, "nameserver %s %s does not answer: %s", server, where, why(err))
	default:
		return failure(doOneDNS, "nameserver %s %s is not sandboxallow: it answers %s", server, where, dns.RcodeToString[r.Rcode])
	}

	text := blocked(r)
	if r, err = s.askTXT(ctx, at, somebody); err != nil {
		return failure(doCoreD, "nameserver %s is sandboxallow, but does not answer for %s: %s", server, somebody, why(err))
	}
	if !ours(r) {
		return failure(doCoreD, "nameserver %s is sandboxallow, but the answer for %s comes from elsewhere: %s",
			server, somebody, dns.RcodeToString[r.Rcode])
	}
	return s.speaks(server, text)
}

// speaks is the finding on a name server that is ours; text is what it says of a denied name.
func (s *surroundings) speaks(server netip.Addr, text string) []Finding {
	through := ""
	if server == dockerDNS {
		through = ", through Docker's DNS"
		if !s.stub.told {
			through += ", which does not write here where it forwards to: a second --dns would not show"
		}
	}
	reason, _, _ := strings.Cut(text, ":")
	switch {
	case reason == policy.ReasonNoPolicy.String():
		return warning("give the policy document a client line for it, or a policy without one",
			"nameserver %s is sandboxallow%s, and has no policy for this sandbox", server, through)
	case text == "":
		return ok("nameserver %s is sandboxallow%s", server, through)
	}
	return ok("nameserver %s is sandboxallow%s (%s)", server, through, text)
}

// ordinal names the second place of a list, and those behind it.
func ordinal(i int) string {
	if i == 1 {
		return "second"
	}
	return "further"
}
