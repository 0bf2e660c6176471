//go:build !unix

package caddymodule

import "net"

// closeUnlessHTTP leaves it to net/http, which waits for the end of a line.
func closeUnlessHTTP(net.Conn) {}
