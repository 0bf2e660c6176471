package caddymodule

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/mholt/caddy-l4/layer4"
)

// listenAlone is an error if anything else of this configuration listens where this app does. As all that listens in Caddy
// shares its ports, the kernel would hand every other connection to the wrong one: to no policy, or to another.
func (a *App) listenAlone() error {
	if len(a.Listen) == 0 {
		return nil
	}
	taken := make(map[string]string)
	servers, err := a.serversOfOthers()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		for _, s := range servers[name] {
			for _, at := range listensAt(s) {
				taken[at] = name
			}
		}
	}
	for _, l := range a.Listen {
		for _, s := range l.Addresses {
			if by, ok := taken[s]; ok {
				return fmt.Errorf("listen %s: %s listens there, too", s, by)
			}
		}
	}
	return nil
}

// serversOfOthers are the addresses of the servers of the other apps.
func (a *App) serversOfOthers() (map[string][]string, error) {
	servers := make(map[string][]string)
	for _, app := range []string{"http", "layer4"} {
		mod, err := a.ctx.AppIfConfigured(app)
		if errors.Is(err, caddy.ErrNotConfigured) {
			continue
		}
		if err != nil {
			return nil, err
		}
		switch other := mod.(type) {
		case *caddyhttp.App:
			for name, srv := range other.Servers {
				servers["server "+name+" of the http app"] = srv.Listen
			}
		case *layer4.App:
			for name, srv := range other.Servers {
				servers["server "+name+" of the layer4 app"] = srv.Listen
			}
		}
	}
	return servers, nil
}

// listensAt are the sockets of TCP that an address to listen on means, each as parseListenAddress has it. There are none
// for names.
func listensAt(s string) (at []string) {
	na, err := caddy.ParseNetworkAddress(s)
	if err != nil || !strings.HasPrefix(na.Network, "tcp") || !respell(&na) {
		return nil
	}
	for i := range na.PortRangeSize() {
		at = append(at, na.JoinHostPort(i))
	}
	return at
}
