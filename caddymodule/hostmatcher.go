package caddymodule

import (
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// warnOfHosts warns about handlers that see requests for certain hosts only. In a Caddyfile that is what
// `http://127.0.0.1:80` says: a request for any other host gets Caddy's own answer, an empty 200, and nobody
// learns why.
func (a *App) warnOfHosts() {
	for srv := range a.guarded {
		if hosts := hostsBefore(srv.Routes, nil); len(hosts) > 0 {
			a.log.Warn("handler gets only requests for some hosts: write http://:PORT and `bind ADDRESS`",
				zap.Strings("listen", srv.Listen), zap.String("hosts", strings.Join(hosts, " ")))
		}
	}
}

// hostsBefore returns the hosts of the matcher that stands closest before a handler of ours, the first one that
// has any before it; hosts are those that stand before all routes.
func hostsBefore(routes caddyhttp.RouteList, hosts []string) []string {
	for _, route := range routes {
		before := hosts
		if own := hostsOf(route.MatcherSets); len(own) > 0 {
			before = own
		}
		for _, h := range route.Handlers {
			var found []string
			switch h := h.(type) {
			case *HTTPHandler:
				found = before
			case *caddyhttp.Subroute:
				found = hostsBefore(h.Routes, before)
			}
			if len(found) > 0 {
				return found
			}
		}
	}
	return nil
}

func hostsOf(sets caddyhttp.MatcherSets) (hosts []string) {
	for _, set := range sets {
		for _, m := range set {
			switch m := m.(type) {
			case *caddyhttp.MatchHost:
				hosts = append(hosts, *m...)
			case caddyhttp.MatchHost:
				hosts = append(hosts, m...)
			}
		}
	}
	return hosts
}
