package main

import "math"

// target is what a ratio of two peers should be, or a figure of one.
type target struct {
	measure, column string
	peer, against   string // against none for a figure
	low, high       float64
	text            string // of what is wanted
	quote           string // how the README says it, if it does
}

var inf = math.Inf(1)

var targets = []target{
	{measureDNS(1_000_000), "CPU per question", peerOurs, peerWhoami, 0, 1.05, "≤ 1.05", "CPU per DNS question at 1,000,000 rules"},
	{measureDNS(20), "questions/s", peerOurs, peerTemplates, 2.5, inf, "≥ 2.5", "DNS questions a second at 20 rules"},
	{measureDNS(1_000), "questions/s", peerOurs, peerTemplates, 40, inf, "≥ 40", "DNS questions a second at 1,000 rules"},
	{measureDNS(10_000), "questions/s", peerOurs, peerTemplates, 300, inf, "≥ 300", "DNS questions a second at 10,000 rules"},

	{measureConn16, "CPU per tunnel", peerOurs, peerNginx, 0, 1.1, "≤ 1.1", "CPU per new tunnel, 16 clients at once"},
	{measureConn256, "CPU per tunnel", peerOurs, peerNginx, 0, 1.1, "≤ 1.1", "CPU per new tunnel, 256 clients at once"},
	{measureConn16, "CPU per tunnel", peerOurs, peerCaddyL4, 0, 0.75, "≤ 0.75", "CPU per new tunnel, 16 clients at once"},
	{measureConn256, "CPU per tunnel", peerOurs, peerCaddyL4, 0, 0.75, "≤ 0.75", ""},
	{measureConn16, "tunnels/s", peerOurs, peerNginx, 1, inf, "> 1", "new tunnels a second, 16 clients at once"},
	{measureConn256, "tunnels/s", peerOurs, peerNginx, 1, inf, "> 1", ""},
	{measureConn16, "p99", peerOurs, peerNginx, 0, 1, "< 1", "p99 of a new tunnel, 16 clients at once"},
	{measureConn256, "p99", peerOurs, peerNginx, 0, 1, "< 1", ""},

	{measureDown1, "CPU per GB", peerOurs, peerNginx, 0, 0.5, "≤ 0.5", "CPU per GB downloaded, one stream"},
	{measureDown8, "CPU per GB", peerOurs, peerNginx, 0, 0.5, "≤ 0.5", ""},
	{measureUp1, "CPU per GB", peerOurs, peerNginx, 0, 0.5, "≤ 0.5", "CPU per GB uploaded, one stream"},
	{measureUp8, "CPU per GB", peerOurs, peerNginx, 0, 0.5, "≤ 0.5", ""},
	{measurePing, "p50", peerOurs, peerNginx, 0, 1, "≤ 1", "latency of 64 bytes there and back"},

	{measureIdleFew, "RSS per tunnel", peerOurs, "", 0, 12 << 10, "≤ 12 KiB", ""},
	{measureIdleFew, "descriptors per tunnel", peerOurs, "", 0, 2.01, "2", ""}, // what a log or a resolver opens is no tunnel's
	{measureIdleMany, "RSS per tunnel", peerOurs, "", 0, 12 << 10, "≤ 12 KiB", ""},
	{measureIdleMany, "descriptors per tunnel", peerOurs, "", 0, 2.01, "2", ""},
	{measureIdleMany, "RSS per tunnel", peerOurs, peerNginx, 0, 1, "≤ 1", "memory of an idle tunnel"},
	{measureCap, "of what is wanted", peerOurs, "", 1, inf, "≥ 1", ""},

	{measureDenied, "CPU per tunnel", peerRefuses, peerOurs, 0, 0.5, "≤ 0.5", ""},
	{measureReload, "p99", peerChanging, peerOurs, 0, 1.2, "≤ 1.2", ""},
	{measureProxy1, "CPU per GB", peerCONNECT, peerOurs, 0, 1.1, "≤ 1.1", ""},
	{measureProxy8, "CPU per GB", peerCONNECT, peerOurs, 0, 1.1, "≤ 1.1", ""},
	{measureBroker, "requests/s", peerBroker, peerStock, 0.9, inf, "≥ 0.9", ""},
	{measurePg1, "GB/s", peerPostgres, peerOurs, 0.9, inf, "≥ 0.9", ""},
	{measurePg8, "GB/s", peerPostgres, peerOurs, 0.9, inf, "≥ 0.9", ""},

	// Nothing is promised here, but the README says what it is.
	{measureFwdKept, "CPU per request", peerOurs, peerSquid, 0, inf, "", "CPU per request of the forward proxy"},
	{measureHTTPKept, "CPU per request", peerOurs, peerReverse, 0, inf, "", "CPU per request of plain HTTP"},
}

// verdict compares what was measured with the target.
func (t target) verdict(x float64) string {
	switch {
	case math.IsNaN(x):
		return "not measured"
	case x < t.low || x > t.high:
		return "miss"
	}
	return "ok"
}
