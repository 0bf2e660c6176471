//go:build linux

package e2e

import (
	"crypto/rand"
	"encoding/hex"
	"net/netip"
	"os"
	"testing"
	"time"
)

// The addresses of the lab.
var (
	sandboxAddr  = netip.MustParseAddr("172.30.0.100")
	sandboxAddr6 = netip.MustParseAddr("fd00:30::100")
	gatewayAddr  = netip.MustParseAddr("172.30.0.20") // as the sandbox reaches it
	gatewayAddr6 = netip.MustParseAddr("fd00:30::20")

	publicAddr   = netip.MustParseAddr("93.184.215.1") // the gateway, as the internet sees it
	publicAddr6  = netip.MustParseAddr("2606:4700::1")
	routerAddr   = netip.MustParseAddr("93.184.215.2") // the internet's end of that link
	routerAddr6  = netip.MustParseAddr("2606:4700::2")
	resolverAddr = netip.MustParseAddr("9.9.9.9") // the internet's DNS server

	// Where nothing listens, and where nothing even answers.
	refusingAddr = netip.MustParseAddr("93.184.215.100")
	silentAddr   = netip.MustParseAddr("93.184.215.101")
	silentAddr6  = netip.MustParseAddr("2606:4700:dead::1")
)

// Interfaces; the sandbox and the internet have one each.
const (
	linkGateway  = "gw"      // in the sandbox and in the internet
	linkSandbox  = "sandbox" // in the gateway
	linkInternet = "internet"
)

// lab is a sandbox, a gateway and an internet.
type lab struct {
	dir string // files of this lab; short, because the path of a unix socket has 107 octets at most
	ca  *authority

	sandbox  *namespace
	gateway  *namespace
	internet *internet
}

// newLab makes a lab for the time of a test.
func newLab(tb testing.TB) *lab {
	tb.Helper()
	need(tb, "ip")
	dir, err := os.MkdirTemp("", "sandboxallow-e2e-")
	if err != nil {
		tb.Fatal(err)
	}
	reaper.watch(dir)
	// Clients that are not root read from here.
	if err := os.Chmod(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	l := &lab{dir: dir}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })

	suffix := make([]byte, 4)
	_, _ = rand.Read(suffix)
	add := func(what string) *namespace {
		name := "e2e-" + hex.EncodeToString(suffix) + "-" + what
		tb.Cleanup(func() { removeNamespace(name) })
		n, err := addNamespace(name)
		if err != nil {
			tb.Fatal(err)
		}
		return n
	}
	l.sandbox, l.gateway = add("sandbox"), add("gateway")
	world := add("internet")
	if err := l.connect(world); err != nil {
		tb.Fatal(err)
	}

	if l.ca, err = newAuthority(dir); err != nil {
		tb.Fatal(err)
	}
	if l.internet, err = newInternet(world, l.ca); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(l.internet.close)
	return l
}

// connect lays the cables and sets the addresses and routes.
func (l *lab) connect(world *namespace) error {
	steps := [][]string{
		{"link", "add", linkGateway, "netns", l.sandbox.name, "type", "veth", "peer", "name", linkSandbox, "netns", l.gateway.name},
		{"link", "add", linkGateway, "netns", world.name, "type", "veth", "peer", "name", linkInternet, "netns", l.gateway.name},
	}
	on := func(n *namespace, args ...string) { steps = append(steps, append([]string{"-n", n.name}, args...)) }
	link := func(n *namespace, dev string, addrs ...string) {
		// Duplicate address detection takes seconds, and the kernel's own link-local addresses would do it.
		on(n, "link", "set", dev, "addrgenmode", "none", "up")
		for _, a := range addrs {
			if netip.MustParsePrefix(a).Addr().Is4() {
				on(n, "addr", "add", a, "dev", dev)
			} else {
				on(n, "addr", "add", a, "dev", dev, "nodad")
			}
		}
	}
	link(l.sandbox, linkGateway, sandboxAddr.String()+"/24", sandboxAddr6.String()+"/64")
	link(l.gateway, linkSandbox, gatewayAddr.String()+"/24", gatewayAddr6.String()+"/64")
	link(l.gateway, linkInternet, publicAddr.String()+"/30", publicAddr6.String()+"/126", "fe80::1/64")
	link(world, linkGateway, routerAddr.String()+"/30", routerAddr6.String()+"/126", "fe80::a9fe:a9fe/64")

	// What an attacker with NET_ADMIN would add, the sandbox has to begin with.
	on(l.sandbox, "route", "add", "default", "via", gatewayAddr.String())
	on(l.sandbox, "route", "add", "default", "via", gatewayAddr6.String())
	on(l.gateway, "route", "add", "default", "via", routerAddr.String())
	on(l.gateway, "route", "add", "default", "via", routerAddr6.String())
	// The internet has every address. In the main table: in the local one they would come before the route
	// to the gateway, whose packets would then look as if they came from the internet itself.
	on(world, "route", "add", "local", "0.0.0.0/0", "dev", "lo", "table", "main")
	on(world, "route", "add", "local", "::/0", "dev", "lo", "table", "main")
	on(world, "route", "add", "blackhole", silentAddr.String())
	on(world, "route", "add", "blackhole", silentAddr6.String())
	for _, args := range steps {
		if err := ip(args...); err != nil {
			return err
		}
	}

	// The kernel may hand down the host's setting to new namespaces.
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := l.gateway.sysctl(name, "0"); err != nil {
			return err
		}
	}
	if err := l.sandbox.etc("resolv.conf", "nameserver "+gatewayAddr.String()+"\n"); err != nil {
		return err
	}
	return l.gateway.etc("resolv.conf", "nameserver "+resolverAddr.String()+"\n")
}

// eventually waits until a condition holds, d at most, and reports whether it did.
func eventually(d time.Duration, holds func() bool) bool {
	for end := time.Now().Add(d); ; time.Sleep(10 * time.Millisecond) {
		if holds() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// must fails the test unless the condition holds within d.
func must(tb testing.TB, d time.Duration, what string, holds func() bool) {
	tb.Helper()
	if !eventually(d, holds) {
		tb.Fatalf("not within %s: %s", d, what)
	}
}
