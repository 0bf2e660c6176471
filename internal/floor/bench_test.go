package floor

import (
	"net/netip"
	"testing"
)

func BenchmarkCheck(b *testing.B) {
	f := testFloor([]string{"203.0.114.7", "10.200.0.1", "2600:1f00::7", "fd00:30::20"}, nil, "198.35.26.0/24")
	for _, s := range []string{"93.184.215.14:443", "[2606:4700::1111]:443", "10.0.0.1:443"} {
		b.Run(s, func(b *testing.B) {
			ap := netip.MustParseAddrPort(s)
			b.ReportAllocs()
			for b.Loop() {
				_ = f.Check(ap, false)
			}
		})
	}
}

func BenchmarkSpecial(b *testing.B) {
	for _, s := range []string{"93.184.215.14", "2606:4700::1111"} {
		b.Run(s, func(b *testing.B) {
			a := netip.MustParseAddr(s)
			b.ReportAllocs()
			for b.Loop() {
				if _, denied := Special(a); denied {
					b.Fatal("denied")
				}
			}
		})
	}
}
