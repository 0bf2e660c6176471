package sandboxallow

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/plugin/whoami"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
)

// packer does what the DNS server's writer does after a handler, short of the system call.
type packer struct {
	test.ResponseWriter
	buf []byte
}

func (p *packer) WriteMsg(m *dns.Msg) error {
	b, err := m.PackBuffer(p.buf)
	p.buf = b[:cap(b)]
	return err
}

// BenchmarkServeDNS measures the handler, the scrubbing and the packing of a reply next to those of
// *whoami*, the smallest plugin that answers. "handler" is the handler alone.
func BenchmarkServeDNS(b *testing.B) {
	few := parseBlock(b, "answer 10.200.0.1\nallow example.com .github.com a.test b.test c.test d.test e.test f.test g.test h.test")
	var list strings.Builder
	for i := range 1_000_000 {
		fmt.Fprintf(&list, "host-%d.domain-%d.example\n", i, i%5000)
	}
	many := parseBlock(b, "answer 10.200.0.1\nallow example.com .github.com\nallow_list "+writeFile(b, "list", list.String()))

	silent := parseBlock(b, "answer 10.200.0.1\nallow example.com .github.com a.test b.test c.test d.test e.test f.test g.test h.test\nlog off")
	tests := []struct {
		name  string
		h     plugin.Handler
		qname string
	}{
		{"whoami", whoami.Whoami{}, "api.github.com."},
		{"allowed/rules=10", few, "api.github.com."},
		{"allowed/rules=1000000", many, "api.github.com."},
		{"allowed deep/rules=1000000", many, "host-4242.domain-4242.example."},
		{"denied/rules=10", few, "www.example.org."},
		{"denied/rules=10/log off", silent, "www.example.org."}, // what the folding of the log costs
		{"denied/rules=1000000", many, "www.domain-7.example."},
	}
	for _, edns := range []int{-1, 1232} {
		for _, tc := range tests {
			q := query(tc.qname, dns.TypeA, edns)
			b.Run(fmt.Sprintf("edns=%v/%s", edns >= 0, tc.name), func(b *testing.B) {
				w := &packer{buf: make([]byte, 4096)}
				ctx := context.Background()
				b.ReportAllocs()
				for b.Loop() {
					tc.h.ServeDNS(ctx, request.NewScrubWriter(q, w), q)
					if edns >= 0 {
						// The server reuses the record of the question in replies that have none.
						q.Extra = q.Extra[:1]
					}
				}
			})
			b.Run(fmt.Sprintf("edns=%v/%s/handler", edns >= 0, tc.name), func(b *testing.B) {
				w := &test.ResponseWriter{}
				ctx := context.Background()
				b.ReportAllocs()
				for b.Loop() {
					tc.h.ServeDNS(ctx, w, q)
				}
			})
		}
	}
}
