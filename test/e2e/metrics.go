//go:build linux

package e2e

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"
)

// metric returns a series of the metrics of both processes, written as in the exposition format
// (`name{label="value"}`), 0 if there is none.
func (g *gateway) metric(tb testing.TB, series string) float64 {
	tb.Helper()
	text := g.caddyMetrics(tb)
	if strings.HasPrefix(series, "coredns_") {
		text = g.corednsMetrics(tb)
	}
	for line := range strings.SplitSeq(text, "\n") {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				tb.Fatalf("%s: %v", line, err)
			}
			return f
		}
	}
	return 0
}

// hash returns the hash of the policy that a process has in force; prefix is caddy or coredns.
func (g *gateway) hash(tb testing.TB, prefix string) string {
	tb.Helper()
	text := g.caddyMetrics(tb)
	if prefix == "coredns" {
		text = g.corednsMetrics(tb)
	}
	_, rest, _ := strings.Cut(text, "\n"+prefix+`_sandboxallow_policy_info{hash="`)
	hash, _, _ := strings.Cut(rest, `"`)
	return hash
}

func (g *gateway) caddyMetrics(tb testing.TB) string {
	tb.Helper()
	return get(tb, "http://caddy/metrics", func() (net.Conn, error) { return net.Dial("unix", g.path(adminSocket)) })
}

func (g *gateway) corednsMetrics(tb testing.TB) string {
	tb.Helper()
	return get(tb, "http://coredns/metrics", func() (net.Conn, error) {
		return g.lab.gateway.dial("tcp", netip.MustParseAddrPort(metricsAddr))
	})
}

// get fetches a page over a connection that dial makes.
func get(tb testing.TB, url string, dial func() (net.Conn, error)) string {
	tb.Helper()
	c := http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       func(context.Context, string, string) (net.Conn, error) { return dial() },
		},
	}
	resp, err := c.Get(url)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		tb.Fatalf("%s: %s %v", url, resp.Status, err)
	}
	return string(body)
}
