package doctor

import "context"

// enough is a limit of descriptors under which a handful of busy sandboxes fills a gateway.
const enough = 4096

// checkDescriptors looks at how many tunnels there is room for.
func checkDescriptors(_ context.Context, s *surroundings) []Finding {
	const do = "raise the limit (docker run --ulimit nofile=65536:65536)"
	switch n, tunnels := s.Gateway.Descriptors, s.Gateway.Tunnels; {
	case n == 0:
		return warning(do, "the limit of open descriptors is not known")
	case n < enough:
		return warning(do, "%d descriptors may be open, for %d tunnels", n, tunnels)
	default:
		return ok("%d descriptors may be open, for %d tunnels", n, tunnels)
	}
}
