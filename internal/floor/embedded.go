package floor

import "net/netip"

// The ranges whose addresses embed an IPv4 address at a place that is known.
var (
	compatible = netip.MustParsePrefix("::/96")           // RFC 4291 §2.5.5.1
	translated = netip.MustParsePrefix("::ffff:0:0:0/96") // RFC 2765 §2.1
	nat64      = netip.MustParsePrefix("64:ff9b::/96")    // RFC 6052 §2.1
	nat64Local = netip.MustParsePrefix("64:ff9b:1::/48")  // RFC 8215
	teredo     = netip.MustParsePrefix("2001::/32")       // RFC 4380 §4
	sixToFour  = netip.MustParsePrefix("2002::/16")       // RFC 3056 §2
)

// embedded returns the IPv4 addresses that a may end up at.
func embedded(a netip.Addr) []netip.Addr {
	if !a.Is6() {
		return nil
	}
	b := a.As16()
	v4 := func(i, j, k, l int) netip.Addr { return netip.AddrFrom4([4]byte{b[i], b[j], b[k], b[l]}) }
	switch {
	case compatible.Contains(a), translated.Contains(a), nat64.Contains(a):
		return []netip.Addr{v4(12, 13, 14, 15)}
	case nat64Local.Contains(a):
		// The network picks the length of its prefix, and byte 8 stays zero (RFC 6052 §2.2).
		return []netip.Addr{v4(6, 7, 9, 10), v4(7, 9, 10, 11), v4(9, 10, 11, 12), v4(12, 13, 14, 15)}
	case sixToFour.Contains(a):
		return []netip.Addr{v4(2, 3, 4, 5)}
	case teredo.Contains(a):
		for i := 12; i < 16; i++ {
			b[i] = ^b[i] // the client's is obfuscated
		}
		return []netip.Addr{v4(4, 5, 6, 7), v4(12, 13, 14, 15)} // server, client
	}
	return nil
}
