//go:build !unix

package caddymodule

// descriptorLimit returns a limit where the system has none to ask for.
func descriptorLimit() uint64 { return 1 << 16 }
