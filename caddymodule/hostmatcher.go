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
		if hosts := hostsBefore(srv.Routes); len(hosts) > 0 {
			a.log.Warn("handler gets only requests for some hosts: write http://:PORT and `bind ADDRESS`",
				zap.Strings("listen", srv.Listen), zap.String("hosts", strings.Join(hosts, " ")))
		}
	}
}

// hostsBefore returns the hosts of the first matcher of hosts that stands before a handler of ours.
func hostsBefore(routes caddyhttp.RouteList) []string {
	for _, route := range routes {
		hosts, ours := hostsOf(route.MatcherSets), false
		for _, h := range route.Handlers {
			switch h := h.(type) {
			case *HTTPHandler:
				ours = true
			case *caddyhttp.Subroute:
				if deeper := hostsBefore(h.Routes); len(deeper) > 0 {
					return deeper
				}
				ours = ours || has(h.Routes)
			}
		}
		if ours && len(hosts) > 0 {
			return hosts
		}
	}
	return nil
}

// has reports whether a handler of ours stands in routes.
func has(routes caddyhttp.RouteList) bool {
	for _, route := range routes {
		for _, h := range route.Handlers {
			switch h := h.(type) {
			case *HTTPHandler:
				return true
			case *caddyhttp.Subroute:
				if has(h.Routes) {
					return true
				}
			}
		}
	}
	return false
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
