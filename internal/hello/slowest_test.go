//go:build unix && !race

package hello

import (
	"flag"
	"syscall"
	"testing"
	"time"
)

// TestSlowest feeds the hello that costs most, as many records of one byte as are accepted, to a reader
// that takes what it asks for and not a byte more. Each call walks over the records anew, so the time is
// quadratic in their number; MaxSize is what keeps it small. Under the race detector the time would be
// the detector's.
func TestSlowest(t *testing.T) {
	const most = MaxSize / (recordHeader + 1) // bytes of the message
	overhead := len(unframe(with(sni("example.com"), ext{21, nil})))
	b := records(parts{exts: []ext{{21, zeros(most - overhead)}, sni("example.com")}}.message(), 1)

	start := cpu(t)
	calls := 0
	for have := 0; ; calls++ {
		name, need, err := ServerName(b[:have])
		if need == 0 {
			if string(name) != "example.com" {
				t.Fatalf("name = %q, %v", name, err)
			}
			break
		}
		have += need
	}
	limit := time.Second
	if testing.CoverMode() != "" || flag.Lookup("test.fuzz").Value.String() != "" {
		limit *= 5 // counters at every branch
	}
	if spent := cpu(t) - start; spent > limit {
		t.Errorf("%v of CPU for %d bytes, want at most %v", spent, len(b), limit)
	}
	if calls > 2*most+2 {
		t.Errorf("%d calls for %d records", calls, most)
	}
}

// cpu is the time that this process has been computing.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
