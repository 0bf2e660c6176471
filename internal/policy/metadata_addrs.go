package policy

import (
	"maps"
	"net/netip"
	"slices"
)

// MetadataAddrs returns the addresses of the cloud metadata services, in order.
func MetadataAddrs() []netip.Addr {
	return slices.SortedFunc(maps.Keys(metadataAddrs), netip.Addr.Compare)
}
