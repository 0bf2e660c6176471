package sandboxallow

import (
	"context"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// keeper keeps what is written.
type keeper struct {
	test.ResponseWriter
	written []*dns.Msg
}

func (k *keeper) WriteMsg(m *dns.Msg) error {
	k.written = append(k.written, m)
	return nil
}

// FuzzServeDNS sends whatever the DNS library takes for a message past all checks of the server. Invariant:
// the client gets exactly one reply, to its question, that fits 512 octets, with an address if and only if
// the policy admits the name.
func FuzzServeDNS(f *testing.F) {
	for _, q := range fuzzSeeds() {
		b, err := q.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	s := parseBlock(f, "answer 10.200.0.1 10.200.0.2 fd12::1\nallow example.com .github.com *.svc.example db.example.org:5432\ndeny gist.github.com .evil.github.com")
	set := s.store.Set()
	client := clientAddr((&test.ResponseWriter{}).RemoteAddr())

	f.Fuzz(func(t *testing.T, data []byte) {
		q := new(dns.Msg)
		if q.Unpack(data) != nil {
			return
		}
		asked := q.Copy() // the server may change the OPT record
		w := &keeper{}
		rcode, err := s.ServeDNS(context.Background(), request.NewScrubWriter(q, w), q)
		if err != nil {
			t.Fatalf("error %v", err)
		}
		if asked.Response {
			if rcode != dns.RcodeSuccess || len(w.written) > 0 {
				t.Fatalf("a reply was answered: %v, %v", rcode, w.written)
			}
			return
		}
		switch rcode {
		case dns.RcodeRefused, dns.RcodeFormatError, dns.RcodeNotImplemented:
			if len(w.written) > 0 {
				t.Fatalf("returned %s, and wrote\n%v", dns.RcodeToString[rcode], w.written[0])
			}
			return
		}
		if !plugin.ClientWrite(rcode) || len(w.written) != 1 {
			t.Fatalf("returned %s, and wrote %d messages", dns.RcodeToString[rcode], len(w.written))
		}
		b, err := w.written[0].Pack()
		if err != nil {
			t.Fatalf("pack: %v", err)
		}
		got := new(dns.Msg)
		if err := got.Unpack(b); err != nil {
			t.Fatalf("unpack: %v", err)
		}
		if n := packedLen(t, got); n > dns.MinMsgSize || asked.IsEdns0() == nil && len(b) > dns.MinMsgSize {
			t.Errorf("got %d octets, %d compressed", len(b), n)
		}
		if got.Id != asked.Id || got.Truncated || len(got.Question) != 1 || got.Question[0] != asked.Question[0] {
			t.Errorf("got\n%v\nfor\n%v", got, asked)
		}

		question := asked.Question[0]
		if reserved(question.Name) {
			if a := answers(got); a != "" && (question.Qtype != dns.TypeTXT || !strings.HasPrefix(a, "TXT ")) {
				t.Errorf("got answers %s to\n%v", a, asked)
			}
			return
		}
		checkText(t, got)
		admitted := false
		if n, err := policy.ParseName(question.Name); err == nil {
			admitted = set.Select(client, "").Lookup(n, policy.AnyPort).Verdict.Admits()
		}
		wantAddress := admitted && got.Rcode == dns.RcodeSuccess && (question.Qtype == dns.TypeA || question.Qtype == dns.TypeAAAA)
		if (len(got.Answer) > 0) != wantAddress {
			t.Errorf("got %d answers, want some: %v, in\n%v", len(got.Answer), wantAddress, got)
		}
		for _, rr := range got.Answer {
			if rr.Header().Rrtype != question.Qtype || rr.Header().Name != question.Name {
				t.Errorf("got answer %v to\n%v", rr, asked)
			}
		}
		switch got.Rcode {
		case dns.RcodeSuccess, dns.RcodeBadVers:
		case dns.RcodeNameError:
			if admitted || question.Name == "." {
				t.Errorf("got NXDOMAIN for %q", question.Name)
			}
		default:
			t.Errorf("got rcode %d", got.Rcode)
		}
	})
}

// checkText holds that the text of an Extended DNS Error is a reason, and behind it nothing but printable
// ASCII.
func checkText(t *testing.T, got *dns.Msg) {
	t.Helper()
	o := got.IsEdns0()
	if o == nil {
		return
	}
	for _, option := range o.Option {
		text := option.(*dns.EDNS0_EDE).ExtraText
		reason, _, _ := strings.Cut(text, ": ")
		switch reason {
		case "not_allowed", "denied", "bad_name", "no_policy":
		default:
			t.Errorf("got EDE %q, want one that begins with a reason", text)
		}
		if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Errorf("got EDE %q, want printable ASCII", text)
		}
	}
}

func fuzzSeeds() []*dns.Msg {
	qs := []*dns.Msg{
		query("example.com.", dns.TypeA, -1),
		query("eXample.com.", dns.TypeAAAA, 1232),
		query("a.github.com.", dns.TypeHTTPS, 0),
		query("gist.github.com.", dns.TypeA, 512),
		query("x.evil.github.com.", dns.TypeA, 512),
		query("svc.example.", dns.TypeA, 1232),
		query("db.example.org.", dns.TypeANY, -1),
		query("denied.test.", dns.TypeA, 65535),
		query(label63+"."+label63+"."+label63+"."+label63[:61]+".", dns.TypeA, 512),
		query(`a\.b\000c\226\132\170.github.com.`, dns.TypeA, 1232),
		query("10.0.0.1.", dns.TypeA, 1232),
		query(".", dns.TypeNS, 1232),
		query("github.com.", dns.TypeAXFR, -1),
		query("example.org.why.sandboxallow.", dns.TypeTXT, 1232),
		query(`a\.b\000c.WHY.SandboxAllow.`, dns.TypeTXT, -1),
		query("policy.sandboxallow.", dns.TypeA, 1232),
	}
	edit := func(f func(*dns.Msg)) {
		q := query("example.com.", dns.TypeA, 1232)
		f(q)
		qs = append(qs, q)
	}
	edit(func(q *dns.Msg) { q.Response = true })
	edit(func(q *dns.Msg) { q.Opcode = dns.OpcodeNotify })
	edit(func(q *dns.Msg) { q.Opcode = dns.OpcodeUpdate })
	edit(func(q *dns.Msg) { q.Question = nil })
	edit(func(q *dns.Msg) { q.Question = append(q.Question, q.Question[0]) })
	edit(func(q *dns.Msg) { q.Question[0].Qclass = dns.ClassCHAOS })
	edit(func(q *dns.Msg) { q.IsEdns0().SetVersion(1) })
	edit(func(q *dns.Msg) { q.SetEdns0(4096, true) })
	edit(func(q *dns.Msg) {
		q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"}}
	})
	return qs
}
