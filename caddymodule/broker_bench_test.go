package caddymodule

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkBroker compares a site that brokers with one of plain Caddy, with TLS on both sides of both.
func BenchmarkBroker(b *testing.B) {
	plain := "https://www.example.com:8448 {\nbind 127.0.3.1\nlog\ntls internal\nreverse_proxy https://" + upstreamAddr + ":%d {\n" +
		"header_up Authorization \"Bearer {file.%secret}\"\nheader_up Host api.example.com:%d\n" +
		"transport http {\ntls_trust_pool file %roots\ntls_server_name api.example.com\n}\n}\n}\n"
	g := startBroker(b, brokerSetup{
		sites: brokerSite + plain,
		level: "INFO",
		handle: func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, strings.Repeat("data: {\"choices\":[{\"delta\":{\"content\":\" token\"}}]}\n\n", 20))
		},
	})
	for _, tc := range []struct{ name, at, host string }{
		{"broker", g.tls, fmt.Sprintf("https://api.example.com:%d/v1", g.up.port)},
		{"plain", "127.0.3.1:8448", "https://www.example.com:8448/v1"},
	} {
		for _, proto := range []string{"http/1.1", "h2"} {
			b.Run(tc.name+"/"+proto, func(b *testing.B) {
				client := g.browser(proto)
				tr := client.Transport.(*http.Transport)
				tr.MaxIdleConnsPerHost = 100
				tr.TLSClientConfig = &tls.Config{InsecureSkipVerify: true, NextProtos: []string{proto}}
				tr.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, network, tc.at)
				}
				b.SetParallelism(8)
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						req, _ := http.NewRequest("POST", tc.host, strings.NewReader("{}"))
						resp, err := client.Do(req)
						if err != nil {
							b.Error(err)
							return
						}
						if n, err := io.Copy(io.Discard, resp.Body); err != nil || n < 1000 || resp.StatusCode != 200 {
							b.Errorf("%d octets, status %d, %v", n, resp.StatusCode, err)
							return
						}
						resp.Body.Close()
					}
				})
			})
		}
	}
}
