package main

import "math"

// target is what a ratio of two peers should be.
type target struct {
	measure, column string
	peer, against   string
	low, high       float64
	text            string // of what is wanted
}

var targets = []target{
	{measureDNS, "CPU per question", peerRules3, peerWhoami, 0, 1.1, "≤ 1.1"},
	{measureDNS, "CPU per question", peerRules3, peerRules1, 0.95, 1.05, "within 5 %"},
	{measureConn16, "CPU per tunnel", peerGateway, peerNginx, 0, 1.3, "≤ 1.3"},
	{measureConn64, "CPU per tunnel", peerGateway, peerNginx, 0, 1.3, "≤ 1.3"},
	{measureBulk1, "CPU per GB", peerGateway, peerNginx, 0, 0.6, "≤ 0.6"},
	{measureBulk8, "CPU per GB", peerGateway, peerNginx, 0, 0.6, "≤ 0.6"},
	{measureDenied, "CPU per tunnel", peerRefuses, peerGateway, 0, 1, "< 1"},
	{measureProxy1, "CPU per GB", peerProxy, peerGateway, 0, 1.1, "≤ 1.1"},
	{measureProxy8, "CPU per GB", peerProxy, peerGateway, 0, 1.1, "≤ 1.1"},
	{measurePg1, "GB/s", peerPostgres, peerGateway, 0.9, math.Inf(1), "≥ 0.9"},
	{measurePg8, "GB/s", peerPostgres, peerGateway, 0.9, math.Inf(1), "≥ 0.9"},
}

// verdict compares a ratio with the target.
func (t target) verdict(ratio float64) string {
	switch {
	case math.IsNaN(ratio):
		return "not measured"
	case ratio < t.low || ratio > t.high:
		return "miss"
	}
	return "ok"
}
