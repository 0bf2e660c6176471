//go:build linux

package compose

import "os"

// The test program is four: the tests, what removes their containers should they not end well, and in containers
// the internet and the probe, a client for what no other client does.
const (
	roleVar      = "COMPOSE_ROLE"
	roleReaper   = "reaper"
	roleInternet = "internet"
	roleProbe    = "probe"
)

// play does what the environment has this process do, unless that is to test.
func play() (code int, played bool) {
	switch os.Getenv(roleVar) {
	case roleReaper:
		return reap(os.Stdin), true
	case roleInternet:
		return internet(os.Args[1:]), true
	case roleProbe:
		return probe(os.Args[1:]), true
	}
	return 0, false
}
