package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/miekg/dns"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

const (
	systemConf = "/etc/resolv.conf"

	// cachedNames bounds the cache: 200 bytes a name, 3 KiB if somebody gives it
	// all the addresses that we keep.
	cachedNames = 4096

	// DefaultParallel is what zero means in ResolverConfig.Parallel.
	DefaultParallel = 64

	// maxFlights bounds the names that are asked for or wait for their turn:
	// clients that come and go must not pile up goroutines here.
	maxFlights = 1024
)

// errBusy is the failure of a name that did not get its turn.
var errBusy = errors.New("too many names are asked for")

// ResolverConfig configures a Resolver.
type ResolverConfig struct {
	// Servers are asked in this order: addresses, with a port or without for
	// port 53, such as "1.1.1.1", "9.9.9.9:53" or "[2620:fe::fe]:53". None
	// means the nameserver lines of /etc/resolv.conf, as they are now. Nothing
	// else in that file applies, nor does /etc/hosts.
	Servers []string

	// Parallel is the number of names that may be asked for at a time; others
	// wait. Each takes two sockets per server that is tried. Zero means
	// DefaultParallel.
	Parallel int
}

// limits are the times that a Resolver goes by.
type limits struct {
	total    time.Duration // for one name, over all servers
	repeat   time.Duration // until a question is repeated, and the next server asked too
	grace    time.Duration // for the slower family when the other has addresses (RFC 8305 §3)
	patience time.Duration // until a stale answer is used, while the servers are still asked (RFC 8767 §5)
	minTTL   time.Duration // an answer is good for so long at least,
	maxTTL   time.Duration // and for so long at most
	failure  time.Duration // for how long a failure, or that there is no address, is remembered
	stale    time.Duration // for how long past its TTL an answer stands in for a failure
}

var defaults = limits{
	total:    5 * time.Second,
	repeat:   time.Second,
	grace:    50 * time.Millisecond,
	patience: 1800 * time.Millisecond,
	minTTL:   time.Second,
	maxTTL:   5 * time.Minute,
	failure:  5 * time.Second,
	stale:    5 * time.Minute,
}

// Resolver finds the addresses of names by asking recursive DNS servers, which
// takes 5 s at most. It keeps an answer for its TTL, but 1 s at least and 5 min
// at most, and a failure, or that there is no address, for 5 s. For 5 min past its
// TTL an answer stands in for a failure (RFC 8767). Who asks for a name that is
// being asked for waits for the same answer.
//
// It talks DNS itself, by way of the dns package, and does not sit on top of
// net.Resolver: that one reads /etc/hosts, takes its servers, its patience and
// a search list from the host, and keeps nothing. Nor does ncruces/go-dns, which
// puts a cache of wire messages under net.Resolver: a failure is not remembered
// there, a TTL of 0 never kept, an expired answer gone when the servers are, and
// a hit costs two messages parsed and several goroutines.
type Resolver struct {
	servers []netip.AddrPort
	first   atomic.Uint32 // the server that answered last: asked first
	limits  limits
	now     func() time.Time
	slots   chan struct{} // as many as names may be asked for at a time

	mu      sync.Mutex // around a look into the cache and flights that go together
	cache   *lru.Cache[policy.Name, *entry]
	flights map[policy.Name]*flight
}

// entry is what is known of a name. It is never changed.
type entry struct {
	addrs  []netip.Addr
	err    error     // a *LookupError, if there are no addrs
	fresh  time.Time // until then it is all the answer
	usable time.Time // until then addrs are better than a failure
}

// flight is the asking for one name, whoever waits for it.
type flight struct {
	began time.Time
	done  chan struct{} // closed when entry is set
	entry *entry
}

// NewResolver makes a Resolver. It asks nothing yet.
func NewResolver(c ResolverConfig) (*Resolver, error) {
	return newResolver(c, systemConf)
}

func newResolver(c ResolverConfig, conf string) (*Resolver, error) {
	servers := c.Servers
	if len(servers) == 0 {
		system, err := dns.ClientConfigFromFile(conf)
		if err != nil {
			return nil, fmt.Errorf("resolvers of the system: %w", err)
		}
		if servers = system.Servers; len(servers) == 0 {
			return nil, fmt.Errorf("no nameserver in %s, name one such as 1.1.1.1 or 1.1.1.1:53", conf)
		}
	}
	r := &Resolver{
		limits:  defaults,
		now:     time.Now,
		flights: make(map[policy.Name]*flight),
	}
	for _, s := range servers {
		a, err := parseServer(s)
		if err != nil {
			return nil, err
		}
		r.servers = append(r.servers, a)
	}
	if c.Parallel < 0 {
		return nil, fmt.Errorf("%d names in parallel, want 1 or more, or 0 for %d", c.Parallel, DefaultParallel)
	}
	if c.Parallel == 0 {
		c.Parallel = DefaultParallel
	}
	r.slots = make(chan struct{}, c.Parallel)
	var err error
	r.cache, err = lru.New[policy.Name, *entry](cachedNames)
	return r, err
}

func parseServer(s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.AddrPortFrom(a, 53), nil
	}
	if a, err := netip.ParseAddrPort(s); err == nil && a.Port() != 0 {
		return a, nil
	}
	return netip.AddrPort{}, fmt.Errorf("resolver %q is no address with or without a port, such as 1.1.1.1 or 1.1.1.1:53", s)
}

// Lookup returns the addresses of n, the IPv6 addresses before the IPv4
// addresses and either in the order of the reply: 1 to 64 of each family that
// has any. The slice is shared: it must not be changed.
//
// The error is a *LookupError, with that of ctx in it if it ends first. The
// asking goes on then, for those who wait for the same name and those who come
// later.
func (r *Resolver) Lookup(ctx context.Context, n policy.Name) ([]netip.Addr, error) {
	now := r.now()
	if e, _ := r.cache.Get(n); e.freshAt(now) {
		return e.addrs, e.err
	}
	f, old := r.join(n)
	if f == nil {
		return old.addrs, old.err
	}
	var enough <-chan time.Time
	if old.usableAt(now) {
		t := time.NewTimer(f.began.Add(r.limits.patience).Sub(now))
		defer t.Stop()
		enough = t.C
	}
	select {
	case <-f.done:
		return f.entry.addrs, f.entry.err
	case <-enough:
		return old.addrs, nil
	case <-ctx.Done():
		return nil, &LookupError{Name: n, Err: context.Cause(ctx)}
	}
}

// Known returns the addresses of n, as Lookup does, if they are known without asking.
func (r *Resolver) Known(n policy.Name) []netip.Addr {
	if e, _ := r.cache.Get(n); e.freshAt(r.now()) {
		return e.addrs
	}
	return nil
}

// freshAt reports whether it is all the answer still.
func (e *entry) freshAt(now time.Time) bool { return e != nil && now.Before(e.fresh) }

// usableAt reports whether there are addresses that may stand in for a failure.
func (e *entry) usableAt(now time.Time) bool {
	return e != nil && len(e.addrs) > 0 && now.Before(e.usable)
}

// join returns the flight for n, which it begins if there is none, and what is
// known of n from before. There is no flight if that will have to do.
func (r *Resolver) join(n policy.Name) (*flight, *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	old, _ := r.cache.Get(n)
	if old.freshAt(now) {
		return nil, old // somebody else was quicker
	}
	if f := r.flights[n]; f != nil {
		return f, old
	}
	switch {
	case n.IsZero():
		return nil, failed(n, absence("no name"))
	case len(r.flights) < maxFlights:
	case old.usableAt(now):
		return nil, old
	default:
		return nil, failed(n, errBusy)
	}
	f := &flight{began: now, done: make(chan struct{})}
	r.flights[n] = f
	go r.fly(n, f, old)
	return f, old
}

func failed(n policy.Name, err error) *entry {
	return &entry{err: &LookupError{Name: n, Err: err}}
}

// fly asks for n and lets everybody know. What it learns takes the place of old,
// unless it is nothing.
func (r *Resolver) fly(n policy.Name, f *flight, old *entry) {
	ctx, cancel := context.WithTimeout(context.Background(), r.limits.total)
	defer cancel()
	addrs, ttl, err := r.turn(ctx, n)

	now := r.now()
	e := &entry{addrs: addrs, fresh: now.Add(ttl), usable: now.Add(ttl + r.limits.stale)}
	if err != nil {
		e = failed(n, err)
		if errors.Is(e.err, ErrResolver) && old.usableAt(now) {
			e = &entry{addrs: old.addrs, usable: old.usable}
		}
		e.fresh = now.Add(r.limits.failure)
	}
	r.mu.Lock()
	r.cache.Add(n, e)
	delete(r.flights, n)
	r.mu.Unlock()
	f.entry = e
	close(f.done)
}

// turn waits for its turn and resolves n.
func (r *Resolver) turn(ctx context.Context, n policy.Name) ([]netip.Addr, time.Duration, error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
		return r.resolve(ctx, n.String()+".")
	case <-ctx.Done():
		return nil, 0, errBusy
	}
}
