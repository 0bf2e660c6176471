package decision

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func denial(client netip.Addr, name string) Record {
	return Record{Layer: DNS, Client: client, Name: name, Decision: policy.Decision{Reason: policy.ReasonNotAllowed, Policy: "default"}}
}

func BenchmarkFolder(b *testing.B) {
	client := netip.MustParseAddr("172.30.0.5")
	names := make([]string, 100_000)
	for i := range names {
		names[i] = fmt.Sprintf("n%d.example.org", i)
	}
	for _, tc := range []struct {
		name  string
		names []string
	}{
		{"the same name", names[:1]},
		{"a hundred names", names[:100]},
		{"a new name each time", names},
	} {
		b.Run(tc.name, func(b *testing.B) {
			f := NewFolder(func(*Record) {})
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				r := denial(client, tc.names[i])
				f.Hold(&r)
				if i++; i == len(tc.names) {
					i = 0
				}
			}
		})
	}
	b.Run("parallel", func(b *testing.B) {
		f := NewFolder(func(*Record) {})
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				r := denial(client, names[0])
				f.Admit(&r)
			}
		})
	})
}

func BenchmarkAppendLine(b *testing.B) {
	r := denial(netip.MustParseAddr("172.30.0.5"), "www.example.org")
	allowed := r
	allowed.Decision = policy.Decision{Verdict: policy.Allow, Policy: "default"}
	hostile := r
	hostile.Name = "\x1b[31m\n\xff" + r.Name
	for _, tc := range []struct {
		name string
		r    Record
	}{{"denied", r}, {"allowed", allowed}, {"hostile", hostile}} {
		b.Run(tc.name, func(b *testing.B) {
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				buf = tc.r.AppendLine(buf[:0])
			}
		})
	}
}
