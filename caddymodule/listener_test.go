package caddymodule

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// listenFile is a Caddyfile with a policy and these lines, of which the first is the fourth.
func listenFile(lines string) string {
	return "{\n\tsandboxallow {\n\t\tallow example.com\n" + lines + "\n\t}\n}\n"
}

func TestListenAdaptErrors(t *testing.T) {
	type row struct{ name, in, want string }
	rows := []row{
		{"no address", "listen", "wrong argument count or unexpected line ending after 'listen', at Caddyfile:4"},
		{"no address, a block", "listen {\nupstream_port 443\n}", "wrong argument count or unexpected line ending after 'listen', at Caddyfile:4"},
		{"block and options", "listen :443 {\nname x\n}", `unknown option "name", accepted are upstream_port and policy, at Caddyfile:5`},
		{"port of the upstream", "listen :443 {\nupstream_port 0\n}", `upstream_port: port "0", accepted are 1 to 65535, at Caddyfile:5`},
		{"port of the upstream, twice", "listen :443 {\nupstream_port 1\nupstream_port 2\n}", "upstream_port is given twice, at Caddyfile:6"},
		{"policy without a name", "listen :443 {\npolicy\n}", "wrong argument count or unexpected line ending after 'policy', at Caddyfile:5"},
		{"two policies", "listen :443 {\npolicy a b\n}", "wrong argument count or unexpected line ending after 'a', at Caddyfile:5"},
		{"policy, twice", "listen :443 {\npolicy a\npolicy b\n}", "policy is given twice, at Caddyfile:6"},
		{"second of two", "listen :443 :0", `address ":0", accepted are :PORT and ADDRESS:PORT, at Caddyfile:4`},
	}
	for _, addr := range []string{
		"443", ":0", ":-1", ":65536", ":443-444", ":https", ":", "localhost:443", "example.com:443", "*:443", "127.0.0.1", "127.0.0.1:0",
		"127.1:443", "0x7f000001:443", "127.0.0.1:443:1", "::1:443", "[::1]", "[localhost]:443", "udp/:443", "tcp4/:443", "unix//run/x", "fd/3", "fdgram/3",
		"sandboxallow/broker:443", "{env.ADDR}:443", "{http.request.host}:443", "https://127.0.0.1:443", "127.0.0.1:443/", "me@127.0.0.1:443",
	} {
		rows = append(rows, row{addr, "listen " + addr, fmt.Sprintf("listen: address %q, accepted are :PORT and ADDRESS:PORT, at Caddyfile:4", addr)})
	}
	for _, tc := range rows {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(listenFile(tc.in)), map[string]any{"filename": "Caddyfile"})
			if err == nil || !strings.HasSuffix(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestListenProvisionErrors(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"twice", "listen 127.0.3.1:1 127.0.3.1:1", "listen: 127.0.3.1:1 is given twice"},
		{"in two listeners", "listen 127.0.3.1:1\nlisten 127.0.3.1:1 {\nupstream_port 2\n}", "listen: 127.0.3.1:1 is given twice"},
		{"in another spelling", "listen [::1]:1 [0:0::1]:1", "listen: [::1]:1 is given twice"},
		{"mapped", "listen 127.0.3.1:1 [::ffff:127.0.3.1]:1", "listen: 127.0.3.1:1 is given twice"},
		{"all addresses", "listen :1\nlisten [::]:1 0.0.0.0:1 {\npolicy default\n}", "listen: :1 is given twice"},
		{"port in another spelling", "listen :1 :01", "listen: :1 is given twice"},
		{"network in another spelling", "listen :1 tcp/:1", "listen: :1 is given twice"},
		{"unknown policy", "listen 127.0.3.1:1 {\nupstream_port 2\npolicy strict\n}", `Caddyfile:6: policy "strict" does not exist, accepted are default`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := caddy.Validate(adapt(t, listenFile(tc.in)))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	for _, tc := range []struct{ name, in, want string }{
		{"null", `[null]`, "listen without an address, accepted are :PORT and ADDRESS:PORT"},
		{"no addresses", `[{}]`, "listen without an address, accepted are :PORT and ADDRESS:PORT"},
		{"an empty address", `[{"addresses": [""]}]`, `listen: address "", accepted are :PORT and ADDRESS:PORT`},
		{"port 0", `[{"addresses": [":1", ":0"]}]`, `listen: address ":0", accepted are :PORT and ADDRESS:PORT`},
		{"host name", `[{"addresses": ["localhost:1"]}]`, `listen: address "localhost:1", accepted are :PORT and ADDRESS:PORT`},
		{"placeholder", `[{"addresses": ["{env.HOME}:1"]}]`, `listen: address "{env.HOME}:1", accepted are :PORT and ADDRESS:PORT`},
		{"NUL", `[{"addresses": ["127.0.0.1\u0000:1"]}]`, "accepted are :PORT and ADDRESS:PORT"},
		{"unknown policy", `[{"addresses": [":1"], "policy": "strict"}]`, `policy "strict" does not exist, accepted are default`},
		{"upstream port", `[{"addresses": [":1"], "upstream_port": 65536}]`, "cannot unmarshal number 65536"},
		{"unknown field", `[{"address": [":1"]}]`, `unknown field`},
	} {
		t.Run("JSON/"+tc.name, func(t *testing.T) {
			cfg := config(t, []byte(`{"apps": {"sandboxallow": {"policy": [{"file": "x", "line": 1, "words": ["allow", "a.b"]}], "listen": `+tc.in+`}}}`))
			err := caddy.Validate(cfg)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
