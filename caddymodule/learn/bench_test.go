package learn

import (
	"bytes"
	"testing"
)

// BenchmarkLine is the cost of a line, of a decision and of what is skipped.
func BenchmarkLine(b *testing.B) {
	escaped := bytes.Replace([]byte(allowedLine), []byte("api.github.com"), []byte(`api\u002egithub.com`), 1)
	access := []byte(`{"level":"info","ts":1796000000.123,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"172.30.0.5","method":"GET","host":"x","uri":"/","headers":{"User-Agent":["curl/8"]}},"status":200}`)
	for _, tc := range []struct {
		name string
		line []byte
	}{
		{"decision", []byte(allowedLine)},
		{"end of a tunnel", []byte(closedLine)},
		{"by encoding-json", escaped},
		{"another logger", access},
		{"of CoreDNS", []byte(dnsLine)},
	} {
		b.Run(tc.name, func(b *testing.B) {
			l := New(Options{Denied: true})
			var e entry
			b.SetBytes(int64(len(tc.line)))
			b.ReportAllocs()
			for b.Loop() {
				l.line(&e, tc.line)
			}
		})
	}
}

// BenchmarkDecode is what BenchmarkLine would be without scan.
func BenchmarkDecode(b *testing.B) {
	line := []byte(allowedLine)
	var e entry
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		e.decode(line)
	}
}

func BenchmarkResult(b *testing.B) {
	l := New(Options{WildcardFrom: 20})
	if err := l.Read("log", bytes.NewReader(logOf(b, hashed("%s.cdn.example.com:443", 2000)+hashed("www.%s.com:443", 2000)))); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Result(); err != nil {
			b.Fatal(err)
		}
	}
}
