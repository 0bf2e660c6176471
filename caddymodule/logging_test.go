package caddymodule

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// Logging a decision allocates no more than a line of Caddy's access log, with the fields that it has.
func TestLoggingAllocations(t *testing.T) {
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard), zap.DebugLevel))
	r := httptest.NewRequest("GET", "https://www.example.com/", nil)
	r.Header.Set("User-Agent", "curl/7.88.1")
	r.Header.Set("Accept", "*/*")
	head := http.Header{"Server": {"Caddy"}, "Content-Type": {"text/plain"}}
	access := testing.AllocsPerRun(1000, func() {
		log.Check(zap.InfoLevel, "handled request").Write(
			zap.Object("request", caddyhttp.LoggableHTTPRequest{Request: r}),
			zap.Int("bytes_read", 0), zap.String("user_id", ""), zap.Duration("duration", time.Millisecond),
			zap.Int("size", 12), zap.Int("status", 200),
			zap.Object("resp_headers", caddyhttp.LoggableHTTPHeader{Header: head}),
		)
	})
	a := &App{log: log}
	for _, v := range []policy.Verdict{policy.Allow, policy.Deny} {
		rec := &record{start: time.Now()}
		rec.Layer, rec.Client, rec.Name, rec.Port = decision.TLS, netip.MustParseAddr("172.30.0.5"), "www.example.com", 443
		rec.Decision = policy.Decision{Verdict: v, Policy: "default"}
		if v == policy.Deny {
			rec.Decision.Reason = policy.ReasonNotAllowed
		}
		got := testing.AllocsPerRun(1000, func() { a.write(rec.Message(), rec) })
		t.Logf("%s: %v allocations, the access log %v", rec.Message(), got, access)
		if got > access {
			t.Errorf("%s: %v allocations, want at most those of the access log, %v", rec.Message(), got, access)
		}
	}
}
