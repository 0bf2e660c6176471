package hello

import (
	"fmt"
	"testing"
)

// BenchmarkServerName reads hellos such as browsers send: classic, with a post-quantum key share, and the
// latter in two records.
func BenchmarkServerName(b *testing.B) {
	run := func(name string, hello []byte) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if name, _, err := ServerName(hello); len(name) == 0 {
					b.Fatal(err)
				}
			}
		})
	}
	for _, size := range []int{517, 1800} {
		run(fmt.Sprintf("%dB", size), browser(size))
	}
	run("1800B/2records", records(unframe(browser(1800)), 1400))
}
