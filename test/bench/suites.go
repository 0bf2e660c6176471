package main

import (
	"fmt"
	"slices"
)

// Names of peers and measures, by which targets refer to them.
const (
	peerOurs      = "sandboxallow"
	peerWhoami    = "CoreDNS whoami"
	peerTemplates = "CoreDNS templates"
	peerDnsmasq   = "dnsmasq"
	peerUnbound   = "unbound"

	peerNginx    = "nginx ssl_preread"
	peerHAProxy  = "haproxy"
	peerSNIProxy = "sniproxy"
	peerCaddyL4  = "caddy-l4 proxy"
	peerDirect   = "direct"
	peerCONNECT  = "sandboxallow, CONNECT"
	peerSquid    = "squid"
	peerReverse  = "Caddy reverse_proxy"
	peerRefuses  = "sandboxallow, denied names"
	peerChanging = "sandboxallow, changing policy"
	peerBroker   = "sandboxallow broker"
	peerStock    = "Caddy reverse_proxy, TLS"
	peerPostgres = "sandboxallow, PostgreSQL"

	measureConn16   = "New tunnels, 16 at once"
	measureConn256  = "New tunnels, 256 at once"
	measureDown1    = "Bulk download, 1 stream"
	measureDown8    = "Bulk download, 8 streams"
	measureUp1      = "Bulk upload, 1 stream"
	measureUp8      = "Bulk upload, 8 streams"
	measurePing     = "Request on an open tunnel"
	measureIdleFew  = "Idle tunnels, 1,500"
	measureIdleMany = "Idle tunnels, 10,000"
	measureCap      = "Tunnels above the cap"
	measureDenied   = "Denied and new tunnels, 256 at once"
	measureReload   = "New tunnels, 500 a second, policy changed each second or not"
	measureProxy    = "New tunnels by CONNECT, 16 at once"
	measureProxy1   = "Bulk download by CONNECT, 1 stream"
	measureProxy8   = "Bulk download by CONNECT, 8 streams"
	measurePg       = "New tunnels by PostgreSQL, 16 at once"
	measurePg1      = "Bulk download by PostgreSQL, 1 stream"
	measurePg8      = "Bulk download by PostgreSQL, 8 streams"
	measureHTTP     = "Plain HTTP, one connection for each request"
	measureHTTPKept = "Plain HTTP, connections kept"
	measureFwd      = "Forward proxy, one connection for each request"
	measureFwdKept  = "Forward proxy, connections kept"
	measureBroker   = "Requests with a credential, connections kept"
	measurePolicy   = "Policy"
)

// measureDNS is the name of the measure at so many rules.
func measureDNS(rules int) string {
	return fmt.Sprintf("DNS questions, %s rules", count(float64(rules)))
}

// suites are the measures that there are, each with its peers. Several may have one name: they run one after the
// other.
func suites(l *lab) []suite {
	var all []suite
	for _, rules := range []int{20, 1_000, 10_000, 1_000_000} {
		peers := []peer{
			coredns(l, peerOurs, rules),
			whoami(l, peerWhoami, rules),
			dnsmasq(l, peerDnsmasq, rules),
			unbound(l, peerUnbound, rules),
		}
		if rules < 1_000_000 { // where it would take a second for each question
			peers = append(peers, templates(l, peerTemplates, rules))
		}
		all = append(all, suite{name: "dns", apart: true, peers: peers, measures: []measure{resolving(measureDNS(rules), peerWhoami)}})
	}
	tunnelling := []peer{
		gateway(l, peerOurs, byDNS),
		nginx(l, peerNginx),
		haproxy(l, peerHAProxy),
		sniproxy(l, peerSNIProxy),
		caddyL4(l, peerCaddyL4),
	}
	many := idleRoom(l.descriptors)
	return append(all, []suite{
		{
			name:  "tunnels",
			peers: append(tunnelling[:len(tunnelling):len(tunnelling)], direct(l, peerDirect)),
			measures: []measure{
				newTunnels(measureConn16, peerNginx, 16, 0),
				newTunnels(measureConn256, peerNginx, 256, 0),
				bulk(measureDown1, peerNginx, download, 1),
				bulk(measureDown8, peerNginx, download, 8),
				bulk(measureUp1, peerNginx, upload, 1),
				bulk(measureUp8, peerNginx, upload, 8),
				pingPong(measurePing, peerNginx),
			},
		},
		{
			name:  "idle",
			anew:  true,
			peers: tunnelling,
			measures: []measure{
				idling(measureIdleFew, peerNginx, idleFew, l.descriptors),
				idling(measureIdleMany, peerNginx, many, l.descriptors),
			},
		},
		{
			name:     "idle",
			anew:     true,
			peers:    tunnelling[:1],
			measures: []measure{aboveTheCap(measureCap, l.descriptors)},
		},
		{
			name: "denials",
			peers: []peer{
				refusing(gateway(l, peerRefuses, byDNS)),
				gateway(l, peerOurs, byDNS),
			},
			measures: []measure{denials(measureDenied, peerOurs, 256)},
		},
		{
			name: "reload",
			peers: []peer{
				changing(gateway(l, peerChanging, byDNS)),
				gateway(l, peerOurs, byDNS),
			},
			measures: []measure{reloading(measureReload, peerOurs, 16, 500)},
		},
		{
			name: "http",
			peers: []peer{
				gateway(l, peerOurs, byHTTP),
				reverseProxy(l, peerReverse),
				directWeb(l, peerDirect),
			},
			measures: []measure{
				requests(measureHTTPKept, peerReverse, 16, true),
				requests(measureHTTP, peerReverse, 16, false),
			},
		},
		{
			name: "proxy",
			peers: []peer{
				gateway(l, peerOurs, byProxy),
				squid(l, peerSquid, byProxy),
			},
			measures: []measure{
				requests(measureFwdKept, peerSquid, 16, true),
				requests(measureFwd, peerSquid, 16, false),
			},
		},
		{
			name: "proxy",
			peers: []peer{
				gateway(l, peerCONNECT, byCONNECT),
				gateway(l, peerOurs, byDNS),
				squid(l, peerSquid, byCONNECT),
			},
			measures: []measure{
				newTunnels(measureProxy, peerOurs, 16, 0),
				bulk(measureProxy1, peerOurs, download, 1),
				bulk(measureProxy8, peerOurs, download, 8),
			},
		},
		{
			name: "broker",
			peers: []peer{
				broker(l, peerBroker),
				brokerStock(l, peerStock),
			},
			measures: []measure{brokeredRequests(measureBroker, peerStock, 16)},
		},
		{
			name: "postgres",
			peers: []peer{
				gateway(l, peerPostgres, byPostgres),
				gateway(l, peerOurs, byDNS),
			},
			measures: []measure{
				newTunnels(measurePg, peerOurs, 16, 0),
				bulk(measurePg1, peerOurs, download, 1),
				bulk(measurePg8, peerOurs, download, 8),
			},
		},
		{
			name:     "policy",
			anew:     true, // each benchmark is a process of its own, and long enough
			peers:    policyPeers(l),
			measures: []measure{l.policies(measurePolicy)},
		},
	}...)
}

// policyPeers are policies of all sizes.
func policyPeers(l *lab) []peer {
	var peers []peer
	for _, n := range []int{20, 1_000, 10_000, 1_000_000} {
		size := fmt.Sprintf("/rules=%d$", n)
		peers = append(peers, l.goBenchmarks(count(float64(n))+" rules", "a list",
			"ns/op BenchmarkLoad"+size, "ns/op BenchmarkLookup"+size+"/hit$", "ns/op BenchmarkLookup"+size+"/miss$",
			"MB-held BenchmarkLoad"+size, ""))
	}
	return append(peers, l.goBenchmarks("10,000 policies", "with a client prefix each", "", "", "", "", "ns/op BenchmarkSelect$"))
}

// suiteNames returns each name once.
func suiteNames(all []suite) []string {
	var names []string
	for _, s := range all {
		if !slices.Contains(names, s.name) {
			names = append(names, s.name)
		}
	}
	return names
}
