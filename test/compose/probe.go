//go:build linux

package compose

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// What the probe says.
const (
	probeConnected   = "connected"
	probeUnreachable = "unreachable" // by no route, or by no neighbour that is the next hop
	probeTimeout     = "timeout"
	probeRefused     = "refused"
	probeReset       = "reset"
)

// probe is a client for what no other client does. It writes one line, what came of it:
//
//	probe tcp HOST:PORT        connects
//	probe dns HOST:PORT NAME   asks for an address, over UDP: the RCODE, or why there is no answer within 2 s
func probe(args []string) (code int) {
	switch {
	case len(args) == 2 && args[0] == "tcp":
		c, err := net.DialTimeout("tcp", args[1], 5*time.Second) // the neighbour that is not there takes 3
		if err == nil {
			_ = c.Close()
		}
		fmt.Println(outcome(err))
	case len(args) == 3 && args[0] == "dns":
		client := dns.Client{Timeout: 2 * time.Second}
		r, _, err := client.Exchange(new(dns.Msg).SetQuestion(dns.Fqdn(args[2]), dns.TypeA), args[1])
		if err != nil {
			fmt.Println(outcome(err))
		} else {
			fmt.Println(dns.RcodeToString[r.Rcode])
		}
	default:
		fmt.Fprintf(os.Stderr, "probe: %q, accepted are tcp HOST:PORT and dns HOST:PORT NAME\n", args)
		return 2
	}
	return 0
}

// outcome is what the probe says of an error, or of none.
func outcome(err error) string {
	var timeout net.Error
	switch {
	case err == nil:
		return probeConnected
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return probeUnreachable
	case errors.Is(err, syscall.ECONNREFUSED):
		return probeRefused
	case errors.Is(err, syscall.ECONNRESET):
		return probeReset
	case errors.As(err, &timeout) && timeout.Timeout():
		return probeTimeout
	}
	return err.Error()
}
