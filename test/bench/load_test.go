package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
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

// TestTunnelLoads has all loads of tunnels go to the upstream itself.
func TestTunnelLoads(t *testing.T) {
	u, err := newUpstream()
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	for _, m := range []measure{
		newTunnels("tunnels", "", 4, 0),
		newTunnels("steady", "", 4, 100),
		newTunnels("tunnels by Postgres", "", 4, 0),
		bulk("bulk", "", 2),
	} {
		t.Run(m.name, func(t *testing.T) {
			s := &server{addr: u.addr}
			if strings.HasSuffix(m.name, "Postgres") {
				s.before = askTLS
			}
			got, err := m.observe(t.Context(), s, short)
			if err != nil {
				t.Fatal(err)
			}
			if got.done <= 0 || got.wall < short.window {
				t.Errorf("got %v in %v, want something in at least %v", got.done, got.wall, short.window)
			}
			if got, want := len(m.values(got)), len(m.columns); got != want {
				t.Errorf("got %d values, want %d", got, want)
			}
			if rate := got.perSecond(); m.name == "steady" && rate > 120 {
				t.Errorf("got %.0f tunnels a second, want 100", rate)
			}
		})
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
	m := newTunnels("tunnels", "", 4, 0)
	_, err = m.observe(t.Context(), &server{addr: l.Addr().(*net.TCPAddr).AddrPort()}, short)
	if err == nil || !strings.Contains(err.Error(), "after 4095 of 4096 bytes") {
		t.Errorf("got %v, want an error that says how much was missing", err)
	}
}

func TestDNSLoad(t *testing.T) {
	q, err := newQuestions(10)
	if err != nil {
		t.Fatal(err)
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
			m.Answer = []dns.RR{&dns.A{Hdr: rrHeader(q.Name, dns.TypeA), A: net.IPv4(192, 0, 2, 1)}}
		}, ""},
		{"everything denied", func(_ dns.Question, m *dns.Msg) { m.Rcode = dns.RcodeNameError },
			"got rcode 3 and 0 answers, want rcode 0 and 1"},
		{"everything allowed", func(q dns.Question, m *dns.Msg) {
			m.Answer = []dns.RR{&dns.A{Hdr: rrHeader(q.Name, dns.TypeA), A: net.IPv4(192, 0, 2, 1)}}
		}, "got rcode 0 and 1 answers, want rcode 3 and 0"},
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

			m := dnsQuestions("DNS", "")
			s := &server{addr: c.LocalAddr().(*net.UDPAddr).AddrPort(), asked: q}
			got, err := m.observe(t.Context(), s, short)
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want == "" && got.done <= 0:
				t.Errorf("got %v replies, want some", got.done)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := suite{
		name: "test",
		peers: []peer{{name: "peer", start: func(context.Context) (*server, error) {
			return new(server), nil
		}}},
		measures: []measure{{name: "measure", load: func(ctx context.Context, _ *server, m *meter) error {
			cancel()
			m.done.Add(1)
			<-ctx.Done()
			return nil
		}}},
	}
	if _, err := s.run(ctx, short); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
