//go:build linux

package e2e

import (
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// Real addresses of names in the lab.
var (
	webAddr   = netip.MustParseAddr("93.184.215.14")
	otherAddr = netip.MustParseAddr("93.184.216.34")
	webAddr6  = netip.MustParseAddr("2606:4700::1111")
)

// The lab is what it says: without the product, the gateway reaches the internet and the sandbox does not.
func TestLab(t *testing.T) {
	l := newLab(t)
	for name, a := range map[string]netip.Addr{"www.example.org": webAddr, "six.example.org": webAddr6} {
		s, err := l.internet.host(name, a)
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.gateway.dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := getPage(tls.Client(c, l.ca.client(name)), name); err != nil || body != page(name) {
			t.Errorf("%s: %q, %v", name, body, err)
		}
		if n := s.accepted.Load(); n != 1 {
			t.Errorf("%s: %d connections counted, want 1", name, n)
		}
	}

	q := new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA)
	if r, err := exchange(l.gateway, netip.AddrPortFrom(resolverAddr, 53), q); err != nil || len(r.Answer) != 1 {
		t.Errorf("DNS: %v, %v", r, err)
	}
	if n := l.internet.dns.questions("www.example.org"); n != 1 {
		t.Errorf("%d questions counted, want 1", n)
	}

	if c, err := l.gateway.dial("tcp", netip.AddrPortFrom(refusingAddr, 443)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("refusing address: %v, %v", c, err)
	}
	for _, a := range []netip.Addr{silentAddr, silentAddr6} {
		_, err := l.gateway.dialWithin(200*time.Millisecond, "tcp", netip.AddrPortFrom(a, 443))
		if nerr := net.Error(nil); !errors.As(err, &nerr) || !nerr.Timeout() {
			t.Errorf("silent address %s: %v", a, err)
		}
	}
}

// What the sandbox sends past the gateway, to addresses instead of names, arrives nowhere: the gateway
// forwards nothing. The default route to it is what an attacker would have to add first.
func TestNoWayOut(t *testing.T) {
	need(t, "curl")
	l := newLab(t)
	g := l.start(t, config{policy: "policy default {\n\tmode open\n}\n"})
	arrived := newTap(t, l.internet.ns, func(p packet) bool { return p.from == sandboxAddr || p.from == sandboxAddr6 })
	sent := newTap(t, l.sandbox, func(p packet) bool { return p.out && p.to != gatewayAddr && p.to != gatewayAddr6 })

	// Each try is a packet or several; what comes back is nothing, within a time in which the gateway's own
	// tries succeed.
	const wait = 300 * time.Millisecond
	tcp := func(t *testing.T, a string, port uint16) {
		ap := netip.AddrPortFrom(netip.MustParseAddr(a), port)
		if _, err := l.internet.count(l.internet.ns, ap); err != nil {
			t.Fatal(err)
		}
		if c, err := l.sandbox.dialWithin(wait, "tcp", ap); err == nil {
			t.Errorf("tcp %s: connected to %s", ap, c.RemoteAddr())
		}
	}
	udp := func(t *testing.T, a string, port uint16, payload []byte) {
		ap := netip.AddrPortFrom(netip.MustParseAddr(a), port)
		c, err := l.sandbox.dial("udp", ap)
		if err != nil {
			return // no route is as good
		}
		defer c.Close()
		_, _ = c.Write(payload)
		_ = c.SetReadDeadline(time.Now().Add(wait))
		if n, err := c.Read(make([]byte, 512)); err == nil {
			t.Errorf("udp %s: %d octets came back", ap, n)
		}
	}
	query, err := new(dns.Msg).SetQuestion("example.com.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}

	t.Run("dns-046", func(t *testing.T) {
		resolver := "203.0.113.53"
		if err := l.internet.dns.serve(l.internet.ns, netip.AddrPortFrom(netip.MustParseAddr(resolver), 53)); err != nil {
			t.Fatal(err)
		}
		l.internet.dns.set("example.com", addrs(webAddr))
		for _, port := range []uint16{53, 5353} {
			udp(t, resolver, port, query)
		}
		for _, port := range []uint16{53, 853} {
			if c, err := l.sandbox.dialWithin(wait, "tcp", netip.AddrPortFrom(netip.MustParseAddr(resolver), port)); err == nil {
				t.Errorf("tcp %s:%d: connected to %s", resolver, port, c.RemoteAddr())
			}
		}
		if n := l.internet.dns.questions("example.com"); n != 0 {
			t.Errorf("%d questions reached the resolver", n)
		}
	})

	t.Run("ops-018", func(t *testing.T) {
		tcp(t, "93.184.215.14", 443)
		tcp(t, "93.184.215.14", 80)
		tcp(t, routerAddr.String(), 22)
		udp(t, "93.184.215.14", 443, []byte("quic"))
		udp(t, "93.184.215.14", 123, make([]byte, 48))
		ping(t, l.sandbox, webAddr, wait)
		rawIP(t, l.sandbox, webAddr)
	})

	t.Run("ops-020", func(t *testing.T) {
		tcp(t, "2606:4700::1111", 443)
		tcp(t, routerAddr6.String(), 443)
		udp(t, "2606:4700::1111", 53, query)
		ping(t, l.sandbox, webAddr6, wait)
		if out, err := l.curl("https://www.example.org/", "-6", "--connect-timeout", "1", "--connect-to", "::["+webAddr6.String()+"]:443"); err == nil {
			t.Errorf("curl -6: %q", out)
		}
	})

	// The metadata address that every cloud has, as the sandbox itself would reach it.
	t.Run("metadata", func(t *testing.T) {
		tcp(t, "169.254.169.254", 80)
		tcp(t, "168.63.129.16", 80)
		tcp(t, "fd00:ec2::254", 80)
	})

	if len(sent.packets(t)) == 0 {
		t.Fatal("nothing was sent: the silence proves nothing")
	}
	for _, p := range arrived.packets(t) {
		t.Errorf("from the sandbox to the internet: %+v", p)
	}
	if ds := g.decisions(0); len(ds) != 0 {
		t.Errorf("the gateway decided on packets that were not for it: %+v", ds)
	}
}

// ping sends an ICMP echo request and expects no reply.
func ping(t *testing.T, n *namespace, to netip.Addr, wait time.Duration) {
	t.Helper()
	network, request := "ip4:icmp", []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}
	if to.Is6() {
		network, request = "ip6:ipv6-icmp", []byte{128, 0, 0, 0, 0, 0, 0, 0}
	}
	var c net.Conn
	err := n.do(func() (err error) {
		c, err = net.Dial(network, to.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write(request)
	_ = c.SetReadDeadline(time.Now().Add(wait))
	if n, err := c.Read(make([]byte, 512)); err == nil {
		t.Errorf("ping %s: %d octets came back", to, n)
	}
}

// rawIP sends a TCP SYN with a header of the sender's own making, as a process with NET_RAW can.
func rawIP(t *testing.T, n *namespace, to netip.Addr) {
	t.Helper()
	p := []byte{
		0x45, 0, 0, 40, 0, 1, 0, 0, 64, unix.IPPROTO_TCP, 0, 0, // the kernel fills in the checksum
		0, 0, 0, 0, 0, 0, 0, 0,
		0x30, 0x39, 0x01, 0xbb, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0,
	}
	copy(p[12:], sandboxAddr.AsSlice())
	copy(p[16:], to.AsSlice())
	err := n.do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Addr: to.As4()})
	})
	if err != nil {
		t.Fatal(err)
	}
}
