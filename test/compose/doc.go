// Package compose tests builds/compose on a Docker Engine: each file is brought up as its page in docs says, with
// real clients in the sandboxes.
//
// No registry is reached. The images of the product are built from scratch, and the sandboxes are the machine
// itself: an empty image with the machine's /usr and /lib bound into it, read-only.
//
//	sandboxes ── the networks of the file ── CoreDNS, Caddy ── uplink, 93.184.215.0/24 ── internet
//
// An overlay makes the uplink internal and puts the internet on it: a DNS server that knows every name, and web
// servers that log who comes. So nothing leaves the machine, and what the product let through is what arrived
// there. A denied name proves nothing unless it exists: all do.
//
// The tests need Linux, root, a Docker Engine that runs on this machine, and iptables. Where `docker compose` is
// missing, Compose is built from the module in tool. What is missing fails the run when CI is set, and skips the
// tests otherwise. The subnets are those of the files, so two runs on one engine get in each other's way.
package compose
