//go:build linux

package e2e

import (
	"encoding/csv"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// class is a range of addresses that is never dialled, a row of the product's table, and an address in it.
type class struct {
	prefix netip.Prefix
	label  string
	addr   netip.Addr
}

// picks are addresses of ranges whose second address would not tell what is to be told.
var picks = map[string]string{
	"0.0.0.0/32":         "0.0.0.0", // which connect(2) takes for loopback
	"127.0.0.0/8":        "127.0.0.1",
	"169.254.0.0/16":     "169.254.7.7",
	"255.255.255.255/32": "255.255.255.255",
	"::/128":             "::",
	"::/96":              "::a00:7",            // 10.0.0.7
	"::ffff:0:0/96":      "::ffff:10.0.0.7",    // the same
	"::ffff:0:0:0/96":    "::ffff:0:a00:7",     // the same
	"64:ff9b::/96":       "64:ff9b::a9fe:a9fe", // 169.254.169.254
	"2002::/16":          "2002:a00:7::1",      // 10.0.0.7
	"::/8":               "10::1",
	"100::/8":            "1ff::1",
}

// undialable are the ranges that no kernel connects to over TCP, or not from one host to another. That they
// are refused is told by the tap alone: there is nothing that could count.
var undialable = []string{
	"0.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32", "ff00::/8",
	"fe80::/10", "fe80::a9fe:a9fe/128", // without a zone, which no answer has
}

// classes reads the product's table: one address of each row that denies.
func classes(t *testing.T) (list []class) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "internal", "floor", "special_purpose.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows[1:] {
		if row[3] != "yes" {
			continue
		}
		c := class{prefix: netip.MustParsePrefix(row[0]), label: row[1]}
		if pick := picks[row[0]]; pick != "" {
			c.addr = netip.MustParseAddr(pick)
		} else if c.addr = c.prefix.Addr(); !c.prefix.IsSingleIP() {
			c.addr = c.addr.Next()
		}
		if !c.prefix.Contains(c.addr) && !(c.addr.Is4In6() && c.prefix.Addr().Is4In6()) {
			t.Fatalf("%s is not in %s", c.addr, c.prefix)
		}
		list = append(list, c)
	}
	if len(list) < 90 {
		t.Fatalf("the table has %d rows that deny", len(list))
	}
	return list
}

// An allowed name that resolves to any address below the floor is refused, in every mode, and no connection
// is even begun: the listeners on these addresses stay silent, and each of them could have been reached.
func TestFloor(t *testing.T) {
	const strict, open = "policy default {\n\tallow .example.com\n}\n", "policy default {\n\tmode open\n}\n"
	l := newLab(t)
	syns := newTap(t, l.gateway, func(p packet) bool { return p.out && p.syn && p.port == 443 })

	all := classes(t)
	servers := make([]*server, len(all))
	for i, c := range all {
		l.internet.dns.set(nameOf(i), addrs(c.addr))
		if slices.Contains(undialable, c.prefix.String()) {
			continue
		}
		n := l.internet.ns
		listen := netip.AddrPortFrom(c.addr.Unmap(), 443)
		if c.addr.IsLoopback() || c.addr.IsUnspecified() {
			n = l.gateway
			if listen = netip.MustParseAddrPort("127.0.0.1:443"); c.addr.Is6() {
				listen = netip.MustParseAddrPort("[::1]:443")
			}
		}
		s, err := l.internet.count(n, listen)
		if err != nil {
			t.Fatalf("%s: %v", listen, err)
		}
		servers[i] = s
	}

	for _, mode := range []struct{ name, policy, rule string }{{"strict", strict, "allow .example.com"}, {"open", open, ""}} {
		t.Run(mode.name, func(t *testing.T) {
			// A gateway for each, which logs some hundred denials of a client at once before it folds them. Loopback
			// is left to the listeners that count.
			g := l.start(t, config{policy: mode.policy, listen: gatewayTLS.String(), options: "idle_timeout 1m"})
			for i, c := range all {
				t.Run(c.addr.String(), func(t *testing.T) {
					mark := g.caddy.log.mark()
					if _, err := l.tunnel(nameOf(i)); !errors.Is(err, alertError(alertAccessDenied)) {
						t.Errorf("%s (%s): %v, want access_denied", c.addr, c.label, err)
					}
					g.denied(t, mark, nameOf(i), "private_address", mode.rule)
				})
			}
		})
	}
	for _, p := range syns.packets(t) {
		t.Errorf("the gateway tried to connect to %s", p.to)
	}

	// Connections are accepted in their order: what came before the control would have been counted.
	controls := make(map[*server]int64)
	for i, c := range all {
		s := servers[i]
		conn, err := l.gateway.dial("tcp", netip.AddrPortFrom(c.addr, 443))
		if s == nil {
			if err == nil {
				t.Errorf("%s can be dialled: it needs a listener that counts", c.addr)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s (%s): the gateway could not have reached it at all: %v", c.addr, c.label, err)
			continue
		}
		_ = conn.Close()
		controls[s]++
	}
	for s, want := range controls {
		if !eventually(startTimeout, func() bool { return s.accepted.Load() >= want }) || s.accepted.Load() != want {
			t.Errorf("%s: %d connections, %d of them are the controls", s.addr, s.accepted.Load(), want)
		}
	}
}

// A private line lifts the floor for what it names, metadata addresses excepted.
func TestPrivate(t *testing.T) {
	l := newLab(t)
	g := l.start(t, config{policy: `policy default {
	allow   .example.com
	private 10.0.0.0/24 169.254.0.0/16 127.0.0.0/8 172.30.0.0/24
}
`})
	for name, a := range map[string]string{
		"named.example.com":    "10.0.0.5",
		"beside.example.com":   "10.0.1.5",
		"metadata.example.com": "169.254.169.254",
	} {
		if _, err := l.internet.host(name, netip.MustParseAddr(a)); err != nil {
			t.Fatal(err)
		}
	}
	// The very port on which the gateway listens: it would go on with itself until descriptors run out.
	l.internet.dns.set("itself.example.com", addrs(netip.MustParseAddr("127.0.0.1"), gatewayAddr))

	l.reaches(t, "named.example.com")
	for _, name := range []string{"beside.example.com", "metadata.example.com", "itself.example.com"} {
		mark := g.caddy.log.mark()
		if _, err := l.tunnel(name); !errors.Is(err, alertError(alertAccessDenied)) {
			t.Errorf("%s: %v, want access_denied", name, err)
		}
		g.denied(t, mark, name, "private_address", "allow")
	}
}

func nameOf(i int) string { return fmt.Sprintf("class%d.example.com", i) }
