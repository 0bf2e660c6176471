package caddymodule

import (
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

func TestListenAlone(t *testing.T) {
	route := func(at string) string { return "layer4 {\n" + at + " {\nroute {\nsandboxallow\n}\n}\n}\n" }
	site := func(address, bind string) string { return address + " {\n" + bind + "\nrespond hello\n}\n" }
	for _, tc := range []struct{ name, listen, globals, sites, want string }{
		{"alone", "listen :443", "", "", ""},
		{"a route", "listen :443", route(":443"), "", "listen :443: server srv0 of the layer4 app listens there, too"},
		{"a route, all of IPv4", "listen :443", route("0.0.0.0:443"), "", "layer4 app"},
		{"a route, spelled otherwise", "listen 172.30.0.20:443", route("[::ffff:172.30.0.20]:443"), "", "layer4 app"},
		{"a route, in a range of ports", "listen :443", route(":440-450"), "", "layer4 app"},
		{"a route of another port", "listen :443", route(":5432"), "", ""},
		{"a route of another address", "listen 172.30.0.20:443", route("172.30.0.21:443"), "", ""},
		{"a route of one address", "listen :443", route("172.30.0.21:443"), "", ""},
		{"a route of UDP", "listen :443", route("udp/:443"), "", ""},
		{"a site", "listen :443", "", site("https://www.example.com", ""), "listen :443: server srv0 of the http app listens there, too"},
		{"a site of HTTP", "listen :80", "", site("http://www.example.com", ""), "http app"},
		{"a site of one address", "listen 172.30.0.20:443", "", site("https://www.example.com", "bind 172.30.0.20"), "http app"},
		{"a site of another address", "listen 172.30.0.20:443", "", site("https://www.example.com", "bind 172.30.0.21"), ""},
		{"a site that brokers", "listen :443", "", "https://www.example.com {\nsandboxallow broker\n}\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, err := caddy.ProvisionContext(adapt(t, "{\nstorage file_system "+t.TempDir()+"\n"+tc.globals+
				"sandboxallow {\nallow a.b\n"+tc.listen+"\n}\n}\n"+tc.sites))
			if err != nil {
				t.Fatal(err)
			}
			app, err := appOf(ctx)
			if err != nil {
				t.Fatal(err)
			}
			err = app.listenAlone()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
