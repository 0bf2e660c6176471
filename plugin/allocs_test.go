package sandboxallow

import (
	"context"
	"net"
	"testing"

	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

// silent is a writer that keeps nothing, and allocates nothing for the address of the client either.
type silent struct{ test.ResponseWriter }

func (*silent) WriteMsg(*dns.Msg) error { return nil }
func (*silent) RemoteAddr() net.Addr    { return silentAddr }

var silentAddr = &net.UDPAddr{IP: net.IPv4(10, 240, 0, 1), Port: 40212}

// TestAllocs holds what a question allocates, whatever the number of rules. What a line of the log does is held by
// internal/decision.
func TestAllocs(t *testing.T) {
	s := parseBlock(t, "answer 10.200.0.1\nallow example.com .github.com\nlog off")
	const (
		message = 1 // the reply with all that is in it, which is not pooled: see type reply
		text    = 1 // of the Extended DNS Error, which has the name in it
	)
	for _, tc := range []struct {
		name  string
		qname string
		qtype uint16
		edns  int
		want  float64
	}{
		{"allowed", "api.github.com.", dns.TypeA, -1, message},
		{"allowed, EDNS", "api.github.com.", dns.TypeA, 1232, message},
		{"allowed, no data", "api.github.com.", dns.TypeAAAA, -1, message},
		{"denied", "www.example.org.", dns.TypeA, -1, message},
		{"denied, EDNS", "www.example.org.", dns.TypeA, 1232, message + text},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := query(tc.qname, tc.qtype, tc.edns)
			w, ctx := new(silent), context.Background()
			if got := testing.AllocsPerRun(1000, func() { s.ServeDNS(ctx, w, q) }); got != tc.want {
				t.Errorf("%v allocations, want %v", got, tc.want)
			}
		})
	}
}
