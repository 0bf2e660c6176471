// Command healthcheck tells whether the server in a container answers. It is /healthcheck in both images and
// needs no configuration: it asks whatever listens for TCP in the container, on the address that it listens on.
//
//	healthcheck [-dns port]
//
// A DNS server, on port 53 or the one given, has to answer a query. Any other server has to close a connection
// that says nothing and ends. Neither is logged or counted by the servers in the images. A server that is
// stopped, or whose accept loop is gone, fails: that the kernel takes its connections is not enough.
//
// The exit code is 0 if all answered, 1 if one did not within 3 s or nothing listens, and 2 for a wrong
// argument. One line says which.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"
)

// limit is for all that listens together.
const limit = 3 * time.Second

func main() {
	dns := flag.Uint("dns", 53, "`port` on which DNS is spoken; 0 for none")
	flag.Parse()
	if flag.NArg() > 0 || *dns > 65535 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	answered, err := check(ctx, "/proc", uint16(*dns))
	if err != nil {
		fmt.Println(err) // not on standard error: Docker keeps both, and some tools only this
		os.Exit(1)
	}
	fmt.Println("answered:", answered)
}

// check asks every server that listens in the container whose /proc is given, and returns the addresses that
// answered. The first that does not ends it.
func check(ctx context.Context, proc string, dns uint16) (string, error) {
	addrs, err := listening(proc)
	if err != nil {
		return "", err
	}
	if len(addrs) == 0 {
		return "", errors.New("nothing listens for TCP")
	}
	var answered []string
	for _, addr := range addrs {
		if err := ask(ctx, addr, addr.Port() == dns); err != nil {
			return "", fmt.Errorf("%s: %w", addr, err)
		}
		answered = append(answered, addr.String())
	}
	return strings.Join(answered, " "), nil
}

// ask asks one server.
func ask(ctx context.Context, addr netip.AddrPort, dns bool) error {
	c, err := dial(ctx, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		c.SetDeadline(deadline)
	}
	if dns {
		return askDNS(c)
	}
	return askAny(c)
}
