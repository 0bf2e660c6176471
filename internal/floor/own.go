package floor

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// ownFor is how long the addresses of the interfaces are taken for what they were. Asking the kernel
// takes some 100 µs, and an address that is new to the gateway is not yet known to the sandbox either.
const ownFor = 5 * time.Second

// ownAddrs knows the addresses of this host's interfaces, public ones too. Its zero value asks the system.
type ownAddrs struct {
	interfaces func() ([]net.Addr, error) // default: net.InterfaceAddrs
	now        func() time.Time           // default: time.Now

	last atomic.Pointer[ownSet]
	mu   sync.Mutex // held by whoever renews last
}

type ownSet struct {
	addrs map[netip.Addr]struct{}
	until time.Time
}

// has reports whether a, which is unmapped and without a zone, is an address of this host. All of
// loopback is. If the interfaces cannot be read, those that were read last count; err is that of the first
// attempt. Unless ask is set, it is ErrDue that the system would be asked.
func (o *ownAddrs) has(a netip.Addr, ask bool) (bool, error) {
	if a.IsLoopback() {
		return true, nil
	}
	set, err := o.current(ask)
	if err != nil {
		return false, err
	}
	_, ok := set.addrs[a]
	return ok, nil
}

func (o *ownAddrs) current(ask bool) (*ownSet, error) {
	now := time.Now
	if o.now != nil {
		now = o.now
	}
	if s := o.last.Load(); s != nil && now().Before(s.until) {
		return s, nil
	}
	if !ask {
		return nil, ErrDue
	}

	// Whoever comes meanwhile waits: the old set may lack the very address that is asked for.
	o.mu.Lock()
	defer o.mu.Unlock()
	old := o.last.Load()
	if old != nil && now().Before(old.until) {
		return old, nil
	}
	interfaces := net.InterfaceAddrs
	if o.interfaces != nil {
		interfaces = o.interfaces
	}
	addrs, err := interfaces()
	if err != nil && old == nil {
		return nil, err
	}
	s := &ownSet{until: now().Add(ownFor)}
	if err != nil {
		s.addrs = old.addrs
	} else {
		s.addrs = make(map[netip.Addr]struct{}, len(addrs))
		for _, a := range addrs {
			s.addrs[addrOf(a)] = struct{}{}
		}
	}
	o.last.Store(s)
	return s, nil
}

// addrOf returns the address of an interface, the zero Addr if it has none.
func addrOf(a net.Addr) netip.Addr {
	var ip net.IP
	switch a := a.(type) {
	case *net.IPNet:
		ip = a.IP
	case *net.IPAddr:
		ip = a.IP
	}
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}
