package floor

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// testFloor is a floor of a gateway with these addresses that listens on what listens holds.
func testFloor(own []string, listens map[string]bool, deny ...string) *Floor {
	var prefixes []netip.Prefix
	for _, d := range deny {
		prefixes = append(prefixes, netip.MustParsePrefix(d))
	}
	f := New(prefixes)
	f.own.interfaces = func() ([]net.Addr, error) {
		var addrs []net.Addr
		for _, o := range own {
			addrs = append(addrs, &net.IPNet{IP: net.ParseIP(o), Mask: net.CIDRMask(64, 128)})
		}
		return addrs, nil
	}
	f.listens = func(ap netip.AddrPort, _ bool) (bool, error) { return listens[ap.String()], nil }
	return f
}

func checkAddr(t *testing.T, f *Floor, addr string, port uint16, lifted, allow bool) {
	t.Helper()
	err := f.Check(netip.AddrPortFrom(netip.MustParseAddr(addr), port), lifted)
	if allow {
		if err != nil {
			t.Errorf("Check(%s, port %d, lifted %v) = %v, want it allowed", addr, port, lifted, err)
		}
		return
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Errorf("Check(%s, port %d, lifted %v) = %v, want an *Error", addr, port, lifted, err)
		return
	}
	if e.Name == "" || !strings.HasPrefix(e.Error(), e.Addr.String()+" is ") {
		t.Errorf("error = %q, want one that says what the address is", e)
	}
}

// TestCases is every hard case that is about which addresses may be dialled.
func TestCases(t *testing.T) {
	const (
		never   = iota // denied, lifted or not
		private        // denied but lifted
		public         // allowed
	)
	f := testFloor([]string{"10.200.0.1", "203.0.114.7", "fd00:30::20", "2600:1f00::7"},
		map[string]bool{
			"10.200.0.1:443": true, "203.0.114.7:443": true, "127.0.0.1:2019": true, "[::1]:2019": true,
			"203.0.114.7:2019": true, "10.200.0.1:2019": true,
		},
		"203.0.114.99/32") // the address that a NAT gives the gateway

	type group struct {
		want  int
		port  uint16
		addrs string
	}
	tests := []struct {
		id   string
		want []group
	}{
		{"dial-001", []group{{private, 443, "127.0.0.1 127.255.255.254 ::1"}}},
		{"dial-002", []group{
			{private, 443, "10.0.0.1 172.16.0.1 172.31.255.255 192.168.0.1"},
			{public, 443, "172.32.0.1 172.15.255.255"},
		}},
		{"dial-003", []group{{private, 443, "100.64.0.1 100.127.255.255"}, {public, 443, "100.63.255.255 100.128.0.0"}}},
		{"dial-005", []group{{never, 443, "168.63.129.16 100.100.100.200 192.0.0.192"}}},
		{"dial-006", []group{{never, 443, "fd00:ec2::254 fd00:ec2::23 fd20:ce::254 fd00:c1::a9fe:a9fe fd00:42::42 fd00:100::100:200 fd00:a9fe:a9fe::1 fe80::a9fe:a9fe"}}},
		{"dial-009", []group{{private, 443, "224.0.0.1 239.255.255.255 ff02::1 ff0e::1"}}},
		{"dial-010", []group{{private, 443, "192.0.2.1 198.51.100.1 203.0.113.1 198.18.0.1 198.19.255.255 2001:db8::1 3fff::1"}}},
		{"dial-011", []group{{private, 443, "192.0.0.1 192.0.0.170 192.88.99.1 192.88.99.2"}}},
		{"dial-012", []group{
			{private, 443, "::ffff:127.0.0.1"},
			{never, 443, "::ffff:169.254.169.254"},
			{public, 443, "::ffff:8.8.8.8"}, // is 8.8.8.8
		}},
		{"dial-013", []group{
			{never, 443, "::127.0.0.1 ::a9fe:a9fe ::ffff:0:169.254.169.254"},
			{private, 443, "::808:808"},
		}},
		{"dial-014", []group{{never, 443, "64:ff9b::a9fe:a9fe 64:ff9b::7f00:1"}, {private, 443, "64:ff9b::808:808"}}},
		{"dial-015", []group{{never, 443, "64:ff9b:1::a9fe:a9fe"}, {private, 443, "64:ff9b:1:abcd::1"}}},
		{"dial-017", []group{{private, 443, "fec0::1 200::1 100::1 100:0:0:1::1 5f00::1 4000::1"}}},
		{"dial-018", []group{
			{private, 443, "2001:2::1 2001:10::1 2001:20::1 2001:30::1 2001:1::1"},
			{public, 443, "2001:4860:4860::8888"},
		}},
		{"dial-019", []group{{public, 443, "8.8.8.8 1.1.1.1 172.32.0.1 192.0.1.1 198.20.0.1 223.255.255.254 2001:4860:4860::8888 2606:4700::1111 2a00:1450::1"}}},
		{"dial-020", []group{{never, 443, "fe80::1%eth0 fd00:ec2::254%eth0 ::1%lo 2606:4700::1111%eth0 ::ffff:8.8.8.8%eth0"}}},
		{"dial-021", []group{
			{never, 443, "10.200.0.1 203.0.114.7 203.0.114.99 ::ffff:203.0.114.7"},
			{never, 80, "203.0.114.99"},
			{private, 8443, "203.0.114.7 2600:1f00::7 fd00:30::20"}, // an own address, nobody of ours listens there
		}},
		{"dial-022", []group{
			{private, 443, "10.9.8.7"},
			{never, 80, "169.254.169.254 169.254.170.2"}, // although 169.254.0.0/16 is lifted
			{never, 443, "10.200.0.1"},
		}},
		{"dial-025", []group{{public, 443, "93.184.215.14"}, {private, 443, "fd00::1"}}},
		{"dial-043", []group{{never, 2019, "127.0.0.1 ::1 203.0.114.7 10.200.0.1"}}},
		// What a mapping of digits or a lenient parser would make of these literals is denied too.
		{"dial-045", []group{{private, 443, "127.0.0.1"}, {never, 443, "169.254.169.254"}}},
		{"dial-046", []group{{private, 443, "127.0.0.1 ::1"}, {never, 443, "169.254.169.254"}}},
	}
	for _, tc := range tests {
		t.Run(tc.id, func(t *testing.T) {
			for _, g := range tc.want {
				for addr := range strings.FieldsSeq(g.addrs) {
					checkAddr(t, f, addr, g.port, false, g.want == public)
					checkAddr(t, f, addr, g.port, true, g.want != never)
				}
			}
		})
	}
	t.Run("dial-045", func(t *testing.T) {
		for _, s := range []string{"１２７.０.０.１", "①⑥⑨.②⑤④.①⑥⑨.②⑤④", "127。0。0。1"} {
			if a, err := netip.ParseAddr(s); err == nil {
				t.Errorf("%q is taken for the address %v", s, a)
			}
		}
	})
}

// TestCheckNever has what no place to connect to is, in whatever spelling and lifted or not.
func TestCheckNever(t *testing.T) {
	f := testFloor(nil, nil, "198.35.26.0/24", "2620:0:861::/48", "::ffff:91.198.174.0/120")
	v := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	tests := []struct {
		name string
		ap   netip.AddrPort
		text string
	}{
		{"zero", netip.AddrPort{}, "no address"},
		{"zero address", netip.AddrPortFrom(netip.Addr{}, 443), "no address"},
		{"port 0", netip.AddrPortFrom(v("8.8.8.8"), 0), "without a port"},
		{"0.0.0.0", netip.AddrPortFrom(v("0.0.0.0"), 443), "unspecified"},
		{"::", netip.AddrPortFrom(v("::"), 443), "unspecified"},
		{"::ffff:0.0.0.0", netip.AddrPortFrom(v("::ffff:0.0.0.0"), 443), "unspecified"},
		{"zone", netip.AddrPortFrom(v("2600::1%eth0"), 443), "zone"},
		{"zone on a mapped address", netip.AddrPortFrom(v("::ffff:8.8.8.8%eth0"), 443), "zone"},
		{"metadata", netip.AddrPortFrom(v("169.254.169.254"), 80), "169.254.169.254 is in 169.254.0.0/16 (Link-local"},
		{"mapped metadata", netip.AddrPortFrom(v("::ffff:169.254.169.254"), 80), "169.254.169.254 is in 169.254.0.0/16 (Link-local"},
		{"operator", netip.AddrPortFrom(v("198.35.26.96"), 443), "198.35.26.96 is in 198.35.26.0/24 (denied by the operator)"},
		{"operator, mapped address", netip.AddrPortFrom(v("::ffff:198.35.26.96"), 443), "198.35.26.0/24"},
		{"operator, IPv6", netip.AddrPortFrom(v("2620:0:861:1::1"), 443), "2620:0:861::/48"},
		{"operator, mapped prefix", netip.AddrPortFrom(v("91.198.174.192"), 443), "91.198.174.0/24"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			for _, lifted := range []bool{false, true} {
				err := f.Check(tc.ap, lifted)
				if err == nil || !strings.Contains(err.Error(), tc.text) {
					t.Errorf("Check(%v, %v) = %v, want an error with %q", tc.ap, lifted, err, tc.text)
				}
			}
		})
	}
}

// TestCheckEmbedded has lifted addresses that a translator or a tunnel turns into IPv4 ones.
func TestCheckEmbedded(t *testing.T) {
	f := testFloor([]string{"203.0.114.7"}, nil, "198.35.26.0/24")
	for _, tc := range []struct {
		form     string
		metadata string // 169.254.169.254
		own      string // 203.0.114.7
		operator string // 198.35.26.96
		other    string // 8.8.8.8
	}{
		{"IPv4-compatible", "::a9fe:a9fe", "::cb00:7207", "::c623:1a60", "::808:808"},
		{"SIIT", "::ffff:0:a9fe:a9fe", "::ffff:0:cb00:7207", "::ffff:0:c623:1a60", "::ffff:0:808:808"},
		{"NAT64", "64:ff9b::a9fe:a9fe", "64:ff9b::cb00:7207", "64:ff9b::c623:1a60", "64:ff9b::808:808"},
		{"NAT64 local /48", "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:cb00:72:700::", "64:ff9b:1:c623:1a:6000::", "64:ff9b:1:808:8:800::"},
		{"NAT64 local /56", "64:ff9b:1:55a9:fe:a9fe::", "64:ff9b:1:55cb:0:7207::", "64:ff9b:1:55c6:23:1a60::", "64:ff9b:1:5508:8:808::"},
		{"NAT64 local /64", "64:ff9b:1:5555:a9:fea9:fe00::", "64:ff9b:1:5555:cb:72:700::", "64:ff9b:1:5555:c6:231a:6000::", "64:ff9b:1:5555:8:808:800::"},
		{"NAT64 local /96", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1::cb00:7207", "64:ff9b:1::c623:1a60", "64:ff9b:1::808:808"},
		{"6to4", "2002:a9fe:a9fe::1", "2002:cb00:7207::1", "2002:c623:1a60::1", "2002:808:808::1"},
		{"Teredo client", "2001:0:808:808:8000:63bf:5601:5601", "2001:0:808:808:8000:63bf:34ff:8df8", "2001:0:808:808:8000:63bf:39dc:e59f", "2001:0:808:808:8000:63bf:f7f7:f7f7"},
		{"Teredo server", "2001:0:a9fe:a9fe:8000:63bf:f7f7:f7f7", "2001:0:cb00:7207:8000:63bf:f7f7:f7f7", "2001:0:c623:1a60:8000:63bf:f7f7:f7f7", "2001:0:808:808:8000:63bf:f7f7:f7f7"},
	} {
		t.Run(tc.form, func(t *testing.T) {
			for _, addr := range []string{tc.metadata, tc.own, tc.operator, tc.other} {
				checkAddr(t, f, addr, 443, false, false)
				checkAddr(t, f, addr, 443, true, addr == tc.other)
			}
		})
	}
}

// TestCheckOwnUnknown holds that what cannot be told from an own address is denied.
func TestCheckOwnUnknown(t *testing.T) {
	broken := errors.New("netlink is gone")
	f := New(nil)
	f.own.interfaces = func() ([]net.Addr, error) { return nil, broken }
	for _, lifted := range []bool{false, true} {
		err := f.Check(netip.MustParseAddrPort("8.8.8.8:443"), lifted)
		if !errors.Is(err, broken) {
			t.Errorf("Check(lifted %v) = %v, want it to wrap %v", lifted, err, broken)
		}
	}
}

// TestCheckListensUnknown holds that a lifted own address is denied if nobody knows who listens there.
func TestCheckListensUnknown(t *testing.T) {
	broken := errors.New("no /proc")
	f := testFloor(nil, nil)
	f.listens = func(netip.AddrPort, bool) (bool, error) { return false, broken }
	if err := f.Check(netip.MustParseAddrPort("127.0.0.1:5432"), true); !errors.Is(err, broken) {
		t.Errorf("Check = %v, want it to wrap %v", err, broken)
	}
}

// TestCheckAsks holds that the sockets are asked for lifted own addresses only: it takes a while.
func TestCheckAsks(t *testing.T) {
	f := testFloor([]string{"203.0.114.7"}, nil)
	asked := 0
	f.listens = func(netip.AddrPort, bool) (bool, error) { asked++; return false, nil }
	for _, tc := range []struct {
		addr   string
		lifted bool
		want   int
	}{
		{"8.8.8.8", false, 0}, {"8.8.8.8", true, 0}, {"10.0.0.1", true, 0}, {"203.0.114.7", false, 0},
		{"203.0.114.7", true, 1}, {"127.0.0.1", true, 1},
	} {
		asked = 0
		f.Check(netip.AddrPortFrom(netip.MustParseAddr(tc.addr), 443), tc.lifted)
		if asked != tc.want {
			t.Errorf("Check(%s, lifted %v) asked %d times, want %d", tc.addr, tc.lifted, asked, tc.want)
		}
	}
}

// TestZeroFloor holds that a Floor that nobody made is one.
func TestZeroFloor(t *testing.T) {
	var f Floor
	checkAddr(t, &f, "8.8.8.8", 443, false, true)
	checkAddr(t, &f, "127.0.0.1", 443, false, false)
	checkAddr(t, &f, "169.254.169.254", 80, true, false)
}

func TestAllocs(t *testing.T) {
	f := testFloor([]string{"203.0.114.7"}, nil, "198.35.26.0/24")
	for _, s := range []string{"8.8.8.8:443", "[::ffff:8.8.8.8]:443", "[2606:4700::1111]:443"} {
		ap := netip.MustParseAddrPort(s)
		if got := testing.AllocsPerRun(100, func() { f.Check(ap, false) }); got != 0 {
			t.Errorf("Check(%s): %v allocations", s, got)
		}
	}
}
