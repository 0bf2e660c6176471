//go:build linux

package e2e

import "os"

// The test program is five: the tests, the reaper that cleans up after them, and the clients written in Go.
const (
	roleVar            = "E2E_ROLE"
	roleReaper         = "reaper"
	roleGoClient       = "go-client"
	roleGoChat         = "go-chat"
	roleDatabaseClient = "database-client"
)

// play does what the environment has this process do, unless that is to test.
func play() (code int, played bool) {
	switch os.Getenv(roleVar) {
	case roleReaper:
		reap(os.Stdin)
		return 0, true
	case roleGoClient:
		return goClient(os.Args[1]), true
	case roleGoChat:
		return goChat(os.Args[1], os.Args[2]), true
	case roleDatabaseClient:
		return databaseRole(os.Args[1]), true
	}
	return 0, false
}
