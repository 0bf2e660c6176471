package main

// Names of peers and measures, by which targets refer to them.
const (
	peerWhoami = "CoreDNS whoami"
	peerRules1 = "sandboxallow, 10 rules"
	peerRules2 = "sandboxallow, 1,000 rules"
	peerRules3 = "sandboxallow, 1,000,000 rules"

	peerGateway  = "sandboxallow"
	peerNginx    = "nginx ssl_preread"
	peerCaddyL4  = "caddy-l4 proxy"
	peerDirect   = "direct"
	peerProxy    = "sandboxallow, CONNECT"
	peerRefuses  = "sandboxallow, denied names"
	peerPostgres = "sandboxallow, Postgres"

	measureDNS    = "DNS questions"
	measureSteady = "New tunnels, 500 a second"
	measureConn16 = "New tunnels, 16 at once"
	measureConn64 = "New tunnels, 64 at once"
	measureBulk1  = "Bulk download, 1 stream"
	measureBulk8  = "Bulk download, 8 streams"
	measureProxy1 = "Bulk download by CONNECT, 1 stream"
	measureProxy8 = "Bulk download by CONNECT, 8 streams"
	measureProxy  = "New tunnels by CONNECT, 16 at once"
	measureDenied = "Denied and new tunnels, 16 at once"
	measurePg1    = "Bulk download by Postgres, 1 stream"
	measurePg8    = "Bulk download by Postgres, 8 streams"
	measurePg     = "New tunnels by Postgres, 16 at once"
)

// suites are the measures that there are, each with its peers.
func suites(l *lab) []suite {
	return []suite{
		{
			name: "dns",
			peers: []peer{
				whoami(l, peerWhoami),
				coredns(l, peerRules1, 10),
				coredns(l, peerRules2, 1_000),
				coredns(l, peerRules3, 1_000_000),
			},
			measures: []measure{dnsQuestions(measureDNS, peerWhoami)},
		},
		{
			name: "tunnels",
			peers: []peer{
				gateway(l, peerGateway, tlsService),
				nginx(l, peerNginx),
				caddyL4(l, peerCaddyL4),
				direct(l, peerDirect),
			},
			measures: []measure{
				newTunnels(measureSteady, peerNginx, 16, 500),
				newTunnels(measureConn16, peerNginx, 16, 0),
				newTunnels(measureConn64, peerNginx, 64, 0),
				bulk(measureBulk1, peerNginx, 1),
				bulk(measureBulk8, peerNginx, 8),
			},
		},
		{
			name: "proxy",
			peers: []peer{
				gateway(l, peerProxy, proxyService),
				gateway(l, peerGateway, tlsService),
			},
			measures: []measure{
				newTunnels(measureProxy, peerGateway, 16, 0),
				bulk(measureProxy1, peerGateway, 1),
				bulk(measureProxy8, peerGateway, 8),
			},
		},
		{
			name: "denials",
			peers: []peer{
				refusing(gateway(l, peerRefuses, tlsService)),
				gateway(l, peerGateway, tlsService),
			},
			measures: []measure{denials(measureDenied, peerGateway, 16)},
		},
		{
			name: "postgres",
			peers: []peer{
				gateway(l, peerPostgres, postgresService),
				gateway(l, peerGateway, tlsService),
			},
			measures: []measure{
				newTunnels(measurePg, peerGateway, 16, 0),
				bulk(measurePg1, peerGateway, 1),
				bulk(measurePg8, peerGateway, 8),
			},
		},
	}
}
