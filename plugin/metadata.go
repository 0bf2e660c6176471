package sandboxallow

import (
	"context"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/request"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// record is where ServeDNS leaves its decision for the metadata labels. They are collected before
// *rewrite* runs, when the name that will be judged is not known yet.
type record struct {
	decided  bool
	decision policy.Decision
}

type recordKey struct{}

// recordOf returns the record of the request that ctx belongs to, nil without the *metadata* plugin.
func recordOf(ctx context.Context) *record {
	r, _ := ctx.Value(recordKey{}).(*record)
	return r
}

// Metadata implements metadata.Provider. The labels are empty until the question has been decided.
func (s *SandboxAllow) Metadata(ctx context.Context, _ request.Request) context.Context {
	r := &record{}
	metadata.SetValueFunc(ctx, name+"/policy", func() string { return r.decision.Policy })
	metadata.SetValueFunc(ctx, name+"/verdict", func() string {
		if !r.decided {
			return ""
		}
		return r.decision.Verdict.String()
	})
	metadata.SetValueFunc(ctx, name+"/reason", func() string { return r.decision.Reason.String() })
	metadata.SetValueFunc(ctx, name+"/rule", func() string { return r.decision.Rule.String() })
	return context.WithValue(ctx, recordKey{}, r)
}

var _ metadata.Provider = (*SandboxAllow)(nil)
