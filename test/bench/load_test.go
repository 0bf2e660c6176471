package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// short is enough to see that something moves, on a busy machine too.
var short = pace{rounds: 2, warm: 50 * time.Millisecond, window: 300 * time.Millisecond}

// TestClientHello has crypto/tls read what clientHello has changed.
func TestClientHello(t *testing.T) {
	const ask = 1 << 40
	record, err := clientHello("api.site-0000000.example", ask)
	if err != nil {
		t.Fatal(err)
	}
	if got := asked(record); got != ask {
		t.Errorf("asked: got %d, want %d", got, ask)
	}
	client, server := net.Pipe()
	go func() {
		client.Write(record)
		client.Close()
	}()
	var name string
	tls.Server(server, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name = h.ServerName
		return nil, errors.New("no more")
	}}).Handshake()
	if want := "api.site-0000000.example"; name != want {
		t.Errorf("name: got %q, want %q", name, want)
	}
}

func TestMain(m *testing.M) {
	maybeUpstream()
	os.Exit(m.Run())
}

// TestLoads has all loads of gateways go to the upstream itself.
func TestLoads(t *testing.T) {
	u, err := startUpstream()
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	for _, tc := range []struct {
		name string
		load load
		to   netip.AddrPort
	}{
		{"tunnels by PostgreSQL", opening(4, 0), u.addr},
		{"tunnels", opening(4, 0), u.addr},
		{"steady", opening(4, 100), u.addr},
		{"download", moving(download, 2), u.addr},
		{"upload", moving(upload, 2), u.addr},
		{"ping", pinging, u.addr},
		{"requests", requesting(2, false), u.web},
		{"requests kept", requesting(2, true), u.web},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before, err := u.accepted()
			if err != nil {
				t.Fatal(err)
			}
			got, err := tc.load.observe(t.Context(), &server{addr: tc.to, postgres: strings.HasSuffix(tc.name, "PostgreSQL")}, short)
			if err != nil {
				t.Fatal(err)
			}
			if got.done <= 0 || got.wall < short.window {
				t.Errorf("got %v in %v, want something in at least %v", got.done, got.wall, short.window)
			}
			if rate := got.perSecond(); tc.name == "steady" && rate > 120 {
				t.Errorf("got %.0f tunnels a second, want 100", rate)
			}
			if after, err := u.accepted(); err != nil || after <= before {
				t.Errorf("the upstream has accepted %d connections, before %d: %v", after, before, err)
			}
		})
	}
}

// TestCrowd holds that a crowd is open at the same time, and that what closes is noticed.
func TestCrowd(t *testing.T) {
	u, err := startUpstream()
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	conns, err := (&server{addr: u.addr}).crowd(t.Context(), 100)
	defer closeAll(conns)
	if err != nil || len(conns) != 100 {
		t.Fatalf("got %d and %v, want 100", len(conns), err)
	}
	if err := stillOpen(conns); err != nil {
		t.Error(err)
	}
	conns[7].Close()
	if err := stillOpen(conns); err == nil || !strings.Contains(err.Error(), "1 of 100") {
		t.Errorf("got %v, want 1 of 100", err)
	}
}

// TestTunnelRefused holds that a tunnel without the whole answer is an error, however fast it fails.
func TestTunnelRefused(t *testing.T) {
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 4<<10))
			c.Write(make([]byte, tunnelAnswer-1))
			c.Close()
		}
	}()
	_, err = opening(4, 0).observe(t.Context(), &server{addr: l.Addr().(*net.TCPAddr).AddrPort()}, short)
	if err == nil || !strings.Contains(err.Error(), "after 4095 of 4096 bytes") {
		t.Errorf("got %v, want an error that says how much was missing", err)
	}
}

// TestQuestions holds that a server that answers otherwise is not measured.
func TestQuestions(t *testing.T) {
	allow := func(q dns.Question, m *dns.Msg) {
		m.Answer = []dns.RR{&dns.A{Hdr: rrHeader(q.Name, dns.TypeA), A: net.IPv4(192, 0, 2, 1)}}
	}
	for _, tc := range []struct {
		name   string
		handle func(q dns.Question, m *dns.Msg)
		want   string // in the error; none if empty
	}{
		{"right", func(q dns.Question, m *dns.Msg) {
			if strings.HasSuffix(q.Name, ".invalid.") {
				m.Rcode = dns.RcodeNameError
				return
			}
			allow(q, m)
		}, ""},
		{"everything denied", func(_ dns.Question, m *dns.Msg) { m.Rcode = dns.RcodeNameError },
			"got NXDOMAIN and 0 answers, want NOERROR and 1"},
		{"everything allowed", allow, "got NOERROR and 1 answers, want NXDOMAIN and 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
			if err != nil {
				t.Fatal(err)
			}
			srv := &dns.Server{PacketConn: c, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
				m := new(dns.Msg)
				m.SetReply(r)
				tc.handle(r.Question[0], m)
				w.WriteMsg(m)
			})}
			go srv.ActivateAndServe()
			defer c.Close()
			err = newQuestions(20).ask(c.LocalAddr().(*net.UDPAddr).AddrPort(), 20)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestReadDNSPerf reads what dnsperf 2.10 prints.
func TestReadDNSPerf(t *testing.T) {
	print := func(sent, completed int, codes string) []byte {
		return fmt.Appendf(nil, `Statistics:

  Queries sent:         %d
  Queries completed:    %d (99.00%%)
  Queries lost:         %d (0.00%%)

  Response codes:       %s
  Average packet size:  request 39, response 98
  Run time (s):         0.420420
  Queries per second:   37391.180248
`, sent, completed, sent-completed, codes)
	}
	shares := map[string]float64{"NOERROR": 0.8, "NXDOMAIN": 0.2}
	for _, tc := range []struct {
		name string
		out  []byte
		want string // in the error; none if empty
	}{
		{"right", print(15720, 15720, "NOERROR 12576 (80.00%), NXDOMAIN 3144 (20.00%)"), ""},
		{"few", print(200, 200, "NOERROR 165 (82.50%), NXDOMAIN 35 (17.50%)"), ""},
		{"lost", print(15720, 15719, "NOERROR 12575 (80.00%), NXDOMAIN 3144 (20.00%)"), "of 15720"},
		{"wrong shares", print(15720, 15720, "NOERROR 15000 (95.42%), NXDOMAIN 720 (4.58%)"), "want"},
		{"wrong code", print(15720, 15720, "NOERROR 12576 (80.00%), SERVFAIL 3144 (20.00%)"), "none of SERVFAIL"},
		{"nothing", nil, "questions answered"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := readDNSPerf(tc.out, shares)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				return
			}
			if err != nil || got.perSecond != 37391.180248 {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestReadBenchmark(t *testing.T) {
	const out = `goos: linux
BenchmarkLoad/rules=20-2 	   12345	     81500 ns/op	         0.0125 MB-held	   28392 B/op	     210 allocs/op
PASS
`
	for unit, want := range map[string]float64{"ns/op": 81500e-9, "MB-held": 12500} {
		if got, err := readBenchmark([]byte(out), unit); err != nil || math.Abs(got/want-1) > 1e-9 {
			t.Errorf("%s: got %v, %v, want %v", unit, got, err, want)
		}
	}
	for name, out := range map[string]string{"none": "PASS\n", "two": out + out} {
		if got, err := readBenchmark([]byte(out), "ns/op"); err == nil {
			t.Errorf("%s: got %v, want an error", name, got)
		}
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := suite{
		name: "test",
		peers: []peer{{name: "peer", start: func(context.Context) (*server, error) {
			return new(server), nil
		}}},
		measures: []measure{{name: "measure", take: load(func(ctx context.Context, _ *server, m *meter) error {
			cancel()
			m.done.Add(1)
			<-ctx.Done()
			return nil
		}).values(func(use) []float64 { return nil })}},
	}
	if _, err := s.run(ctx, short); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
