package upstream

import "net/netip"

// ParseServer parses an entry of ResolverConfig.Servers, such as "1.1.1.1" or "9.9.9.9:53".
func ParseServer(s string) (netip.AddrPort, error) { return parseServer(s) }
