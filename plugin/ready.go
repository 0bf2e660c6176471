package sandboxallow

import "github.com/coredns/coredns/plugin/ready"

// Ready implements ready.Readiness. A policy was loaded before the plugin could start.
func (s *SandboxAllow) Ready() bool { return s.running.Load() }

var _ ready.Readiness = (*SandboxAllow)(nil)
