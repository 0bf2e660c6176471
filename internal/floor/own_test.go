package floor

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestOwnAddrs goes through the life of the cache: asked once, kept, renewed, and kept on when the system
// does not answer any more.
func TestOwnAddrs(t *testing.T) {
	var (
		clock = time.Unix(0, 0)
		asked = 0
		reply []net.Addr
		fail  error
	)
	o := ownAddrs{
		interfaces: func() ([]net.Addr, error) { asked++; return reply, fail },
		now:        func() time.Time { return clock },
	}
	first, second := netip.MustParseAddr("203.0.114.7"), netip.MustParseAddr("2600:1f00::7")

	step := func(name string, a netip.Addr, want bool, wantErr error, wantAsked int) {
		t.Helper()
		asked = 0
		got, err := o.has(a, true)
		if got != want || !errors.Is(err, wantErr) {
			t.Errorf("%s: has(%v) = %v, %v; want %v, %v", name, a, got, err, want, wantErr)
		}
		if asked != wantAsked {
			t.Errorf("%s: asked %d times, want %d", name, asked, wantAsked)
		}
	}

	fail = errors.New("no netlink")
	step("first attempt fails", first, false, fail, 1)
	step("so does the next", first, false, fail, 1)
	step("loopback needs no look", netip.MustParseAddr("127.1.2.3"), true, nil, 0)
	fail, reply = nil, []net.Addr{&net.IPNet{IP: net.IPv4(203, 0, 114, 7), Mask: net.CIDRMask(24, 32)}}
	step("asked", first, true, nil, 1)
	step("kept", second, false, nil, 0)
	reply = []net.Addr{&net.IPAddr{IP: net.ParseIP("2600:1f00::7")}}
	clock = clock.Add(ownFor - 1)
	step("kept to the end", first, true, nil, 0)
	clock = clock.Add(1)
	step("renewed", second, true, nil, 1)
	step("the old one is forgotten", first, false, nil, 0)
	fail = errors.New("no netlink any more")
	clock = clock.Add(ownFor)
	step("the last answer stays", second, true, nil, 1)
	step("and is not asked for each time", second, true, nil, 0)
}

// TestOwnAddrsConcurrent holds that many who come at once cost one look.
func TestOwnAddrsConcurrent(t *testing.T) {
	var asked atomic.Int32
	o := ownAddrs{
		interfaces: func() ([]net.Addr, error) { asked.Add(1); return nil, nil },
		now:        func() time.Time { return time.Unix(0, 0) },
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if own, err := o.has(netip.MustParseAddr("8.8.8.8"), true); own || err != nil {
				t.Errorf("has = %v, %v", own, err)
			}
		})
	}
	wg.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
}

// TestOwnAddrsSystem holds that the addresses of this very host are own ones.
func TestOwnAddrsSystem(t *testing.T) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	f := New(nil)
	for _, a := range addrs {
		ap := netip.AddrPortFrom(addrOf(a), 443)
		if err := f.Check(ap, false); err == nil {
			t.Errorf("Check(%v) allows an address of this host", ap)
		}
	}
}
