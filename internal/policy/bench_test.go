package policy

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const million = 1_000_000

// manyRules returns a list of n rules: of ten, seven are exact names in as many domains, two are suffixes,
// one has a port.
func manyRules(n int) string {
	var b strings.Builder
	b.Grow(32 * n)
	for i := range n {
		b.WriteString(manyName(i))
		b.WriteByte('\n')
	}
	return b.String()
}

func manyName(i int) string {
	switch i % 10 {
	case 7, 8:
		return fmt.Sprintf(".site%d.example.net", i)
	case 9:
		return fmt.Sprintf("db%d.example.org:5432", i)
	}
	return fmt.Sprintf("api.tenant%d.com", i)
}

// manyDocument writes a document with a list of n rules into a new directory and returns its path.
func manyDocument(t testing.TB, n int, more string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"policy": "policy p {\n" + more + "\n allow_list list\n}\n", "list": manyRules(n)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "policy")
}

// heap returns what lives on the heap, in octets.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // the first may leave what finalizers hold
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// processor returns the processor time that this process has taken: other work on the machine does not count.
func processor(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// raceDetector reports whether the test runs under it, which makes loading ten times as slow.
func raceDetector() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// A million rules are loaded in 2 s and 200 MB. The time has slack for slower machines.
func TestLoadMillion(t *testing.T) {
	path := manyDocument(t, million, "")
	before, start := heap(), processor(t)
	set, err := Load(Source{File: path})
	if err != nil {
		t.Fatal(err)
	}
	took, grown := processor(t)-start, int64(heap())-int64(before)
	t.Logf("%s, %d MB", took, grown/1e6)
	if took > 6*time.Second && !raceDetector() {
		t.Errorf("loading took %s of processor time", took)
	}
	if grown > 200e6 {
		t.Errorf("the heap has grown by %d octets", grown)
	}
	if got := set.Rules(); got != million {
		t.Errorf("%d rules", got)
	}
	sel := set.Select(netip.MustParseAddr("192.0.2.1"), "")
	for i := 0; i < million; i += 7 { // some of every kind
		name, port := strings.TrimPrefix(manyName(i), "."), uint16(443)
		if host, ok := strings.CutSuffix(name, ":5432"); ok {
			name, port = host, 5432
		}
		if d := sel.Lookup(mustName(t, name), port); d.Verdict != Allow || d.Rule.n != uint32(i+1) {
			t.Fatalf("%s: got %s by %s", name, outcome(d), d.Rule)
		}
	}
}

// benchSizes are rules in the policies of benchmarks. test/bench asks for them by these numbers.
var benchSizes = []int{20, 1_000, 10_000, million}

func BenchmarkLookup(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			set, err := Load(Source{File: manyDocument(b, n, "deny .denied.example.com gist.tenant0.com")})
			if err != nil {
				b.Fatal(err)
			}
			sel := set.Select(netip.MustParseAddr("192.0.2.1"), "")
			r := rand.New(rand.NewPCG(1, 2))
			allowed := func(int) string { // of the rules that are no databases
				i := r.IntN(n)
				return strings.TrimPrefix(manyName(i-i%10+i%9), ".")
			}
			// What a sandbox asks for again and again stays in the caches: that is the figure that counts. All of
			// a million rules do not.
			const hot, cold = 1 << 10, 1 << 18
			for _, bc := range []struct {
				name  string
				names int
				name1 func(i int) string
				port  uint16
				want  Verdict
			}{
				{"hit", hot, allowed, 443, Allow},
				{"hit-any-port", hot, allowed, AnyPort, Allow},
				{"miss", hot, func(i int) string { return fmt.Sprintf("www.unknown%d.com", i) }, 443, Deny},
				{"denied", hot, func(i int) string { return fmt.Sprintf("a%d.denied.example.com", i) }, 443, Deny},
				{"cold", cold, allowed, 443, Allow},
			} {
				b.Run(bc.name, func(b *testing.B) {
					names := make([]Name, bc.names)
					for i := range names {
						names[i] = mustName(b, bc.name1(i))
					}
					b.ReportAllocs()
					i := 0
					for b.Loop() {
						if d := sel.Lookup(names[i&(len(names)-1)], bc.port); d.Verdict != bc.want {
							b.Fatalf("%s: got %s", names[i&(len(names)-1)], outcome(d))
						}
						i++
					}
				})
			}
		})
	}
}

func BenchmarkParseName(b *testing.B) {
	for _, s := range []string{"api.example.com", "API.Example.com.", "127.0.0.1"} {
		b.Run(s, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ParseName(s)
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			path := manyDocument(b, n, "")
			before := heap()
			var set *Set
			b.ReportAllocs()
			for b.Loop() {
				set = nil
				var err error
				if set, err = Load(Source{File: path}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(int64(heap())-int64(before))/1e6, "MB-held")
			runtime.KeepAlive(set)
		})
	}
}

func BenchmarkSelect(b *testing.B) {
	const policies = 10_000
	addr := func(i int) netip.Addr {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 10<<24+uint32(i)<<8)
		return netip.AddrFrom4(a)
	}
	var doc strings.Builder
	for i := range policies {
		fmt.Fprintf(&doc, "policy p%d {\n client %s/%d\n allow example.com\n}\n", i, addr(i), 24+i%4)
	}
	set := setOf(b, doc.String())
	clients := make([]netip.Addr, 1<<10)
	for i := range clients {
		clients[i] = addr(i * 7 % policies)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if set.Select(clients[i&(len(clients)-1)], "").Policy() == "" {
			b.Fatal("no policy")
		}
		i++
	}
}
