package sandboxallow

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
)

// query makes a question. edns is the size in its OPT record, -1 for no OPT record.
func query(qname string, qtype uint16, edns int) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(qname, qtype)
	if edns >= 0 {
		o := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		o.SetUDPSize(uint16(edns))
		m.Extra = append(m.Extra, o)
	}
	return m
}

// ask sends r through the wire format and the writer of the DNS server to s, and returns what was written
// as a client reads it, nil if nothing was, and the rcode that ServeDNS returned.
func ask(t testing.TB, s *SandboxAllow, client string, r *dns.Msg) (*dns.Msg, int) {
	t.Helper()
	r = overWire(t, r)
	rec := dnstest.NewRecorder(&test.ResponseWriter{RemoteIP: client})
	rcode, err := s.ServeDNS(context.Background(), request.NewScrubWriter(r, rec), r)
	if err != nil {
		t.Fatalf("ServeDNS: %v", err)
	}
	if rec.Msg == nil {
		return nil, rcode
	}
	return overWire(t, rec.Msg), rcode
}

func overWire(t testing.TB, m *dns.Msg) *dns.Msg {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatalf("pack: %v, for\n%v", err, m)
	}
	m = new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		t.Fatalf("unpack: %v", err)
	}
	return m
}

// want is what a reply should be. Answers are in the form "A 10.200.0.1".
type want struct {
	rcode   int
	answers string
	ede     string // how the text of the Extended DNS Error begins, "" for no such option
}

func nodata() want                  { return want{} }
func nxdomain() want                { return want{rcode: dns.RcodeNameError} }
func gateway() want                 { return want{answers: "A 10.200.0.1"} }
func blocked(w want, s string) want { w.ede = s; return w }

// check holds got against w and against what is true of every reply to q.
func (w want) check(t testing.TB, q, got *dns.Msg) {
	t.Helper()
	if got == nil {
		t.Fatal("got no reply")
	}
	if got.Rcode != w.rcode {
		t.Errorf("got rcode %s, want %s", dns.RcodeToString[got.Rcode], dns.RcodeToString[w.rcode])
	}
	if a := answers(got); a != w.answers {
		t.Errorf("got answers %q, want %q", a, w.answers)
	}
	if got.Id != q.Id || !got.Response || got.Opcode != q.Opcode || len(got.Question) != 1 || got.Question[0] != q.Question[0] {
		t.Errorf("got header and question\n%v\nfor\n%v", got, q)
	}
	if !got.Authoritative || !got.RecursionAvailable {
		t.Errorf("got AA %v and RA %v, want both", got.Authoritative, got.RecursionAvailable)
	}
	if got.RecursionDesired != q.RecursionDesired {
		t.Errorf("got RD %v, want %v", got.RecursionDesired, q.RecursionDesired)
	}
	if got.Truncated {
		t.Error("got a truncated reply")
	}
	for _, rr := range got.Answer {
		if rr.Header().Name != q.Question[0].Name {
			t.Errorf("got owner %q, want %q", rr.Header().Name, q.Question[0].Name)
		}
	}
	if n := packedLen(t, got); n > dns.MinMsgSize {
		t.Errorf("got %d octets, want at most %d", n, dns.MinMsgSize)
	}
	checkSOA(t, q, got)
	checkOPT(t, q, got, w.ede)
}

func answers(m *dns.Msg) string {
	var b []string
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			b = append(b, "A "+rr.A.String())
		case *dns.AAAA:
			b = append(b, "AAAA "+rr.AAAA.String())
		case *dns.TXT:
			b = append(b, `TXT "`+strings.Join(rr.Txt, `" "`)+`"`)
		default:
			b = append(b, rr.String())
		}
	}
	return strings.Join(b, ", ")
}

// packedLen is the length of m as a server sends it where size matters.
func packedLen(t testing.TB, m *dns.Msg) int {
	t.Helper()
	m = m.Copy()
	m.Compress = true
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return len(b)
}

func checkSOA(t testing.TB, q, got *dns.Msg) {
	t.Helper()
	if len(got.Answer) > 0 {
		if len(got.Ns) > 0 {
			t.Errorf("got authority %v with an answer", got.Ns)
		}
		return
	}
	if len(got.Ns) != 1 {
		t.Fatalf("got %d authority records, want one SOA", len(got.Ns))
	}
	soa, ok := got.Ns[0].(*dns.SOA)
	if !ok {
		t.Fatalf("got authority %v, want one SOA", got.Ns[0])
	}
	if !dns.IsSubDomain(soa.Hdr.Name, q.Question[0].Name) {
		t.Errorf("got SOA of %q, want one at or above %q", soa.Hdr.Name, q.Question[0].Name)
	}
	if soa.Hdr.Ttl != soa.Minttl {
		t.Errorf("got SOA with TTL %d and minimum %d, want equal ones", soa.Hdr.Ttl, soa.Minttl)
	}
}

func checkOPT(t testing.TB, q, got *dns.Msg, ede string) {
	t.Helper()
	asked := q.IsEdns0()
	if asked == nil {
		if len(got.Extra) > 0 {
			t.Errorf("got additional records %v for a question without OPT", got.Extra)
		}
		return
	}
	if len(got.Extra) != 1 {
		t.Fatalf("got %d additional records, want one OPT", len(got.Extra))
	}
	o := got.IsEdns0()
	if o == nil {
		t.Fatalf("got additional record %v, want an OPT", got.Extra[0])
	}
	if o.Version() != 0 || o.UDPSize() < dns.MinMsgSize {
		t.Errorf("got EDNS version %d and size %d, want 0 and at least %d", o.Version(), o.UDPSize(), dns.MinMsgSize)
	}
	if o.Do() != asked.Do() {
		t.Errorf("got DO %v, want %v", o.Do(), asked.Do())
	}
	var text string
	for _, opt := range o.Option {
		e, ok := opt.(*dns.EDNS0_EDE)
		if !ok || e.InfoCode != dns.ExtendedErrorCodeBlocked {
			t.Errorf("got option %v, want none but EDE Blocked", opt)
			continue
		}
		text = e.ExtraText
	}
	if !strings.HasPrefix(text, ede) || (ede == "") != (text == "") {
		t.Errorf("got EDE %q, want %q", text, ede)
	}
}

const (
	label60 = "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff"
	label63 = label60 + "ggg"
)

// TestCases asks a plugin what the cases of the project say. A test has the id of its case; where a case
// has several questions, each is a test below it.
func TestCases(t *testing.T) {
	const edns = 1232
	// The name of 255 octets in wire format that ends in .github.com.
	long := label63 + "." + label63 + "." + label63 + "." + label60[:253-3*64-len(".github.com")] + ".github.com."

	tests := []struct {
		id    string
		body  string // "": p0
		qname string
		qtype uint16
		edns  int
		want  want
	}{
		{"dns-001", "", "example.com.", dns.TypeA, -1, gateway()},
		{"dns-002", "", "www.example.com.", dns.TypeA, edns, blocked(nxdomain(), "not_allowed: www.example.com is not in policy default")},
		{"dns-003", "", "github.com.", dns.TypeA, -1, gateway()},
		{"dns-004", "", "a.b.c.github.com.", dns.TypeA, -1, gateway()},
		{"dns-006/apex", "", "svc.example.", dns.TypeA, edns, nodata()},
		{"dns-006/one label", "", "a.svc.example.", dns.TypeA, -1, gateway()},
		{"dns-006/two labels", "", "a.b.svc.example.", dns.TypeA, -1, gateway()},
		{"dns-007/com", "", "com.", dns.TypeA, edns, nodata()},
		{"dns-007/svc.example NS", "", "svc.example.", dns.TypeNS, edns, nodata()},
		{"dns-007/example", "", "example.", dns.TypeAAAA, edns, nodata()},
		{"dns-011", "", "NoT-LiStEd.TeSt.", dns.TypeA, -1, nxdomain()},
		{"dns-011/allowed", "", "eXaMpLe.CoM.", dns.TypeA, -1, gateway()},
		{"dns-012", "answer 10.200.0.1\nallow kernel.org", `\226\132\170ernel.org.`, dns.TypeA, edns, blocked(nxdomain(), "bad_name: ")},
		{"dns-014/A", "", ".", dns.TypeA, edns, nodata()},
		{"dns-014/NS", "", ".", dns.TypeNS, -1, nodata()},
		{"dns-015/denied", "", label63 + "." + label63 + "." + label63 + "." + label63[:61] + ".", dns.TypeA, edns, blocked(nxdomain(), "not_allowed")},
		{"dns-015/allowed", "", long, dns.TypeA, edns, gateway()},
		{"dns-016/_dmarc", "", "_dmarc.github.com.", dns.TypeA, -1, gateway()},
		{"dns-016/my_host", "", "my_host.github.com.", dns.TypeA, -1, gateway()},
		{"dns-017/A-label", "answer 10.200.0.1\nallow bücher.example", "xn--bcher-kva.example.", dns.TypeA, -1, gateway()},
		{"dns-017/U-label", "answer 10.200.0.1\nallow bücher.example", `b\195\188cher.example.`, dns.TypeA, edns, blocked(nxdomain(), "bad_name: ")},
		{"dns-019/expanded", "", "example.com.corp.internal.", dns.TypeA, -1, nxdomain()},
		{"dns-019/as written", "", "example.com.", dns.TypeA, -1, gateway()},
		{"dns-020", "", "api.github.com.github.com.", dns.TypeA, -1, gateway()},
		{"dns-023", "", "example.com.", dns.TypeAAAA, edns, nodata()},
		{"dns-025", p0 + "\nanswer6", "example.com.", dns.TypeAAAA, edns, want{answers: "AAAA fd12:3456::1"}},
		{"dns-026", "", "example.com.", dns.TypeAAAA, -1, nodata()},
		{"dns-028", "", "example.com.", dns.TypeAAAA, -1, nodata()},
		{"dns-029/NXDOMAIN", "", "denied.test.", dns.TypeA, -1, nxdomain()},
		{"dns-029/NODATA", "", "example.com.", dns.TypeMX, -1, nodata()},
		{"dns-031", "", "example.com.", dns.TypeHTTPS, edns, nodata()},
		{"dns-032/DDR", "", "_dns.resolver.arpa.", dns.TypeSVCB, edns, blocked(nxdomain(), "not_allowed: ")},
		{"dns-032/port", "", "_8443._https.github.com.", dns.TypeSVCB, edns, nodata()},
		{"dns-032/exact", "", "_8443._https.example.com.", dns.TypeSVCB, edns, blocked(nxdomain(), "not_allowed: ")},
		{"dns-033/A", "", "use-application-dns.net.", dns.TypeA, -1, nxdomain()},
		{"dns-033/AAAA", "", "use-application-dns.net.", dns.TypeAAAA, -1, nxdomain()},
		{"dns-034/dns.google", "", "dns.google.", dns.TypeA, -1, nxdomain()},
		{"dns-034/cloudflare-dns.com", "", "cloudflare-dns.com.", dns.TypeA, -1, nxdomain()},
		{"dns-034/mozilla.cloudflare-dns.com", "", "mozilla.cloudflare-dns.com.", dns.TypeA, -1, nxdomain()},
		{"dns-036", "", "_http._tcp.archive.github.com.", dns.TypeSRV, edns, nodata()},
		{"dns-037/SRV", "", "_mongodb._tcp.cluster.svc.example.", dns.TypeSRV, -1, nodata()},
		{"dns-037/TXT", "", "cluster.svc.example.", dns.TypeTXT, -1, nodata()},
		{"dns-038", "", "github.com.", dns.TypeCNAME, edns, nodata()},
		{"dns-039", "", "github.com.", dns.TypeANY, 4096, nodata()},
		{"dns-040/gateway", "", "1.0.200.10.in-addr.arpa.", dns.TypePTR, -1, nxdomain()},
		{"dns-040/other", "", "8.8.8.8.in-addr.arpa.", dns.TypePTR, edns, blocked(nxdomain(), "not_allowed: ")},
		{"dns-041/NS", "", "github.com.", dns.TypeNS, -1, nodata()},
		{"dns-041/SOA", "", "github.com.", dns.TypeSOA, -1, nodata()},
		{"dns-041/DS", "", "github.com.", dns.TypeDS, -1, nodata()},
		{"dns-041/DNSKEY", "", "github.com.", dns.TypeDNSKEY, -1, nodata()},
		{"dns-045", "", label60 + ".github.com.", dns.TypeA, -1, gateway()},
		{"dns-047", "", "example.com.", dns.TypeA, edns, gateway()},
		{"dns-053/with OPT", "", "denied.test.", dns.TypeA, edns, blocked(nxdomain(), "not_allowed: ")},
		{"dns-053/without OPT", "", "denied.test.", dns.TypeA, -1, nxdomain()},
		{"dns-057", "answer 10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5 10.0.0.6 10.0.0.7 10.0.0.8\nallow .github.com", long, dns.TypeA, -1,
			want{answers: "A 10.0.0.1, A 10.0.0.2, A 10.0.0.3, A 10.0.0.4, A 10.0.0.5, A 10.0.0.6, A 10.0.0.7, A 10.0.0.8"}},
		{"dns-057/AAAA with OPT", "answer fd12::1 fd12::2 fd12::3 fd12::4 fd12::5 fd12::6 fd12::7 fd12::8\nallow .github.com", long, dns.TypeAAAA, 512,
			want{answers: "AAAA fd12::1, AAAA fd12::2, AAAA fd12::3, AAAA fd12::4, AAAA fd12::5, AAAA fd12::6, AAAA fd12::7, AAAA fd12::8"}},
		{"dns-063", "", "example.com.", dns.TypeAAAA, -1, nodata()},
		{"dns-073/0", "", "example.com.", dns.TypeA, 0, gateway()},
		{"dns-073/100", "", "denied.test.", dns.TypeA, 100, blocked(nxdomain(), "not_allowed: ")},
		{"dns-076/local", "", "foo.local.", dns.TypeA, -1, nxdomain()},
		{"dns-076/docker", "", "host.docker.internal.", dns.TypeA, -1, nxdomain()},
		{"dns-076/metadata", "", "metadata.google.internal.", dns.TypeA, -1, nxdomain()},
		{"dns-076/metadata by a broad suffix", "answer 10.200.0.1\nallow .google.internal", "metadata.google.internal.", dns.TypeA, edns, nodata()}, // not NXDOMAIN: the rule allows names below it
		{"dns-076/onion", "", "x.onion.", dns.TypeA, -1, nxdomain()},
		{"dns-077", "answer 10.200.0.1 fd12:3456::1\nmode open", "ipv4only.arpa.", dns.TypeAAAA, -1, nxdomain()},

		{"exact deny", "answer 10.200.0.1\nallow .github.com\ndeny gist.github.com", "gist.github.com.", dns.TypeA, edns, blocked(nodata(), `denied: gist.github.com by rule "deny gist.github.com"`)},
		{"below an exact deny", "answer 10.200.0.1\nallow .github.com\ndeny gist.github.com", "a.gist.github.com.", dns.TypeA, edns, gateway()},
		{"suffix deny", "answer 10.200.0.1\nallow .github.com\ndeny .gist.github.com", "gist.github.com.", dns.TypeA, edns, blocked(nxdomain(), "denied: ")},
		{"only on another port", "answer 10.200.0.1\nallow db.example.com:5432", "db.example.com.", dns.TypeA, -1, gateway()},
		{"denied on one port", "answer 10.200.0.1\nallow example.com\ndeny example.com:80", "example.com.", dns.TypeA, -1, gateway()},
		{"open mode", "answer 10.200.0.1\nmode open", "anything.example.org.", dns.TypeA, -1, gateway()},
		{"open mode, single label", "answer 10.200.0.1\nmode open", "org.", dns.TypeA, edns, nodata()},
		{"open mode, special use", "answer 10.200.0.1\nmode open", "db.internal.", dns.TypeA, edns, blocked(nxdomain(), "not_allowed: ")},
		{"learn mode", "answer 10.200.0.1\nmode learn", "anything.example.org.", dns.TypeA, edns, gateway()},
		{"no IPv4 address", "answer fd12:3456::1\nallow example.com", "example.com.", dns.TypeA, -1, nodata()},
		{"dotted quad", "answer 10.200.0.1\nmode open", "10.0.0.1.", dns.TypeA, edns, blocked(nxdomain(), "bad_name: ")},
		{"escaped dot", "answer 10.200.0.1\nallow a.example.com", `a\.example.com.`, dns.TypeA, edns, blocked(nxdomain(), "bad_name: ")},
		{"NUL", "", `example.com\000.github.com.`, dns.TypeA, -1, nxdomain()},
		{"blank", "", `a\ b.github.com.`, dns.TypeA, -1, nxdomain()},
		{"unknown type", "", "example.com.", 65400, -1, nodata()},
	}
	for _, tc := range tests {
		t.Run(tc.id, func(t *testing.T) {
			body := tc.body
			switch {
			case body == "":
				body = p0
			case strings.HasSuffix(body, "\nanswer6"):
				body = strings.Replace(p0, "answer 10.200.0.1", "answer 10.200.0.1 fd12:3456::1", 1)
			}
			q := query(tc.qname, tc.qtype, tc.edns)
			got, rcode := ask(t, parseBlock(t, body), "", q)
			if !plugin.ClientWrite(rcode) {
				t.Errorf("returned %s, which makes the server write again", dns.RcodeToString[rcode])
			}
			tc.want.check(t, q, got)
		})
	}
}

func TestTTLs(t *testing.T) {
	s := parseBlock(t, p0)
	t.Run("dns-001", func(t *testing.T) {
		got, _ := ask(t, s, "", query("example.com.", dns.TypeA, -1))
		if ttl := got.Answer[0].Header().Ttl; ttl != 60 {
			t.Errorf("got TTL %d, want 60", ttl)
		}
	})
	// What is no longer denied is seen soon, by all but the stubs that have a time of their own.
	t.Run("dns-062", func(t *testing.T) {
		got, _ := ask(t, s, "", query("denied.test.", dns.TypeA, -1))
		if soa := got.Ns[0].(*dns.SOA); soa.Minttl > 10 {
			t.Errorf("got minimum %d, want at most 10", soa.Minttl)
		}
	})
	t.Run("as configured", func(t *testing.T) {
		s := parseBlock(t, p0+"\nttl 0\nnegative_ttl 7")
		got, _ := ask(t, s, "", query("example.com.", dns.TypeA, -1))
		if ttl := got.Answer[0].Header().Ttl; ttl != 0 {
			t.Errorf("got TTL %d, want 0", ttl)
		}
		got, _ = ask(t, s, "", query("denied.test.", dns.TypeA, -1))
		if ttl := got.Ns[0].Header().Ttl; ttl != 7 {
			t.Errorf("got negative TTL %d, want 7", ttl)
		}
	})
}

// TestUnjudged asks what gets an rcode before any name is looked at, as a chain is asked that is reached
// past the checks of the DNS server.
func TestUnjudged(t *testing.T) {
	opt := func(m *dns.Msg, version uint8) {
		o := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		o.SetUDPSize(1232)
		o.SetVersion(version)
		m.Extra = append(m.Extra, o)
	}
	tests := []struct {
		id      string
		qname   string
		qtype   uint16
		edit    func(*dns.Msg)
		rcode   int
		written bool
	}{
		{"dns-043/AXFR", "github.com.", dns.TypeAXFR, nil, dns.RcodeRefused, false},
		{"dns-043/IXFR", "github.com.", dns.TypeIXFR, nil, dns.RcodeRefused, false},
		{"dns-043/AXFR denied", "denied.test.", dns.TypeAXFR, nil, dns.RcodeRefused, false},
		{"dns-049", "example.com.", dns.TypeA, func(m *dns.Msg) { opt(m, 1) }, dns.RcodeBadVers, true},
		{"dns-051", "example.com.", dns.TypeA, func(m *dns.Msg) { opt(m, 0); opt(m, 0) }, dns.RcodeFormatError, false},
		{"dns-051/with version 1", "example.com.", dns.TypeA, func(m *dns.Msg) { opt(m, 0); opt(m, 1) }, dns.RcodeFormatError, false},
		{"dns-066/no question", "example.com.", dns.TypeA, func(m *dns.Msg) { m.Question = nil }, dns.RcodeFormatError, false},
		{"dns-066/two questions", "example.com.", dns.TypeA, func(m *dns.Msg) {
			m.Question = append(m.Question, dns.Question{Name: "denied.test.", Qtype: dns.TypeA, Qclass: dns.ClassINET})
		}, dns.RcodeFormatError, false},
		{"dns-067/UPDATE", "example.com.", dns.TypeA, func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }, dns.RcodeNotImplemented, false},
		{"dns-067/STATUS", "example.com.", dns.TypeA, func(m *dns.Msg) { m.Opcode = dns.OpcodeStatus }, dns.RcodeNotImplemented, false},
		{"dns-067/NOTIFY", "example.com.", dns.TypeSOA, func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }, dns.RcodeNotImplemented, false},
		{"dns-068", "example.com.", dns.TypeA, func(m *dns.Msg) { m.Response = true }, dns.RcodeSuccess, false},
		{"class CH", "version.bind.", dns.TypeTXT, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, dns.RcodeRefused, false},
		{"class ANY", "example.com.", dns.TypeA, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY }, dns.RcodeRefused, false},
	}
	s := parseBlock(t, p0)
	for _, tc := range tests {
		t.Run(tc.id, func(t *testing.T) {
			q := query(tc.qname, tc.qtype, -1)
			if tc.edit != nil {
				tc.edit(q)
			}
			got, rcode := ask(t, s, "", q)
			if rcode != tc.rcode {
				t.Errorf("returned %s, want %s", dns.RcodeToString[rcode], dns.RcodeToString[tc.rcode])
			}
			if (got != nil) != tc.written {
				t.Fatalf("wrote %v, want a message: %v", got, tc.written)
			}
			if got != nil && (got.Rcode != tc.rcode || len(got.Answer) > 0 || got.IsEdns0() == nil || got.IsEdns0().Version() != 0) {
				t.Errorf("wrote\n%v\nwant %s with an OPT record of version 0 and no answer", got, dns.RcodeToString[tc.rcode])
			}
		})
	}
}

func TestOptionsAreNotEchoed(t *testing.T) {
	t.Run("dns-050", func(t *testing.T) {
		q := query("example.com.", dns.TypeA, 1232)
		o := q.IsEdns0()
		o.SetDo()
		o.Option = append(o.Option,
			&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"},
			&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(192, 0, 2, 0).To4()},
			&dns.EDNS0_LOCAL{Code: 65001, Data: []byte{1, 2, 3}})
		got, _ := ask(t, parseBlock(t, p0), "", q)
		gateway().check(t, q, got)
	})
}

// The text of the Extended DNS Error gives way where a reply would not fit.
func TestExtendedErrorFits(t *testing.T) {
	s := parseBlock(t, p0)
	deny := label63
	for len(deny) < 250 {
		qname := deny + "."
		q := query(qname, dns.TypeA, 512)
		got, _ := ask(t, s, "", q)
		blocked(nxdomain(), "not_allowed").check(t, q, got)
		deny = "a." + deny
	}
}

// A resolver that forwards one zone to us believes no SOA record from above it.
func TestSOAOwner(t *testing.T) {
	tests := []struct {
		name  string
		zones []string
		qname string
		want  string
	}{
		{"root", []string{"."}, "www.example.org.", "."},
		{"zone", []string{"example.org"}, "www.example.org.", "example.org."},
		{"case", []string{"example.org"}, "WWW.Example.ORG.", "Example.ORG."},
		{"most specific of several", []string{"org", "example.org", "."}, "www.example.org.", "example.org."},
		{"with port and scheme", []string{"dns://example.org.:1053"}, "www.example.org.", "example.org."},
		{"rewritten out of the zone", []string{"example.org"}, "www.example.net.", "."},
		{"not by strings", []string{"example.org"}, "notexample.org.", "."},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			q := query(tc.qname, dns.TypeA, 1232)
			got, _ := ask(t, parseBlock(t, "answer 10.200.0.1\nallow example.com", tc.zones...), "", q)
			blocked(nxdomain(), "not_allowed: ").check(t, q, got)
			if owner := got.Ns[0].Header().Name; owner != tc.want {
				t.Errorf("got SOA of %q, want %q", owner, tc.want)
			}
		})
	}
}

func TestClients(t *testing.T) {
	doc := writeFile(t, "policy", `policy build {
	client 10.1.0.0/16 fd00:1::/64
	allow .example.com
}

policy host {
	client 10.1.2.3
	allow .example.net
}
`)
	byClient := parseBlock(t, "answer 10.200.0.1\npolicy_file "+doc)
	both := parseBlock(t, "answer 10.200.0.1\npolicy_file "+doc+"\npolicy build")
	tests := []struct {
		name   string
		s      *SandboxAllow
		client string
		qname  string
		want   want
	}{
		{"prefix", byClient, "10.1.9.9", "a.example.com.", gateway()},
		{"mapped", byClient, "::ffff:10.1.9.9", "a.example.com.", gateway()},
		{"IPv6", byClient, "fd00:1::7", "a.example.com.", gateway()},
		{"most specific prefix", byClient, "10.1.2.3", "a.example.net.", gateway()},
		{"and no other", byClient, "10.1.2.3", "a.example.com.", blocked(nxdomain(), "not_allowed: a.example.com is not in policy host")},
		{"nobody's client", byClient, "192.0.2.1", "a.example.com.", blocked(nxdomain(), "no_policy: ")},
		{"nobody's client asks for the root", byClient, "192.0.2.1", ".", nodata()},
		{"no address", byClient, "nonsense", "a.example.com.", blocked(nxdomain(), "no_policy: ")},
		{"listener, same policy", both, "10.1.9.9", "a.example.com.", gateway()},
		{"listener does not allow", both, "10.1.2.3", "a.example.net.", blocked(nxdomain(), "not_allowed: ")},
		{"listener alone does not allow", both, "10.1.2.3", "a.example.com.", blocked(nxdomain(), "not_allowed: ")},
		{"listener, nobody's client", both, "192.0.2.1", "a.example.com.", blocked(nxdomain(), "no_policy: ")},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			q := query(tc.qname, dns.TypeA, 1232)
			got, _ := ask(t, tc.s, tc.client, q)
			tc.want.check(t, q, got)
		})
	}
}

// A default policy is for every client, but not for one whose address is unknown.
func TestUnknownClient(t *testing.T) {
	q := query("example.com.", dns.TypeA, 1232)
	got, _ := ask(t, parseBlock(t, p0), "nonsense", q)
	blocked(nxdomain(), "no_policy: ").check(t, q, got)
}

type wrappedAddr struct{ net.Addr }

func (w wrappedAddr) Unwrap() net.Addr { return w.Addr }

type stringAddr string

func (stringAddr) Network() string  { return "test" }
func (s stringAddr) String() string { return string(s) }

func TestClientAddr(t *testing.T) {
	v4 := netip.MustParseAddr("192.0.2.1")
	tests := []struct {
		name string
		addr net.Addr
		want netip.Addr
	}{
		{"UDP", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 53}, v4},
		{"TCP", &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1).To4(), Port: 53}, v4},
		{"zone", &net.UDPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, netip.MustParseAddr("fe80::1")},
		{"wrapped", wrappedAddr{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}}, v4},
		{"other kind", stringAddr("192.0.2.1:53"), v4},
		{"other kind, mapped", stringAddr("[::ffff:192.0.2.1]:53"), v4},
		{"other kind, zone", stringAddr("[fe80::1%eth0]:53"), netip.MustParseAddr("fe80::1")},
		{"unix", &net.UnixAddr{Name: "/run/dns.sock"}, netip.Addr{}},
		{"no address", &net.UDPAddr{}, netip.Addr{}},
		{"nil", nil, netip.Addr{}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if got := clientAddr(tc.addr); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// Records are a reply's own: plugins in front of this one change what passes them.
func TestRepliesShareNothing(t *testing.T) {
	s := parseBlock(t, "answer 10.200.0.1 10.200.0.2 fd12::1\nallow example.com")
	for _, q := range []*dns.Msg{
		query("example.com.", dns.TypeA, 1232),
		query("example.com.", dns.TypeAAAA, 1232),
		query("denied.test.", dns.TypeA, 1232),
	} {
		written := func() *dns.Msg {
			rec := dnstest.NewRecorder(&test.ResponseWriter{})
			if _, err := s.ServeDNS(context.Background(), rec, q); err != nil {
				t.Fatal(err)
			}
			return rec.Msg
		}
		first := written()
		want := first.String()
		for _, rr := range slices.Concat(first.Answer, first.Ns, first.Extra) {
			rr.Header().Ttl = 1
			rr.Header().Name = "changed."
		}
		if got := written().String(); got != want {
			t.Errorf("got\n%s\nafter an earlier reply was changed, want\n%s", got, want)
		}
	}
}
