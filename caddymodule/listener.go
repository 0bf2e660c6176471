package caddymodule

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
)

// Listener accepts connections of TLS and does with them what a layer4 route of the handler does, at half the cost:
// they come without layer4.
type Listener struct {
	// Where to listen: `:443`, which is of all addresses of both families, or an address and a port.
	Addresses []string `json:"addresses"`

	// The port that rules are checked against and that is dialled. Default: the one that is listened on.
	UpstreamPort uint16 `json:"upstream_port,omitempty"`

	// The name of a policy that must admit the connection too, besides the one for the client's address.
	Policy string `json:"policy,omitempty"`

	// Where `policy` stands in a Caddyfile, for the error if there is no such policy.
	PolicyAt string `json:"policy_at,omitempty"`
}

// parseListenAddress returns an address to listen on as it is written, in one spelling.
func parseListenAddress(s string) (string, error) {
	bad := fmt.Errorf("address %q, accepted are :PORT and ADDRESS:PORT", s)
	na, err := caddy.ParseNetworkAddress(s)
	if err != nil || na.Network != "tcp" || na.PortRangeSize() != 1 || na.StartPort == 0 {
		return "", bad
	}
	if !respell(&na) {
		return "", bad
	}
	return na.JoinHostPort(0), nil
}

// respell gives the host of an address to listen on its one spelling, which is none for all addresses of both families.
// It reports whether that is an address, and no name.
func respell(na *caddy.NetworkAddress) bool {
	if na.Host == "" {
		return true
	}
	addr, err := netip.ParseAddr(na.Host)
	if err != nil {
		return false
	}
	if addr = addr.Unmap(); addr.IsUnspecified() {
		na.Host = ""
	} else {
		na.Host = addr.String()
	}
	return true
}

// provisionListeners checks what Start will listen on.
func (a *App) provisionListeners() error {
	seen := make(map[string]bool)
	for _, l := range a.Listen {
		if l == nil || len(l.Addresses) == 0 {
			return fmt.Errorf("listen without an address, accepted are :PORT and ADDRESS:PORT")
		}
		for i, s := range l.Addresses {
			addr, err := parseListenAddress(s)
			if err != nil {
				return fmt.Errorf("listen: %w", err)
			}
			if seen[addr] {
				return fmt.Errorf("listen: %s is given twice", addr)
			}
			seen[addr] = true
			l.Addresses[i] = addr
		}
		if err := a.needPolicy(l.Policy, l.PolicyAt); err != nil {
			return err
		}
		a.feeders++
	}
	return nil
}

// listen opens what this configuration listens on, unless the one before has.
func (a *App) listen() error {
	for _, l := range a.Listen {
		for _, addr := range l.Addresses {
			if err := entrances.open(addr, &server{app: a, listener: l}); err != nil {
				a.unlisten()
				return fmt.Errorf("listen %s: %w", strings.Join(l.Addresses, " "), err)
			}
		}
	}
	return nil
}

// serve begins to serve what comes in, in the place of the configuration before. From now on nobody is turned away.
func (a *App) serve() error {
	if err := entrances.serve(a); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return nil
}

// unlisten leaves all to the configuration that comes next, or came before.
func (a *App) unlisten() { entrances.leave(a) }

// server is who serves what comes in by an entrance.
type server struct {
	app      *App
	listener *Listener
	port     uint16 // that rules are checked against
}

// entrances are where this process listens, by address. A socket stays open from one configuration to the next, so that
// nobody who connects meanwhile is turned away.
var entrances = entranceSet{byAddress: make(map[string]*entrance)}

type entranceSet struct {
	mu        sync.Mutex
	byAddress map[string]*entrance
}

// open has a server be the next to serve what comes in by an address.
func (es *entranceSet) open(addr string, s *server) error {
	es.mu.Lock()
	defer es.mu.Unlock()
	e := es.byAddress[addr]
	if e == nil {
		var err error
		if e, err = newEntrance(addr); err != nil {
			return err
		}
		es.byAddress[addr] = e
	}
	if s.port = s.listener.UpstreamPort; s.port == 0 {
		s.port = e.addr.Port()
	}
	e.servers = append(e.servers, s)
	return nil
}

// serve has the servers of an app serve from now on.
func (es *entranceSet) serve(a *App) error {
	es.mu.Lock()
	defer es.mu.Unlock()
	for _, e := range es.byAddress {
		if s := e.servers[len(e.servers)-1]; s.app == a {
			if err := e.serve(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// leave takes an app off all entrances, and closes those that nobody else serves.
func (es *entranceSet) leave(a *App) {
	es.mu.Lock()
	defer es.mu.Unlock()
	for addr, e := range es.byAddress {
		e.servers = slices.DeleteFunc(e.servers, func(s *server) bool { return s.app == a })
		if n := len(e.servers); n > 0 {
			_ = e.serve(e.servers[n-1]) // which begins to only the first time
			continue
		}
		e.close()
		delete(es.byAddress, addr)
	}
}
