//go:build !linux

package tunnel

import (
	"net"
	"time"
)

// PipeDescriptors is the number of descriptors that the pipes of all tunnels
// together hold at most. There are none without splice(2).
func PipeDescriptors() int { return 0 }

// Drain waits for what loops have left for later. There are no loops here.
func Drain(time.Duration) {}

// pair is two sockets that a loop carries. There are no loops here.
type pair struct{}

func newPair(*Tunnel, net.Conn, *Socket) *pair { return nil }

func bare(net.Conn) *Socket { return nil }

func (*pair) start() {}
func (*pair) reset() {}
func (*pair) end()   {}

func (*pair) keepAlive() {}
