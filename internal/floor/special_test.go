package floor

import (
	"encoding/csv"
	"net/netip"
	"os"
	"testing"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// row is a row of the table as the tests read it, bit by bit and without the code under test.
type row struct {
	prefix string
	bits   []byte // of the prefix, each 0 or 1
	v4     bool
	name   string
	source string
	deny   bool
}

func readRows(t testing.TB) []row {
	t.Helper()
	f, err := os.Open("special_purpose.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	for _, l := range lines[1:] {
		p := netip.MustParsePrefix(l[0])
		rows = append(rows, row{l[0], bitsOf(p.Addr())[:p.Bits()], p.Addr().Is4(), l[1], l[2], l[3] == "yes"})
	}
	if len(rows) < 90 {
		t.Fatalf("table has %d rows, want all of them", len(rows))
	}
	return rows
}

func bitsOf(a netip.Addr) []byte {
	var bits []byte
	for _, b := range a.AsSlice() {
		for i := 7; i >= 0; i-- {
			bits = append(bits, b>>i&1)
		}
	}
	return bits
}

func addrOfBits(bits []byte) netip.Addr {
	b := make([]byte, len(bits)/8)
	for i, v := range bits {
		b[i/8] |= v << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (r row) has(a netip.Addr) bool {
	return a.Is4() == r.v4 && string(bitsOf(a)[:len(r.bits)]) == string(r.bits)
}

// naive is what the table says of a: denied by any row that does, else allowed by one that does.
func naive(rows []row, a netip.Addr) (denied bool) {
	a = a.Unmap().WithZone("")
	allowed := false
	for _, r := range rows {
		switch {
		case !r.has(a):
		case r.deny:
			return true
		default:
			allowed = true
		}
	}
	return !allowed
}

// first, last and middle are addresses of the range.
func (r row) first() netip.Addr  { return r.fill(0, 0) }
func (r row) last() netip.Addr   { return r.fill(1, 1) }
func (r row) middle() netip.Addr { return r.fill(1, 0) }

func (r row) fill(next, rest byte) netip.Addr {
	size := 128
	if r.v4 {
		size = 32
	}
	bits := append([]byte(nil), r.bits...)
	for len(bits) < size {
		if len(bits) == len(r.bits) {
			bits = append(bits, next)
		} else {
			bits = append(bits, rest)
		}
	}
	return addrOfBits(bits)
}

// TestSpecialRows asks for the first, a middle and the last address of every row, and for both neighbours.
func TestSpecialRows(t *testing.T) {
	rows := readRows(t)
	for _, r := range rows {
		t.Run(r.prefix+" "+r.name, func(t *testing.T) {
			inside := []netip.Addr{r.first(), r.middle(), r.last()}
			for _, a := range inside {
				entry, denied := Special(a)
				// The IPv4-mapped range is denied as the IPv4 addresses that it stands for.
				if r.deny && !a.Is4In6() && !denied {
					t.Errorf("Special(%v) allows it", a)
				}
				if denied && !a.Is4In6() && !entry.Prefix.Contains(a) {
					t.Errorf("Special(%v) blames %v, which it is not in", a, entry.Prefix)
				}
			}
			for _, a := range append(inside, r.first().Prev(), r.last().Next()) {
				if !a.IsValid() { // beyond the first or last address there is
					continue
				}
				if _, got := Special(a); got != naive(rows, a) {
					t.Errorf("Special(%v) denies: %v, want %v", a, got, naive(rows, a))
				}
			}
		})
	}
}

// TestSpecialNo has the rows that are not denied, but for what lies in them.
func TestSpecialNo(t *testing.T) {
	for _, s := range []string{"161.26.0.10", "166.8.0.1", "166.11.255.255", "2600::1", "93.184.215.14"} {
		if e, denied := Special(netip.MustParseAddr(s)); denied {
			t.Errorf("Special(%s) denies it for %v", s, e)
		}
	}
}

func TestSpecialEntry(t *testing.T) {
	tests := []struct{ addr, prefix, name string }{
		{"10.1.2.3", "10.0.0.0/8", "Private-use"},
		{"169.254.169.254", "169.254.0.0/16", "Link-local"},
		{"::ffff:169.254.169.254", "169.254.0.0/16", "Link-local"},
		{"168.63.129.16", "168.63.129.16/32", "Azure WireServer / DNS / DHCP"},
		{"fd00:ec2::254", "fc00::/7", "Unique-local"},
		{"::1", "::1/128", "Loopback"},
		{"192.0.0.171", "192.0.0.171/32", "NAT64/DNS64 discovery"},
		{"2001:db8::1", "2001:db8::/32", "Documentation"},
		{"fe80::1%eth0", "fe80::/10", "Link-local"},
		{"::ffff:10.0.0.1%eth0", "10.0.0.0/8", "Private-use"},
	}
	for _, tc := range tests {
		e, denied := Special(netip.MustParseAddr(tc.addr))
		if !denied || e.Prefix.String() != tc.prefix || e.Name != tc.name || e.Source == "" {
			t.Errorf("Special(%s) = %+v, %v; want %s (%s)", tc.addr, e, denied, tc.prefix, tc.name)
		}
	}
	for _, a := range []netip.Addr{{}, netip.MustParseAddr("2600::1%eth0"), netip.MustParseAddr("::ffff:8.8.8.8%eth0")} {
		if e, denied := Special(a); !denied || e != (Entry{}) {
			t.Errorf("Special(%v) = %+v, %v; want it denied without an entry", a, e, denied)
		}
	}
}

// TestMetadataRows holds the vendors' rows and policy.MetadataAddr together: the one is the table that
// names them, the other what no policy lifts.
func TestMetadataRows(t *testing.T) {
	n := 0
	for _, r := range readRows(t) {
		if r.source != vendorDocs || !r.deny {
			continue
		}
		n++
		if r.first() != r.last() {
			t.Errorf("%s is no single address", r.prefix)
		}
		if !policy.MetadataAddr(r.first()) {
			t.Errorf("policy.MetadataAddr(%v) = false", r.first())
		}
	}
	if n == 0 {
		t.Error("table has no vendor's row")
	}
}

func TestParsePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("parse took \"maybe\"")
		}
	}()
	parse("prefix,name,source,deny,note\n10.0.0.0/8,Private-use,RFC1918,maybe,\n")
}
