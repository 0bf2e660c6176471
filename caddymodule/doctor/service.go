package doctor

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
)

// services are what CoreDNS serves besides DNS, at its default ports. They tell a sandbox what it need not
// know.
var services = []struct {
	what string
	port uint16
	path string
	do   string
}{
	{"metrics", 9153, "/metrics", "prometheus 127.0.0.1:9153"},
	{"health", 8080, "/health", "health 127.0.0.1:8080"},
	{"ready", 8181, "/ready", "ready 127.0.0.1:8181"},
	{"profiles", 6053, "/debug/pprof/", "remove pprof"},
}

// checkServices asks each gateway for these.
func checkServices(ctx context.Context, s *surroundings) (fs []Finding) {
	if len(s.gateways) == 0 {
		return noGateway()
	}
	for _, gw := range s.gateways {
		var closed []string
		for _, svc := range services {
			url := "http://" + netip.AddrPortFrom(gw, svc.port).String() + svc.path
			// Another service may well have the port: the forward proxy has 8080.
			if status, _, err := s.get(ctx, url, nil); err != nil || status != http.StatusOK {
				closed = append(closed, svc.what)
				continue
			}
			fs = append(fs, warning("write `"+svc.do+"` in the Corefile, or another address that no sandbox reaches",
				"CoreDNS's %s at %s are open to the sandbox", svc.what, url)...)
		}
		if len(closed) == len(services) {
			fs = append(fs, ok("%s shows nothing but its service (no %s)", gw, strings.Join(closed, ", "))...)
		}
	}
	return fs
}
