package learn

import (
	"slices"
	"strconv"
	"strings"
)

// defaultPorts are those of a policy without a ports line.
var defaultPorts = []uint16{80, 443}

// setPorts gives p the ports that most of its rules need, and returns what the others have to write behind
// their names. A policy to add to keeps the ports that it has.
func (l *Learner) setPorts(p *learned, g *group, names []*use, suffixes []*suffix) func(*use) string {
	if set := l.options.Diff; set != nil {
		var theirs []uint16
		for _, o := range set.Overview() {
			if o.Name == g.policy {
				theirs = o.Ports
			}
		}
		return func(u *use) string {
			if subset(u.ports, theirs) {
				return ""
			}
			return portText(u.ports)
		}
	}
	ports := commonPorts(names, suffixes)
	if !slices.Equal(ports, defaultPorts) {
		p.ports = ports
	}
	return func(u *use) string {
		if len(u.ports) == 0 || slices.Equal(u.ports, ports) {
			return ""
		}
		return portText(u.ports)
	}
}

func subset(ports, of []uint16) bool {
	return !slices.ContainsFunc(ports, func(p uint16) bool { return !slices.Contains(of, p) })
}

// commonPorts returns which of the usual sets of ports most rules need, so that a policy allows port 80 only if
// that is what was used.
func commonPorts(names []*use, suffixes []*suffix) []uint16 {
	usual := [][]uint16{{443}, defaultPorts, {80}}
	count := make([]int, len(usual))
	counts := func(u *use) {
		for i, ports := range usual {
			if slices.Equal(u.ports, ports) {
				count[i]++
			}
		}
	}
	for _, u := range names {
		counts(u)
	}
	for _, s := range suffixes {
		counts(&s.use)
	}
	most := slices.Max(count)
	if most == 0 {
		return defaultPorts
	}
	return usual[slices.Index(count, most)]
}

// portText returns ports as they stand behind a name, such as ":443,8443".
func portText(ports []uint16) string {
	if len(ports) == 0 {
		return ""
	}
	return ":" + joinPorts(ports, ",")
}

func joinPorts(ports []uint16, sep string) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = strconv.Itoa(int(p))
	}
	return strings.Join(texts, sep)
}
