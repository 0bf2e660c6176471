package floor

import (
	"net/netip"
	"sync"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/listener"
)

// listensFor is how long what the process listens on is taken for what it was. To ask takes time with each
// descriptor, of which there are two a tunnel; a listener that opens is not dialled within a second by a
// sandbox that waited for it.
const listensFor = time.Second

// listeners knows what this process accepts connections on. Its zero value asks the system.
type listeners struct {
	mu    sync.Mutex
	until time.Time
	at    []netip.AddrPort
	err   error
}

// has reports whether this process accepts TCP connections to ap, an address of this host. A listener on a
// wildcard address, of either family, accepts connections to every address. Unless ask is set, it is ErrDue that the
// system would be asked.
func (l *listeners) has(ap netip.AddrPort, ask bool) (bool, error) {
	if !ask && !l.mu.TryLock() { // somebody asks right now
		return false, ErrDue
	}
	if ask {
		l.mu.Lock()
	}
	defer l.mu.Unlock()
	if now := time.Now(); !now.Before(l.until) {
		if !ask {
			return false, ErrDue
		}
		l.at = nil
		l.err = listener.Each(func(_ int, at netip.AddrPort) { l.at = append(l.at, at) })
		l.until = now.Add(listensFor)
	}
	for _, at := range l.at {
		if at.Port() == ap.Port() && (at.Addr() == ap.Addr() || at.Addr().IsUnspecified()) {
			return true, l.err
		}
	}
	return false, l.err
}
