package floor

import (
	"net/netip"
	"testing"
)

// FuzzCheck holds, for every address there is: its spelling makes no difference, a zone or a range that
// the table denies is never allowed, nor is anything outside of global unicast.
func FuzzCheck(f *testing.F) {
	rows := readRows(f)
	for _, r := range rows {
		f.Add(r.first().AsSlice(), "", uint16(443))
		f.Add(r.last().AsSlice(), "", uint16(443))
	}
	mapped := netip.MustParseAddr("::ffff:8.8.8.8").As16()
	f.Add(mapped[:], "", uint16(443))
	f.Add(mapped[:], "eth0", uint16(443))
	f.Add([]byte{8, 8, 8, 8}, "", uint16(0))
	f.Add([]byte{}, "", uint16(443))
	floor := testFloor([]string{"203.0.114.7", "2600:1f00::7"}, nil, "198.35.26.0/24")

	f.Fuzz(func(t *testing.T, b []byte, zone string, port uint16) {
		a, _ := netip.AddrFromSlice(b) // not valid but for 4 and 16 bytes
		if a.Is6() {
			a = a.WithZone(zone)
		}
		err := floor.Check(netip.AddrPortFrom(a, port), false)
		if err == nil && (a.Zone() != "" || naive(rows, a)) {
			t.Fatalf("Check(%v) allows it", a)
		}
		if err == nil && port == 0 {
			t.Fatal("Check allows port 0")
		}
		lifted := floor.Check(netip.AddrPortFrom(a, port), true)
		if lifted != nil && err == nil {
			t.Fatalf("Check(%v) = %v only if it is lifted", a, lifted)
		}
		if _, denied := Special(a); !denied && naive(rows, a) {
			t.Fatalf("Special(%v) allows it", a)
		}
		if a.Zone() != "" {
			return
		}
		for _, other := range []netip.Addr{a.Unmap(), netip.AddrFrom16(a.As16())} {
			if !a.IsValid() {
				break
			}
			if got := floor.Check(netip.AddrPortFrom(other, port), false); text(got) != text(err) {
				t.Fatalf("Check(%v) = %v, Check(%v) = %v", a, err, other, got)
			}
			if got := floor.Check(netip.AddrPortFrom(other, port), true); text(got) != text(lifted) {
				t.Fatalf("lifted: Check(%v) = %v, Check(%v) = %v", a, lifted, other, got)
			}
		}
	})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
