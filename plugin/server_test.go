package sandboxallow

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/doh"
	"github.com/miekg/dns"
)

// boom is a plugin that panics when it is asked for its name.
type boom struct{ next plugin.Handler }

func (b boom) Name() string { return "boom" }

func (b boom) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if r.Question[0].Name == "boom." {
		panic("boom")
	}
	return plugin.NextOrFailure(b.Name(), b.next, ctx, w, r)
}

func init() {
	plugin.Register("boom", func(c *caddy.Controller) error {
		dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler { return boom{next} })
		return nil
	})
}

// exchange asks a server. It fails the test where no reply comes.
func exchange(t testing.TB, network, addr string, q *dns.Msg) *dns.Msg {
	t.Helper()
	got, _, err := (&dns.Client{Net: network, Timeout: 5 * time.Second}).Exchange(q, addr)
	if err != nil {
		t.Fatalf("%s %s: %v", network, q.Question[0].Name, err)
	}
	return got
}

// onBoth runs f over UDP and TCP.
func onBoth(t *testing.T, udp, tcp string, f func(t *testing.T, network, addr string)) {
	t.Run("udp", func(t *testing.T) { f(t, "udp", udp) })
	t.Run("tcp", func(t *testing.T) { f(t, "tcp", tcp) })
}

func TestServer(t *testing.T) {
	udp, tcp := serve(t, p0)
	tests := []struct {
		name  string
		qname string
		qtype uint16
		edns  int
		want  want
	}{
		{"allowed", "example.com.", dns.TypeA, -1, gateway()},
		{"allowed with OPT", "EXAMPLE.com.", dns.TypeA, 1232, gateway()},
		{"denied", "denied.test.", dns.TypeA, 1232, blocked(nxdomain(), "not_allowed: denied.test is not in policy default")},
		{"ancestor", "com.", dns.TypeA, -1, nodata()},
		{"dns-014", ".", dns.TypeNS, -1, nodata()},
		{"dns-023", "example.com.", dns.TypeAAAA, -1, nodata()},
		{"dns-031", "example.com.", dns.TypeHTTPS, -1, nodata()},
		{"dns-041", "github.com.", dns.TypeDS, -1, nodata()},
		{"dns-041/root", ".", dns.TypeDS, -1, nodata()},
		// With every plugin before this one compiled in, none answers for it and none is asked after it.
		{"dns-055", "denied.test.", dns.TypeA, -1, nxdomain()},
		{"dns-073/0", "example.com.", dns.TypeA, 0, gateway()},
		{"dns-073/100", "denied.test.", dns.TypeA, 100, blocked(nxdomain(), "not_allowed: ")},
	}
	onBoth(t, udp, tcp, func(t *testing.T, network, addr string) {
		for _, tc := range tests {
			t.Run(tc.name, func(t *testing.T) {
				q := query(tc.qname, tc.qtype, tc.edns)
				tc.want.check(t, q, exchange(t, network, addr, q))
			})
		}
	})
}

// TestServerUnjudged asks a server what gets an rcode for its header alone. Whoever gives it, the client
// gets it once.
func TestServerUnjudged(t *testing.T) {
	udp, tcp := serve(t, p0)
	opcode := func(op int) func(*dns.Msg) { return func(m *dns.Msg) { m.Opcode = op } }
	tests := []struct {
		id    string
		qtype uint16
		edit  func(*dns.Msg)
		rcode int
	}{
		{"dns-043/AXFR", dns.TypeAXFR, nil, dns.RcodeRefused},
		{"dns-043/IXFR", dns.TypeIXFR, nil, dns.RcodeRefused},
		{"dns-049", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }, dns.RcodeBadVers},
		{"dns-051", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, false); m.SetEdns0(1232, false) }, dns.RcodeFormatError},
		{"dns-066/no question", dns.TypeA, func(m *dns.Msg) { m.Question = nil }, dns.RcodeFormatError},
		{"dns-066/two questions", dns.TypeA, func(m *dns.Msg) {
			m.Question = append(m.Question, dns.Question{Name: "denied.test.", Qtype: dns.TypeA, Qclass: dns.ClassINET})
		}, dns.RcodeFormatError},
		{"dns-067/UPDATE", dns.TypeA, opcode(dns.OpcodeUpdate), dns.RcodeNotImplemented},
		{"dns-067/STATUS", dns.TypeA, opcode(dns.OpcodeStatus), dns.RcodeNotImplemented},
		{"dns-067/NOTIFY", dns.TypeSOA, opcode(dns.OpcodeNotify), dns.RcodeNotImplemented},
		{"class CH", dns.TypeTXT, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, dns.RcodeRefused},
	}
	onBoth(t, udp, tcp, func(t *testing.T, network, addr string) {
		for _, tc := range tests {
			t.Run(tc.id, func(t *testing.T) {
				q := query("github.com.", tc.qtype, -1)
				if tc.edit != nil {
					tc.edit(q)
				}
				conn := dial(t, network, addr)
				send(t, conn, q)
				// A second reply to the first question would be read in place of the one to this.
				last := query("example.com.", dns.TypeA, -1)
				send(t, conn, last)

				got := receive(t, conn, 2)
				if first := got[q.Id]; first == nil || first.Rcode != tc.rcode || len(first.Answer) > 0 {
					t.Errorf("got\n%v\nwant %s without an answer", first, dns.RcodeToString[tc.rcode])
				}
				gateway().check(t, last, got[last.Id])
			})
		}
	})
}

func dial(t testing.TB, network, addr string) *dns.Conn {
	t.Helper()
	conn, err := dns.DialTimeout(network, addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	return conn
}

func send(t testing.TB, conn *dns.Conn, m *dns.Msg) {
	t.Helper()
	if err := conn.WriteMsg(m); err != nil {
		t.Fatal(err)
	}
}

// receive reads n replies and returns them by their ids.
func receive(t testing.TB, conn *dns.Conn, n int) map[uint16]*dns.Msg {
	t.Helper()
	got := map[uint16]*dns.Msg{}
	for range n {
		m, err := conn.ReadMsg()
		if err != nil {
			t.Fatalf("after %d of %d replies: %v", len(got), n, err)
		}
		if got[m.Id] != nil {
			t.Fatalf("got a second reply to\n%v", m)
		}
		got[m.Id] = m
	}
	return got
}

func TestAnswersAreNotAnswered(t *testing.T) {
	udp, tcp := serve(t, p0)
	onBoth(t, udp, tcp, func(t *testing.T, network, addr string) {
		t.Run("dns-068", func(t *testing.T) {
			conn := dial(t, network, addr)
			q := query("example.com.", dns.TypeA, -1)
			q.Response = true
			send(t, conn, q)
			last := query("example.com.", dns.TypeA, -1)
			send(t, conn, last)
			if got := receive(t, conn, 1); got[last.Id] == nil {
				t.Errorf("got replies %v, want none to a reply", got)
			}
		})
	})
}

// TestOneSocket asks several questions from one port before it reads a reply, as stub resolvers do.
func TestOneSocket(t *testing.T) {
	udp, _ := serve(t, p0)
	t.Run("dns-021", func(t *testing.T) {
		conn := dial(t, "udp", udp)
		asked := map[uint16]*dns.Msg{}
		for _, suffix := range []string{"default.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", "corp.internal.", "eu.corp.internal.", "test."} {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
				q := query("denied."+suffix, qtype, -1)
				q.Id = uint16(len(asked) + 1)
				asked[q.Id] = q
				send(t, conn, q)
			}
		}
		start := time.Now()
		for id, m := range receive(t, conn, len(asked)) {
			nxdomain().check(t, asked[id], m)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("12 replies took %v", d)
		}
	})
	t.Run("dns-058", func(t *testing.T) {
		conn := dial(t, "udp", udp)
		a, aaaa := query("example.com.", dns.TypeA, -1), query("example.com.", dns.TypeAAAA, -1)
		a.Id, aaaa.Id = 1, 2
		send(t, conn, a)
		send(t, conn, aaaa)
		got := receive(t, conn, 2)
		gateway().check(t, a, got[1])
		nodata().check(t, aaaa, got[2])
	})
}

func TestPipelinedTCP(t *testing.T) {
	_, tcp := serve(t, p0)
	t.Run("dns-072", func(t *testing.T) {
		conn := dial(t, "tcp", tcp)
		var wire bytes.Buffer
		qs := []*dns.Msg{query("example.com.", dns.TypeA, -1), query("denied.test.", dns.TypeA, -1), query("github.com.", dns.TypeA, -1)}
		for i, q := range qs {
			q.Id = uint16(i)
			b, err := q.Pack()
			if err != nil {
				t.Fatal(err)
			}
			binary.Write(&wire, binary.BigEndian, uint16(len(b)))
			wire.Write(b)
		}
		// Two questions and the first octets of the third in one segment.
		rest := wire.Bytes()
		cut := len(rest) - 20
		if _, err := conn.Conn.Write(rest[:cut]); err != nil {
			t.Fatal(err)
		}
		got := receive(t, conn, 2)
		gateway().check(t, qs[0], got[0])
		nxdomain().check(t, qs[1], got[1])
		if _, err := conn.Conn.Write(rest[cut:]); err != nil {
			t.Fatal(err)
		}
		gateway().check(t, qs[2], receive(t, conn, 1)[2])
	})
}

// TestEncrypted asks over TLS and HTTPS what it asks over UDP: the answers must be alike.
func TestEncrypted(t *testing.T) {
	cert, key, pool := certificate(t)
	block := func(scheme string) string {
		return fmt.Sprintf("%s.:0 {\nbind 127.0.0.1\ntls %s %s\n%s {\n%s\n}\n}", scheme, cert, key, name, p0)
	}
	udp, _ := serve(t, p0)
	_, dot := addrs(startCoreDNS(t, block("tls://")))
	_, https := addrs(startCoreDNS(t, block("https://")))

	overTLS := func(t *testing.T, q *dns.Msg) *dns.Msg {
		c := &dns.Client{Net: "tcp-tls", Timeout: 5 * time.Second, TLSConfig: &tls.Config{RootCAs: pool}}
		m, _, err := c.Exchange(q, dot)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, q := range []*dns.Msg{
		query("example.com.", dns.TypeA, -1),
		query("eXample.com.", dns.TypeA, 1232),
		query("example.com.", dns.TypeHTTPS, 1232),
		query("example.com.", dns.TypeDS, 1232),
		query("denied.test.", dns.TypeA, 1232),
		query("denied.test.", dns.TypeA, -1),
		query("com.", dns.TypeAAAA, 1232),
		query(".", dns.TypeNS, 1232),
		query(`bad\046name.github.com.`, dns.TypeA, 1232),
		query("github.com.", dns.TypeAXFR, -1),
	} {
		t.Run(q.Question[0].Name+" "+dns.TypeToString[q.Question[0].Qtype], func(t *testing.T) {
			want := exchange(t, "udp", udp, q).String()
			if got := overTLS(t, q).String(); got != want {
				t.Errorf("over TLS got\n%s\nwant\n%s", got, want)
			}
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				got, status := overHTTPS(t, pool, https, method, q)
				if status != http.StatusOK || got.String() != want {
					t.Errorf("over HTTPS by %s got %d\n%v\nwant\n%s", method, status, got, want)
				}
			}
		})
	}
	t.Run("dns-068 over HTTPS", func(t *testing.T) {
		q := query("example.com.", dns.TypeA, -1)
		q.Response = true
		if got, status := overHTTPS(t, pool, https, http.MethodPost, q); status == http.StatusOK {
			t.Errorf("got\n%v\nwant no reply to a reply", got)
		}
	})
}

func overHTTPS(t *testing.T, pool *x509.CertPool, addr, method string, q *dns.Msg) (*dns.Msg, int) {
	t.Helper()
	req, err := doh.NewRequest(method, "https://"+addr, "127.0.0.1", q)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: 5 * time.Second}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		io.Copy(io.Discard, resp.Body)
		return nil, resp.StatusCode
	}
	m, err := doh.ResponseToMsg(resp)
	if err != nil {
		t.Fatal(err)
	}
	return m, resp.StatusCode
}

func TestGoResolver(t *testing.T) {
	udp, tcp := serve(t, p0)
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		addr := udp
		if network == "tcp" {
			addr = tcp
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	t.Run("dns-059", func(t *testing.T) {
		start := time.Now()
		got, err := r.LookupHost(ctx, "example.com.")
		if err != nil || !slices.Equal(got, []string{"10.200.0.1"}) {
			t.Errorf("got %v, %v, want the gateway", got, err)
		}
		_, err = r.LookupHost(ctx, "denied.test.")
		var e *net.DNSError
		if !errors.As(err, &e) || !e.IsNotFound || e.IsTemporary || e.IsTimeout {
			t.Errorf("got %#v, want a host that does not exist", err)
		}
		if d := time.Since(start); d > 4*time.Second {
			t.Errorf("took %v, so a question was repeated", d)
		}
	})
}

// upstream is a name server that answers every question with 192.0.2.99 and counts them.
func upstream(t *testing.T) (addr string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		asked.Add(1)
		m := new(dns.Msg).SetReply(r)
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(192, 0, 2, 99)}}
		w.WriteMsg(m)
	})}
	go srv.ActivateAndServe()
	t.Cleanup(func() { srv.Shutdown() })
	return pc.LocalAddr().String(), asked
}

func TestNothingBehindAnswers(t *testing.T) {
	up, asked := upstream(t)
	hosts := writeFile(t, "hosts", "192.0.2.98 denied.test example.com\n")
	for _, corefile := range []string{
		".:0 {\nbind 127.0.0.1\nforward . " + up + "\nhosts " + hosts + "\ncache\n" + name + " {\n" + p0 + "\n}\n}",
		".:0 {\nbind 127.0.0.1\n" + name + " {\n" + p0 + "\n}\ncache\nhosts " + hosts + "\nforward . " + up + "\n}",
	} {
		t.Run("dns-079", func(t *testing.T) {
			udp, _ := addrs(startCoreDNS(t, corefile))
			for range 2 {
				q := query("denied.test.", dns.TypeA, -1)
				nxdomain().check(t, q, exchange(t, "udp", udp, q))
				q = query("example.com.", dns.TypeA, -1)
				gateway().check(t, q, exchange(t, "udp", udp, q))
				q = query("example.com.", dns.TypeTXT, -1)
				nodata().check(t, q, exchange(t, "udp", udp, q))
			}
			if n := asked.Load(); n != 0 {
				t.Errorf("%d questions were forwarded, want none", n)
			}
		})
	}
}

// The name that counts is the one behind rewrite, which is the one that the client was sent to.
func TestRewrite(t *testing.T) {
	udp, _ := serve(t, p0, "rewrite name exact alias.test example.com", "rewrite name exact example.com denied.test")
	q := query("alias.test.", dns.TypeA, -1)
	gateway().check(t, q, exchange(t, "udp", udp, q))
	q = query("example.com.", dns.TypeA, -1)
	nxdomain().check(t, q, exchange(t, "udp", udp, q))
}

func TestZone(t *testing.T) {
	t.Run("dns-080", func(t *testing.T) {
		inst := startCoreDNS(t, "example.com:0 {\nbind 127.0.0.1\n"+name+" {\n"+p0+"\n}\n}")
		udp, _ := addrs(inst)
		q := query("example.com.", dns.TypeA, -1)
		gateway().check(t, q, exchange(t, "udp", udp, q))
		if got := exchange(t, "udp", udp, query("denied.test.", dns.TypeA, -1)); got.Rcode != dns.RcodeRefused {
			t.Errorf("got %s outside the zone, want REFUSED from the server", dns.RcodeToString[got.Rcode])
		}
	})
	// CoreDNS sends DS to the parent's server block, so the parent needs the plugin too.
	t.Run("dns-041", func(t *testing.T) {
		block := "%s:0 {\nbind 127.0.0.1\n" + name + " {\n" + p0 + "\n}\n}\n"
		udp, _ := addrs(startCoreDNS(t, fmt.Sprintf(block, "github.com")+fmt.Sprintf(block, "com")))
		q := query("github.com.", dns.TypeDS, -1)
		nodata().check(t, q, exchange(t, "udp", udp, q))
		udp, _ = addrs(startCoreDNS(t, fmt.Sprintf(block, "github.com")))
		nodata().check(t, q, exchange(t, "udp", udp, q))
	})
}

func TestWrittenOnce(t *testing.T) {
	udp, _ := serve(t, p0)
	t.Run("dns-070", func(t *testing.T) {
		q := query("denied.test.", dns.TypeA, -1)
		nxdomain().check(t, q, exchange(t, "udp", udp, q))
	})
}

func TestPanic(t *testing.T) {
	udp, _ := serve(t, p0, "boom")
	t.Run("dns-071", func(t *testing.T) {
		if got := exchange(t, "udp", udp, query("boom.", dns.TypeA, -1)); got.Rcode != dns.RcodeServerFailure {
			t.Errorf("got %s, want SERVFAIL", dns.RcodeToString[got.Rcode])
		}
		q := query("example.com.", dns.TypeA, -1)
		gateway().check(t, q, exchange(t, "udp", udp, q))
	})
}
