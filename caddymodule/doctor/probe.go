package doctor

import "context"

// checkProbes connects to what the user says must not be reachable.
func checkProbes(ctx context.Context, s *surroundings) (fs []Finding) {
	if len(s.Sandbox.Probes) == 0 {
		return ok("nothing to try; name what must not be reachable by --probe ADDRESS:PORT")
	}
	var targets []string
	for _, p := range s.Sandbox.Probes {
		targets = append(targets, p.String())
	}
	for i, err := range s.tryAll(ctx, targets) {
		if at := targets[i]; err == nil {
			fs = append(fs, failure("take away the route or the network that leads there", "connected to %s", at)...)
		} else {
			fs = append(fs, ok("%s is not reached (%s)", at, why(err))...)
		}
	}
	return fs
}
