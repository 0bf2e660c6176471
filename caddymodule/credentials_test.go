package caddymodule

import (
	"fmt"
	"math"
	"net/http"
	"runtime"
	"strings"
	"testing"
)

func TestCredentialFields(t *testing.T) {
	c := &credentials{
		headers: map[string]bool{fold("X-Own"): true, fold("X-Csrf-Token"): false},
	}
	for name, want := range map[string]bool{
		"Authorization": true, "Proxy-Authorization": true, "Cookie": true, "Cookie2": true,
		"X-Api-Key": true, "x_api_key": true, "X.Api.Key": true, "Api-Key": true, "Apikey": true, "X-Apikey": true,
		"X-Goog-Api-Key": true, "X-Goog-Iam-Authorization-Token": true, "X-Auth-Token": true, "X-Auth-Key": true, "X-Auth-Email": true,
		"X-Access-Token": true, "Private-Token": true, "Job-Token": true, "Deploy-Token": true, "X-Gitlab-Token": true, "X-Vault-Token": true,
		"X-Consul-Token": true, "Ocp-Apim-Subscription-Key": true, "X-Functions-Key": true, "X-Amz-Security-Token": true, "Dd-Api-Key": true,
		"Dd-Application-Key": true, "X-Shopify-Access-Token": true, "X-Github-Token": true, "X-Figma-Token": true, "X-Rapidapi-Key": true,
		"Fastly-Key": true, "X-Postmark-Server-Token": true, "X-Sentry-Auth": true, "X-Ms-Authorization-Auxiliary": true, "Circle-Token": true,
		"X-Honeycomb-Team": true, "X-Trackertoken": true, "Dpop": true, "Signature": true, "Signature-Input": true, "Client-Cert": true,
		"X-Parse-Master-Key": true, "X-Client-Secret": true, "X-Plex-Token": true, "X-Own": true, "x_own": true,
		"Key": true, "Token": true, "X-Api~Key": true, "X!Api'Key": true, "X--Own": true, "X-Api-Key-": true,

		"Accept": false, "Content-Type": false, "User-Agent": false, "Host": false, "Idempotency-Key": false, "X-Idempotency-Key": false,
		"Sec-Websocket-Key": false, "X-Atlassian-Token": false, "X-Ms-Continuation-Token": false, "Anthropic-Version": false,
		"Openai-Organization": false, "Mcp-Session-Id": false, "X-Request-Id": false, "Author": false, "Authority": false,
		"X-Keyboard": false, "Monkey": false, "X-Csrf-Token": false, "": false,
	} {
		if got := c.inHeader(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestCredentialsInQuery(t *testing.T) {
	c := &credentials{queries: map[string]bool{fold("mine"): true, fold("token"): false}}
	for _, tc := range []struct{ in, want string }{
		{"", ""},
		{"a=1&b=2", "a=1&b=2"},
		{"a=%zz&b;c", "a=%zz&b;c"}, // nothing to remove: octet by octet
		{"access_token=x&a=1", "a=1"},
		{"a=1&accessToken=x", "a=1"},
		{"api_key=x", ""},
		{"API-KEY=x", ""},
		{"apikey=x&a", "a"},
		{"key=x&keys=1&monkey=2", "keys=1&monkey=2"},
		{"key[]=x&a=1", "a=1"},
		{"%6b%65%79=x&a=1", "a=1"},
		{"+key=x&a=1", "a=1"},
		{"a=1;key=x&b=2", "b=2"},
		{"auth=x&sig=y&signature=z", ""},
		{"X-Amz-Credential=x&X-Amz-Signature=y&X-Amz-Security-Token=z&X-Amz-Date=1", "X-Amz-Date=1"},
		{"client_secret=x&client_id=1", "client_id=1"},
		{"subscription-key=x&private_token=y&job_token=z", ""},
		{"pageToken=1&page_token=2&nextToken=3&continuation-token=4", "pageToken=1&page_token=2&nextToken=3&continuation-token=4"},
		{"token=kept&mine=x", "token=kept"},
		{"api%00key=x&api+key=x&api~key=x&api%ffkey=x&a=1", "a=1"},
		{"key%00=x&key%00a=x&%00key=x&key%00[a]=x&ke%00y=x&ke%e2%80%8by=x&ke%ffy=x&caf%c3%a9=1", "caf%c3%a9=1"},
		{"api[key=x&key[=x&[key]=x&]key=x&a[b=1&filter[key]=1", "a[b=1&filter[key]=1"},
		{"%u006bey=x&%6bey%=x&a%zz&a=%zz", "a=%zz"},
		{"%e2%84%aaey=x&%c5%bfecret=x", ""}, // the sign of Kelvin, and the long s
		{"_key=x&$key=x&key_=x", ""},
		{"_method=DELETE&_METHOD=x&.method=x&[method=x&%5fmethod=x&_method%00=x&method=get&Method=1", "method=get&Method=1"},
		{"X-HTTP-Method-Override=DELETE&x_http_method=PUT&a", "a"},
		{"Idempotency-Key=1&Page-Token=2", "Idempotency-Key=1&Page-Token=2"},
		{"&&key=1&&a", "&&&a"},
		{"&&a", "&&a"},
		{"a&key=1&&b", "a&&b"},
		{"key=1&", ""},
	} {
		if got := c.removeFromQuery(tc.in); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.in, got, tc.want)
		}
	}
}

// What a query costs grows with its length, not with its square.
func TestCredentialsInLongQuery(t *testing.T) {
	c := new(credentials)
	for _, tc := range []struct{ name, in, want string }{
		{"nothing between", strings.Repeat("&", 16000), strings.Repeat("&", 16000)},
		{"one to remove", strings.Repeat("&", 16000) + "key=1", strings.Repeat("&", 15999)},
		{"many to remove", strings.Repeat("key=1&", 4000) + "a=1", "a=1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got string
			least := uint64(math.MaxUint64) // what else runs allocates too
			for range 5 {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				got = c.removeFromQuery(tc.in)
				runtime.ReadMemStats(&after)
				least = min(least, after.TotalAlloc-before.TotalAlloc)
			}
			if got != tc.want {
				t.Errorf("%d octets are left, want %d", len(got), len(tc.want))
			}
			if least > 10*uint64(len(tc.in)) {
				t.Errorf("%d octets allocated for %d", least, len(tc.in))
			}
		})
	}
}

// The memory of names holds no long ones.
func TestCredentialsRemembered(t *testing.T) {
	c := new(credentials)
	if name := strings.Repeat("x", 16000) + "-Api-Key"; !c.inHeader(name) || c.count.Load() != 0 {
		t.Errorf("%d names are remembered", c.count.Load())
	}
	for i := range 2 * maxJudged {
		c.inHeader(fmt.Sprint("X-", i))
	}
	if n := c.count.Load(); n != maxJudged {
		t.Errorf("%d names are remembered, want %d", n, maxJudged)
	}
}

func TestRemoveCredentials(t *testing.T) {
	h := http.Header{"Authorization": {"a", "b"}, "X_api_key": {"c"}, "X_http_method_override": {"DELETE"}, "X.Original~Url": {"/"}, "Accept": {"*/*"}}
	new(credentials).removeFrom(h)
	if len(h) != 1 || h.Get("Accept") != "*/*" {
		t.Errorf("%v is left", h)
	}
}

func TestCredentialsInProtocols(t *testing.T) {
	for _, tc := range []struct {
		in   []string
		want string // with `|` between values
	}{
		{nil, ""},
		{[]string{"graphql-transport-ws,graphql-ws", " mqtt"}, "graphql-transport-ws,graphql-ws| mqtt"}, // octet by octet
		{[]string{"v4.channel.k8s.io, v12.stomp, wamp.2.json, actioncable-v1-json, ocpp1.6"}, "v4.channel.k8s.io, v12.stomp, wamp.2.json, actioncable-v1-json, ocpp1.6"},
		{[]string{"realtime, openai-insecure-api-key.sk-1.2.3, openai-beta.realtime-v1"}, "realtime, openai-beta.realtime-v1"},
		{[]string{"base64url.bearer.authorization.k8s.io.MTIz, base64.channel.k8s.io"}, "base64.channel.k8s.io"},
		{[]string{"openai-insecure-api-key.sk-1"}, ""},
		{[]string{"token, 123, chat"}, "chat"},
		{[]string{"chat, Bearer, ,", "123"}, "chat"},
		{[]string{"accessToken.123", "chat", "X_API_KEY-123"}, "chat"},
		{[]string{"authorization.bearer,123"}, ""},
	} {
		h := http.Header{"Sec-Websocket-Protocol": tc.in}
		new(credentials).removeFrom(h)
		got, ok := h["Sec-Websocket-Protocol"]
		if strings.Join(got, "|") != tc.want || ok != (tc.want != "") {
			t.Errorf("%q: %q, want %q", tc.in, got, tc.want)
		}
	}
	h := http.Header{"Sec_websocket_protocol": {"key.1"}, "Sec-Websocket-Protocol": {"key.1"}}
	if new(credentials).removeFrom(h); len(h) != 0 {
		t.Errorf("%v is left", h)
	}
	h = http.Header{"Sec-Websocket-Protocol": {"key.1"}}
	c := &credentials{headers: map[string]bool{fold("Sec-WebSocket-Protocol"): false}}
	if c.removeFrom(h); len(h) != 1 {
		t.Errorf("%v is left of what is kept", h)
	}
}

// What makes another request of it can be kept, too.
func TestKeepOverrides(t *testing.T) {
	kept := map[string]bool{fold("X-HTTP-Method-Override"): false, fold("_method"): false}
	c := &credentials{headers: kept, queries: kept}
	h := http.Header{"X-Http-Method-Override": {"DELETE"}, "X-Original-Url": {"/"}}
	if c.removeFrom(h); len(h) != 1 || h.Get("X-HTTP-Method-Override") != "DELETE" {
		t.Errorf("%v is left", h)
	}
	if got := c.removeFromQuery("_method=PUT&key=x"); got != "_method=PUT" {
		t.Errorf("%q is left", got)
	}
}

func BenchmarkRemoveCredentials(b *testing.B) {
	h := http.Header{}
	for _, name := range []string{"Accept", "Accept-Encoding", "Content-Type", "Content-Length", "User-Agent", "X-Stainless-Lang", "X-Stainless-Os", "X-Stainless-Runtime", "X-Request-Id", "Openai-Organization"} {
		h.Set(name, "x")
	}
	c := new(credentials)
	b.ReportAllocs()
	for b.Loop() {
		c.removeFrom(h)
	}
}
