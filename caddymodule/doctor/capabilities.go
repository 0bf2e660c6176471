package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Capabilities (capabilities(7)) by which a sandbox takes another one's address, and so its policy.
var capabilities = []struct {
	bit  uint
	name string
}{
	{12, "NET_ADMIN"},
	{13, "NET_RAW"},
	{21, "SYS_ADMIN"},
}

// checkCapabilities looks at what the first process of the container can ever have. Its bounding set counts:
// what it has not now, a setuid program gives it.
func checkCapabilities(_ context.Context, s *surroundings) []Finding {
	const do = "start the sandbox with --cap-drop ALL (to see those of another container: --pid container:SANDBOX)"
	set, err := s.boundingSet()
	if err != nil {
		return warning(do, "capabilities cannot be read: %s", why(err))
	}
	var names []string
	for _, c := range capabilities {
		if set&(1<<c.bit) != 0 {
			names = append(names, c.name)
		}
	}
	if len(names) == 0 {
		return ok("process 1 can have none of NET_ADMIN, NET_RAW, SYS_ADMIN")
	}
	return warning(do, "process 1 can have %s: it can send from another sandbox's address", strings.Join(names, ", "))
}

// boundingSet reads the capabilities of process 1.
func (s *surroundings) boundingSet() (uint64, error) {
	const file = "proc/1/status"
	text, err := s.read(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, "CapBnd:"); found {
			return strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return 0, fmt.Errorf("no CapBnd in /%s", file)
}
