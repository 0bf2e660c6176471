package doctor

import (
	"context"
	"errors"
	"io/fs"
	"strings"
)

// checkForwarding looks at whether the kernel would forward packets. A gateway stands in two networks, and a
// sandbox that sends a packet for elsewhere to it must not see that packet go on.
func checkForwarding(_ context.Context, s *surroundings) (out []Finding) {
	var sysctls []string
	for _, file := range []string{"proc/sys/net/ipv4/ip_forward", "proc/sys/net/ipv6/conf/all/forwarding"} {
		sysctl := strings.ReplaceAll(strings.TrimPrefix(file, "proc/sys/"), "/", ".")
		value, err := s.read(file)
		switch {
		case errors.Is(err, fs.ErrNotExist) && strings.Contains(file, "ipv6"):
			continue // a kernel without IPv6
		case err != nil:
			out = append(out, warning("look at `sysctl "+sysctl+"`", "%s cannot be read: %s", sysctl, why(err))...)
		case strings.TrimSpace(value) != "0":
			out = append(out, warning("start the gateway with --sysctl "+sysctl+"=0, or have a packet filter drop all it forwards",
				"%s is on: packets of a sandbox can pass the gateway by", sysctl)...)
		default:
			sysctls = append(sysctls, sysctl)
		}
	}
	if len(out) == 0 {
		return ok("nothing is forwarded (%s)", strings.Join(sysctls, ", "))
	}
	return out
}
