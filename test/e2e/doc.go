// Package e2e tests the two built binaries with real clients, from end to end.
//
// Each test builds a lab of three network namespaces, without a way out of it, and removes it again:
//
//	sandbox ── 172.30.0.0/24, fd00:30::/64 ── gateway ── 93.184.215.0/30, 2606:4700::/126 ── internet
//
// The sandbox has one nameserver, CoreDNS on the gateway, and a default route to the gateway, which forwards
// nothing. The internet has every address there is: the public ones on which the test serves names, and the
// private, special and metadata ones on which it counts who comes. That none came to these proves a refusal
// only because the gateway could have reached them, so each test that counts dials them without the product
// too.
//
// The gateway listens on port 443 for TLS, on 80 for plain HTTP, and on 8080 as a forward proxy; each client is
// tried by all the ways that it has (way.go). Where a test has a database it listens on 5432 too, for a PostgreSQL
// with TLS that is a process in the internet (postgres.go).
//
// Names that are brokered (broker.go) end at a site of the gateway. Their server, api.go, wants a key that is in no
// place of the sandbox; docs/brokering.md is one of the tests.
//
// What the clients say of a denial is in docs/what-clients-say.md, as they said it to the tests;
// `go test ./test/e2e -run 'TestClients|TestMistakes' -update` writes it.
//
// The other servers of the internet live in the test's own process; only their sockets are in the namespace.
// CoreDNS, Caddy and the clients are processes of their own.
//
// The tests need root, Linux and the clients that clients.go names. What is missing fails the run when CI is
// set, and skips the tests otherwise. E2E_BIN names a folder with coredns and caddy to test; without it they
// are built first.
package e2e
