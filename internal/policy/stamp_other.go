//go:build !linux

package policy

import "time"

// stamp is not known here.
type stamp struct{}

func stampOf(string) (stamp, bool) { return stamp{}, false }

func (stamp) settledAt(time.Time, time.Duration) bool { return false }
