//go:build linux

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What is brokered in these tests, besides openAI and anthropic.
const (
	wildcard = "x.example.org"      // by the site *.example.org
	pinned   = "pinned.example.org" // excepted there
	oddPort  = "odd.example.net"    // on port 8443, by a site that says so
)

// Credentials of the lab.
const (
	openAIKey    = "sk-lab-openai-0123456789abcdef"
	anthropicKey = "sk-lab-anthropic-fedcba9876543210"
	madeUp       = "from-the-sandbox" // in each credential that a client makes up
)

// nobody is an address of the sandbox whose policy allows nothing.
var nobody = netip.MustParseAddr("fd00:30::66")

// brokerLab is a lab in which these names are brokered, and allowedHost is not.
func brokerLab(t *testing.T) (*lab, *gateway, *api) {
	t.Helper()
	l := newLab(t)
	bearer := "Bearer {file." + l.secret(t, "openai", openAIKey) + "}"
	xKey := "{file." + l.secret(t, "anthropic", anthropicKey) + "}"
	names := []string{openAI, anthropic, wildcard, pinned, "private.example.com"}
	for name := range badCertificates {
		names = append(names, name)
	}
	sites := brokered(openAI, "", "https://"+openAI, "Authorization", bearer) +
		brokered(anthropic, "", "https://"+anthropic, "X-Api-Key", xKey) +
		brokered("*.example.org", "except "+pinned, "{host}:443", "Authorization", bearer) +
		brokered(oddPort+":8443", "", "https://"+oddPort+":8443", "Authorization", bearer) +
		brokered("private.example.com", "", "https://private.example.com", "Authorization", bearer)
	for name := range badCertificates {
		sites += brokered(name, "", "https://"+name, "Authorization", bearer)
	}
	g, a := l.startBroker(t, config{
		policy: allowing(append(names, allowedHost, oddPort+":8443,8444", "many.example.org:*")...) +
			"policy nobody {\n\tclient " + nobody.String() + "\n}\n",
		sites: sites,
	})
	for name, key := range map[string]field{
		openAI: {"Authorization", "Bearer " + openAIKey}, wildcard: {"Authorization", "Bearer " + openAIKey},
		oddPort: {"Authorization", "Bearer " + openAIKey}, anthropic: {"X-Api-Key", anthropicKey},
	} {
		if err := a.host(l.internet, name, key, otherAddr); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.internet.serve(l.internet.ns, netip.AddrPortFrom(otherAddr, 8443), a.take); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{allowedHost, pinned} {
		if _, err := l.internet.host(name, webAddr); err != nil {
			t.Fatal(err)
		}
	}
	return l, g, a
}

// ours fails the test unless all requests behind the first n were for a name, with our key and with nothing of the
// client's, and there are want of them.
func (a *api) ours(tb testing.TB, n, want int, name string, key field) {
	tb.Helper()
	calls := a.since(n)
	if len(calls) != want {
		tb.Errorf("%d requests came to the upstream, want %d", len(calls), want)
	}
	for _, c := range calls {
		if c.Host != name || c.ServerName != name {
			tb.Errorf("the upstream was asked for %q, with server name %q, want %q", c.Host, c.ServerName, name)
		}
		if got := c.Header[key.name]; !slices.Equal(got, []string{key.value}) {
			tb.Errorf("the upstream got %s: %q, want ours", key.name, got)
		}
		for what, header := range map[string]http.Header{"header": c.Header, "trailer": c.Trailer} {
			for name, values := range header {
				if strings.Contains(strings.Join(values, " "), madeUp) {
					tb.Errorf("the upstream got %s in the %s: %q", name, what, values)
				}
			}
		}
		if strings.Contains(c.Target, madeUp) {
			tb.Errorf("the upstream was asked for %s", c.Target)
		}
		for _, field := range []string{"Via", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"} {
			if v := c.Header.Get(field); v != "" {
				tb.Errorf("the upstream heard %s: %s", field, v)
			}
		}
	}
}

// Whoever is in the sandbox tries to get at the keys, to have them sent elsewhere, or to get in with its own.
func TestBroker(t *testing.T) {
	l, g, a := brokerLab(t)
	root := l.trust(t, g)
	openAIField, anthropicField := field{"Authorization", "Bearer " + openAIKey}, field{"X-Api-Key", anthropicKey}
	in := func(t *testing.T, name string) *conversation { return converseOver(l.secure(t, name)) }
	get := func(host string, fields ...string) string { return head("GET /v1/models", host, fields...) }

	t.Run("ours", func(t *testing.T) {
		for name, key := range map[string]field{openAI: openAIField, anthropic: anthropicField, wildcard: openAIField} {
			n, m := a.count(), g.caddy.log.mark()
			c := in(t, name)
			c.ask(t, get(name)).is(t, welcome)
			c.ask(t, get(name)).is(t, welcome)
			a.ours(t, n, 2, name, key)
			_ = c.Close()
			for _, d := range g.decidedEach(t, "http", m, msgClosed, name) {
				if d.Port != 443 || d.Upstream != netip.AddrPortFrom(otherAddr, 443).String() || d.BytesOut == 0 || d.Rule == "" {
					t.Errorf("decision %+v", d)
				}
			}
		}
	})
	t.Run("not brokered", func(t *testing.T) {
		for _, name := range []string{allowedHost, pinned} {
			c := l.secure(t, name)
			if issuer := c.ConnectionState().PeerCertificates[0].Issuer.CommonName; issuer != "sandboxallow end-to-end test" {
				t.Errorf("%s has a certificate of %q, want that of the server itself", name, issuer)
			}
			converseOver(c).ask(t, head("GET /", name)).is(t, page(name))
		}
	})
	t.Run("http-035", func(t *testing.T) {
		mark := g.caddy.log.mark()
		c := l.secure(t, pinned)
		converseOver(c).ask(t, head("GET /", pinned)).is(t, page(pinned))
		_ = c.Close()
		// The tunnel of the test before may end at the same time.
		for _, d := range g.decidedEach(t, overTLS.layer, mark, msgClosed, pinned) {
			if d.Verdict != "allow" || d.Upstream != netip.AddrPortFrom(webAddr, 443).String() {
				t.Errorf("decision %+v, want a tunnel", d)
			}
		}
		if issuer := l.secure(t, wildcard).ConnectionState().PeerCertificates[0].Issuer.String(); strings.Contains(issuer, "end-to-end test") {
			t.Errorf("%s has a certificate of %s, want one of the gateway", wildcard, issuer)
		}
	})
	t.Run("http-033", func(t *testing.T) {
		leaf := l.secure(t, openAI).ConnectionState().PeerCertificates[0]
		if len(leaf.AuthorityKeyId) == 0 || !slices.Equal(leaf.DNSNames, []string{openAI}) ||
			!slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) ||
			leaf.NotAfter.Sub(leaf.NotBefore) > 825*24*time.Hour {
			t.Errorf("the leaf has AKI %x, names %q, EKU %v, from %s to %s",
				leaf.AuthorityKeyId, leaf.DNSNames, leaf.ExtKeyUsage, leaf.NotBefore, leaf.NotAfter)
		}
		if len(root.SubjectKeyId) == 0 || root.KeyUsage&x509.KeyUsageCertSign == 0 || !root.IsCA {
			t.Errorf("the root has SKI %x, key usage %b, CA %v", root.SubjectKeyId, root.KeyUsage, root.IsCA)
		}
		need(t, "python3")
		out, err := l.run("env", "SSL_CERT_FILE="+l.ca.file, "python3", testdata("strict.py"), "https://"+openAI+"/v1/models")
		if err != nil || out != welcome {
			t.Errorf("with VERIFY_X509_STRICT: %q, %v", out, err)
		}
	})
	t.Run("ops-023", func(t *testing.T) {
		cfg := l.ca.client(openAI)
		cfg.Time = func() time.Time { return time.Now().Add(-10 * time.Minute) }
		if err := tls.Client(l.converse(t, gatewayTLS), cfg).Handshake(); err != nil {
			t.Errorf("with a clock that is 10 minutes behind: %v", err)
		}
	})
	t.Run("sni-060", func(t *testing.T) {
		for _, tc := range []struct {
			offers []string
			want   string
		}{{[]string{"h2", "http/1.1"}, "h2"}, {[]string{"http/1.1"}, "http/1.1"}, {nil, ""}} {
			if got := l.secure(t, openAI, tc.offers...).ConnectionState().NegotiatedProtocol; got != tc.want {
				t.Errorf("offered %q, negotiated %q, want %q", tc.offers, got, tc.want)
			}
		}
		for _, offer := range []string{"acme-tls/1", "postgresql", "h3", strings.Repeat("x", 255)} {
			cfg := l.ca.client(openAI)
			cfg.NextProtos = []string{offer}
			if c := tls.Client(l.converse(t, gatewayTLS), cfg); c.Handshake() == nil {
				t.Errorf("offered %q, negotiated %q, want no connection", offer, c.ConnectionState().NegotiatedProtocol)
			}
		}
	})

	t.Run("credentials of the client", func(t *testing.T) {
		var fields []string
		for _, name := range clientFields {
			fields = append(fields, name+": Bearer "+madeUp)
		}
		for name, key := range map[string]field{openAI: openAIField, anthropic: anthropicField} {
			n := a.count()
			query := "?keep=yes&api_key=" + madeUp + "&key=" + madeUp + "&access_token=" + madeUp + "&apikey=" + madeUp + "&API-KEY=" + madeUp + "&to%6ben=" + madeUp
			in(t, name).ask(t, head("GET /v1/models"+query, name, fields...)).is(t, welcome)
			// One after the other as well: two of a kind may make a request a bad one.
			for _, f := range clientFields {
				in(t, name).ask(t, get(name, f+": "+madeUp, strings.ToLower(f)+":"+madeUp)).is(t, welcome)
			}
			in(t, name).ask(t, "POST /echo HTTP/1.1\r\nHost: "+name+"\r\nTransfer-Encoding: chunked\r\nTrailer: Authorization, X-Api-Key\r\n\r\n"+
				"2\r\nhi\r\n0\r\nAuthorization: Bearer "+madeUp+"\r\nX-Api-Key: "+madeUp+"\r\n\r\n")
			a.ours(t, n, len(clientFields)+2, name, key)
			if first := a.since(n)[0]; !strings.HasSuffix(first.Target, "?keep=yes") {
				t.Errorf("the upstream was asked for %s, want what is no credential as it was sent", first.Target)
			}
		}
	})
	t.Run("hop by hop", func(t *testing.T) {
		// What Connection names is not for the next hop: ours is not the client's to name.
		for name, key := range map[string]field{openAI: openAIField, anthropic: anthropicField} {
			n := a.count()
			for _, names := range []string{"authorization", "Authorization, X-Api-Key", "close, x-api-key, authorization, host"} {
				in(t, name).ask(t, get(name, "Connection: "+names, "Authorization: "+madeUp)).is(t, welcome)
			}
			in(t, name).ask(t, get(name, "Connection: authorization", "Connection: x-api-key", "TE: trailers, authorization")).is(t, welcome)
			a.ours(t, n, 4, name, key)
		}
	})
	t.Run("http-028", func(t *testing.T) {
		file := "{file." + filepath.Join(l.dir, "secrets", "openai") + "}"
		env := "{env.HOME}"
		for name, key := range map[string]field{openAI: openAIField, anthropic: anthropicField} {
			n := a.count()
			in(t, name).ask(t, head("POST /echo?q="+file+"&e="+env, name, "User-Agent: "+file, "X-Thing: "+env, "Authorization: Bearer "+file,
				"Cookie: "+file, "X-Api-Key: "+file, "Referer: https://"+name+"/"+file, "Content-Length: "+strconv.Itoa(len(file)))+file)
			in(t, name).ask(t, head("GET /v1/"+file+"/x", name, "X-Thing: {http.reverse_proxy.header.Authorization} {http.request.header.Authorization}"))
			in(t, name).ask(t, head("GET https://"+name+"/v1/%7Benv.HOME%7D", name))
			a.ours(t, n, 3, name, key)
			calls := a.since(n)
			if got := calls[0].Header.Get("User-Agent") + calls[0].Header.Get("X-Thing") + calls[0].Body; got != file+env+file {
				t.Errorf("what is no credential came as %q", got)
			}
			for _, c := range calls {
				c.Header.Del(key.name)
				if all := fmt.Sprintf("%+v", c); strings.Contains(all, openAIKey) || strings.Contains(all, anthropicKey) || strings.Contains(all, g.dir) {
					t.Errorf("the upstream got %s", all)
				}
			}
		}
		// As a Host it is no name.
		n := a.count()
		if got := in(t, openAI).ask(t, get(file)); got.status < 400 {
			t.Errorf("answer %+v", got)
		}
		a.ours(t, n, 0, openAI, openAIField)
	})
	t.Run("http-029", func(t *testing.T) {
		for _, host := range []string{anthropic, wildcard, allowedHost, evilHost, "x." + openAI, "169.254.169.254", openAI + ".example.org", "localhost"} {
			n, mark := a.count(), g.caddy.log.mark()
			c := in(t, openAI)
			c.ask(t, get(host)).refuses(t, http.StatusMisdirectedRequest, "name_mismatch")
			a.ours(t, n, 0, openAI, openAIField)
			if d := g.decidedBy(t, "http", mark, msgDenied, host); d.Reason != "name_mismatch" || !strings.Contains(d.Error, openAI) {
				t.Errorf("decision %+v", d)
			}
		}
		// One site has both: what is excepted from it is not reached through it either.
		n := a.count()
		for _, host := range []string{pinned, "y.example.org"} {
			in(t, wildcard).ask(t, get(host)).refuses(t, http.StatusMisdirectedRequest, "name_mismatch")
		}
		a.ours(t, n, 0, wildcard, openAIField)
		// The same name, otherwise written.
		for _, host := range []string{"API.OpenAI.com", openAI + ":443"} {
			in(t, openAI).ask(t, get(host)).is(t, welcome)
		}
		a.ours(t, n, 2, openAI, openAIField)
		// SNI has no dot at its end (RFC 6066 §3), and Caddy takes the two for different.
		for _, host := range []string{openAI + ".", openAI + ":80", openAI + ":8443", "user@" + openAI, openAI + ":443:443", ""} {
			n := a.count()
			if got := in(t, openAI).ask(t, get(host)); got.status < 400 {
				t.Errorf("Host %q: %+v", host, got)
			}
			a.ours(t, n, 0, openAI, openAIField)
		}
	})
	t.Run("http-030", func(t *testing.T) {
		n := a.count()
		request := func(authority string, more ...string) []string {
			return append([]string{":method", "GET", ":scheme", "https", ":authority", authority, ":path", "/v1/models"}, more...)
		}
		for _, tc := range [][]string{
			request(anthropic),
			request(evilHost),
			request(openAI, "host", evilHost),
			request(openAI, "host", openAI, "host", anthropic),
			request(anthropic, "host", openAI),
			{":method", "GET", ":scheme", "https", ":path", "/v1/models", "host", anthropic},
			{":method", "GET", ":scheme", "https", ":path", "/v1/models"},
			{":method", "GET", ":scheme", "https", ":authority", openAI, ":authority", evilHost, ":path", "/v1/models"},
		} {
			answer := framed(t, l.secure(t, openAI, "h2"), tc...)
			if status := answer[":status"]; answer != nil && status != "421" && status != "400" {
				t.Errorf("%q: %v, want 400, 421 or the end of the stream", tc, answer)
			}
		}
		for _, target := range []string{"https://" + evilHost + "/v1/models", "https://" + anthropic + "/v1/models", "http://" + evilHost + "/", "https://" + openAI + ":8443/v1/models"} {
			for _, host := range []string{openAI, evilHost, anthropic} {
				got := in(t, openAI).ask(t, head("GET "+target, host))
				if got.status != http.StatusMisdirectedRequest && got.status != http.StatusBadRequest {
					t.Errorf("GET %s, Host %s: %+v, want 421", target, host, got)
				}
			}
		}
		a.ours(t, n, 0, openAI, openAIField)

		// The target is who is asked, and Host does not matter then.
		in(t, openAI).ask(t, head("GET https://"+openAI+"/v1/models", openAI)).is(t, welcome)
		a.ours(t, n, 1, openAI, openAIField)
		answer := framed(t, l.secure(t, openAI, "h2"), request(openAI)...)
		if answer[":status"] != "200" {
			t.Errorf("%v, want 200", answer)
		}
		a.ours(t, n, 2, openAI, openAIField)
	})
	t.Run("http-036", func(t *testing.T) {
		n := a.count()
		for _, authority := range []string{openAI + "/evil", openAI + "/", openAI + "?x", openAI + "#", evilHost + "/" + openAI, openAI + "@" + evilHost, evilHost + "@" + openAI, openAI + "\\" + evilHost, openAI + " " + evilHost} {
			answer := framed(t, l.secure(t, openAI, "h2"), ":method", "GET", ":scheme", "https", ":authority", authority, ":path", "/x")
			if status := answer[":status"]; answer != nil && (status < "400" || status > "421") {
				t.Errorf(":authority %q: %v", authority, answer)
			}
		}
		a.ours(t, n, 0, openAI, openAIField)
	})
	t.Run("methods", func(t *testing.T) {
		n := a.count()
		for _, request := range []string{
			head("TRACE /v1/models", openAI), head("CONNECT "+openAI+":443", openAI), head("CONNECT "+evilHost+":443", evilHost),
		} {
			if got := in(t, openAI).ask(t, request); got.status < 400 {
				t.Errorf("%q: %+v", request, got)
			}
		}
		for _, fields := range [][]string{
			{":method", "CONNECT", ":authority", openAI + ":443"},
			{":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", openAI, ":path", "/socket"},
			{":method", "TRACE", ":scheme", "https", ":authority", openAI, ":path", "/v1/models"},
		} {
			if answer := framed(t, l.secure(t, openAI, "h2"), fields...); answer != nil && answer[":status"] < "400" {
				t.Errorf("%q: %v", fields, answer)
			}
		}
		a.ours(t, n, 0, openAI, openAIField)
	})

	t.Run("http-027", func(t *testing.T) {
		n := a.count()
		for _, name := range []string{openAI, anthropic, wildcard} {
			mark := g.caddy.log.mark()
			l.converse(t, gatewayHTTP).ask(t, head("GET /v1/models", name)).refuses(t, http.StatusForbidden, "plaintext_refused")
			g.decidedBy(t, "http", mark, msgDenied, name)
			l.converse(t, gatewayProxy).ask(t, head("GET http://"+name+":443/v1/models", name)).refuses(t, http.StatusBadRequest, "bad_request")
			for _, port := range []string{"", ":80"} {
				l.converse(t, gatewayProxy).ask(t, head("GET http://"+name+port+"/v1/models", name)).refuses(t, http.StatusForbidden, "plaintext_refused")
			}
			g.decidedEach(t, "proxy", mark, msgDenied, name)
		}
		// And in a tunnel: what comes first there must be TLS.
		for _, to := range []string{openAI + ":443", oddPort + ":8443"} {
			c := l.connectTo(t, to)
			c.say(t, head("GET /v1/models", openAI))
			if b, _ := io.ReadAll(c); bytes.Contains(b, []byte(welcome)) || bytes.HasPrefix(b, []byte("HTTP/1.1 2")) {
				t.Errorf("CONNECT %s: %q came back", to, b)
			}
		}
		c := l.converse(t, gatewayTLS)
		c.say(t, head("GET /v1/models", openAI))
		if b, _ := io.ReadAll(c); len(b) != 0 {
			t.Errorf("%q came back from the port of TLS", b)
		}
		a.ours(t, n, 0, openAI, openAIField)
	})
	t.Run("by the forward proxy", func(t *testing.T) {
		for to, name := range map[string]string{openAI + ":443": openAI, oddPort + ":8443": oddPort} {
			n := a.count()
			c := tls.Client(l.connectTo(t, to), l.ca.client(name))
			host := strings.TrimSuffix(to, ":443")
			converseOver(c).ask(t, get(host, "Authorization: Bearer "+madeUp)).is(t, welcome)
			if issuer := c.ConnectionState().PeerCertificates[0].Issuer.String(); strings.Contains(issuer, "end-to-end test") {
				t.Errorf("CONNECT %s: a certificate of %s, want one of the gateway", to, issuer)
			}
			for _, got := range a.since(n) {
				if got.Header.Get("Authorization") != openAIField.value {
					t.Errorf("the upstream got %q", got.Header.Get("Authorization"))
				}
			}
		}
		// Another name within, and TLS on a port that no site has.
		for _, tc := range []struct{ target, hello, reason string }{
			{openAI + ":443", anthropic, "name_mismatch"},
			{allowedHost + ":443", openAI, "name_mismatch"},
			{oddPort + ":8443", openAI, "name_mismatch"},
			{"many.example.org:8443", "many.example.org", "not_brokered"},
		} {
			n, m := a.count(), g.caddy.log.mark()
			name, _, _ := strings.Cut(tc.target, ":")
			l.internet.dns.set(name, addrs(otherAddr))
			c := l.converse(t, gatewayProxy)
			if got := c.ask(t, head("CONNECT "+tc.target, tc.target)); got.status == http.StatusOK {
				if err := tls.Client(c, l.ca.client(tc.hello)).Handshake(); err == nil {
					t.Errorf("CONNECT %s, server name %s: a connection", tc.target, tc.hello)
				}
			}
			if d := g.decidedBy(t, byConnect.layer, m, msgDenied, name); d.Reason != tc.reason {
				t.Errorf("CONNECT %s, server name %s: decision %+v, want %s", tc.target, tc.hello, d, tc.reason)
			}
			a.ours(t, n, 0, openAI, openAIField)
		}
	})
	t.Run("client without the policy", func(t *testing.T) {
		// Not preferred: no other client takes it for its own.
		if err := l.sandbox.ip("addr", "add", nobody.String()+"/64", "dev", linkGateway, "nodad", "preferred_lft", "0"); err != nil {
			t.Fatal(err)
		}
		n, mark := a.count(), g.caddy.log.mark()
		c, err := l.sandbox.dialFrom(nobody, "tcp", netip.AddrPortFrom(gatewayAddr6, 443))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := tls.Client(c, l.ca.client(openAI)).Handshake(); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%v, want the alert unrecognized_name", err)
		}
		if d := g.decided(t, mark, msgDenied, openAI); d.Reason != "not_allowed" || d.Policy != "nobody" {
			t.Errorf("decision %+v", d)
		}
		a.ours(t, n, 0, openAI, openAIField)
	})
	t.Run("listeners", func(t *testing.T) {
		n := a.count()
		beyond, loopback := g.sockets(t)
		if want := []string{"tcp 443", "tcp 53", "tcp 80", "tcp 8080", "udp 53"}; !slices.Equal(beyond, want) {
			t.Errorf("listeners beyond loopback: %v, want %v", beyond, want)
		}
		if want := []string{"tcp 9153"}; !slices.Equal(loopback, want) {
			t.Errorf("listeners on loopback: %v, want %v", loopback, want)
		}
		for _, port := range []uint16{53, 80, 8080} {
			c, err := l.sandbox.dial("tcp", netip.AddrPortFrom(gatewayAddr, port))
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			if err := tls.Client(c, l.ca.client(openAI)).Handshake(); err == nil {
				t.Errorf("port %d speaks TLS for a brokered name", port)
			}
			_ = c.Close()
		}
		a.ours(t, n, 0, openAI, openAIField)
	})

	t.Run("redirect", func(t *testing.T) {
		for _, to := range []string{"https://" + evilHost + "/", "https://" + anthropic + "/v1/models", "http://169.254.169.254/"} {
			n := a.count()
			got := in(t, openAI).ask(t, head("GET /redirect?to="+to, openAI))
			if got.status != http.StatusFound || got.header.Get("Location") != to {
				t.Errorf("answer %+v, want the redirect to %s", got, to)
			}
			a.ours(t, n, 1, openAI, openAIField)
		}
	})
	t.Run("socket", func(t *testing.T) {
		n := a.count()
		talks(t, openSocket(t, l.secure(t, openAI), "wss://"+openAI+"/socket"))
		a.ours(t, n, 1, openAI, openAIField)
	})
	t.Run("both directions", func(t *testing.T) {
		n := a.count()
		body, write := io.Pipe()
		req, err := http.NewRequest(http.MethodPost, "https://"+openAI+"/both", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Te", "trailers")
		req.Header.Set("Content-Type", "application/grpc")
		resp, err := l.httpClient(t, true).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for _, text := range []string{"one", strings.Repeat("two", 20_000), "three"} {
			go func() { _, _ = io.WriteString(write, text) }()
			got := make([]byte, len(text))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != text {
				t.Fatalf("%d octets did not come back: %v", len(text), err)
			}
		}
		_ = write.Close()
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 || resp.Trailer.Get("Grpc-Status") != "0" || resp.ProtoMajor != 2 {
			t.Errorf("the end: %q, %v, trailer %v, HTTP/%d", rest, err, resp.Trailer, resp.ProtoMajor)
		}
		a.ours(t, n, 1, openAI, openAIField)
		if c := a.since(n); len(c) == 1 && c[0].Proto != "HTTP/2.0" {
			t.Errorf("the upstream was asked by %s", c[0].Proto)
		}
	})
	t.Run("download", func(t *testing.T) {
		need(t, "curl")
		const size = 20 << 20
		script := strings.Join(curl(l), " ") + ` --fail-with-body --output "$2" "$1" && sha256sum <"$2"`
		out, err := l.run("sh", "-ec", script, "sh", "https://"+openAI+"/data?size="+strconv.Itoa(size), filepath.Join(l.dir, "data"))
		if err != nil || !strings.HasPrefix(out, sum(size)) {
			t.Errorf("%q, %v", out, err)
		}
	})

	for name := range badCertificates {
		t.Run("certificate "+name, func(t *testing.T) {
			asked := l.badServer(t, name)
			got := in(t, name).ask(t, get(name))
			if got.status != http.StatusBadGateway || got.reason != "dial_error" {
				t.Errorf("answer %+v, want 502", got)
			}
			if n := asked.Load(); n != 0 {
				t.Errorf("%d requests came to the server", n)
			}
		})
	}
	t.Run("private address", func(t *testing.T) {
		const private = "private.example.com"
		counted, err := l.internet.count(l.internet.ns, netip.MustParseAddrPort("10.1.2.3:443"))
		if err != nil {
			t.Fatal(err)
		}
		l.internet.dns.set(private, addrs(counted.addr.Addr()))
		mark := g.caddy.log.mark()
		in(t, private).ask(t, get(private)).refuses(t, http.StatusForbidden, "private_address")
		if d := g.decidedBy(t, "http", mark, msgDenied, private); d.Reason != "private_address" {
			t.Errorf("decision %+v", d)
		}
		if n := counted.accepted.Load(); n != 0 {
			t.Errorf("%d connections to the private address", n)
		}
	})
	t.Run("without its file", func(t *testing.T) {
		n := a.count()
		file := filepath.Join(l.dir, "secrets", "openai")
		for _, text := range []string{"", "\n"} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := in(t, openAI).ask(t, get(openAI)); got.status != http.StatusBadGateway {
				t.Errorf("an empty file: %+v", got)
			}
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if got := in(t, openAI).ask(t, get(openAI)); got.status != http.StatusBadGateway {
			t.Errorf("no file: %+v", got)
		}
		a.ours(t, n, 0, openAI, openAIField)
		// Another key: it is read for each request.
		a.rekey(openAI, field{"Authorization", "Bearer another"})
		l.secret(t, "openai", "another")
		in(t, openAI).ask(t, get(openAI)).is(t, welcome)
		l.secret(t, "openai", openAIKey)
		a.rekey(openAI, openAIField)
		in(t, openAI).ask(t, get(openAI)).is(t, welcome)
	})
	// The last one: it takes the name away.
	t.Run("revoked", func(t *testing.T) {
		kept := converseOver(l.secure(t, openAI))
		kept.ask(t, get(openAI)).is(t, welcome)
		events := openEvents(t, in(t, openAI), "", openAI)
		stay := openEvents(t, in(t, anthropic), "", anthropic)
		socket := openSocket(t, l.secure(t, openAI), "wss://"+openAI+"/socket")
		talks(t, socket)
		mark := g.caddy.log.mark()
		g.setPolicy(t, allowing(anthropic))
		start := time.Now()
		for what, s := range map[string]stream{"events": events, "socket": {Reader: socket}} {
			err := s.broken()
			if d := time.Since(start); errors.Is(err, os.ErrDeadlineExceeded) || d > applies {
				t.Errorf("%s: %v after %s, want its end within %s", what, err, d, applies)
			}
			if what == "events" && err == io.EOF {
				t.Error("half an answer ends as if it were complete")
			}
		}
		stay.goesOn()
		g.decidedEach(t, "tls", mark, msgRevoked, openAI)
		n := a.count()
		if _, err := io.WriteString(kept, get(openAI)); err == nil {
			if resp, err := http.ReadResponse(bufio.NewReader(kept), nil); err == nil && resp.StatusCode < 400 {
				t.Errorf("a connection that was kept alive: %s", resp.Status)
			}
		}
		a.ours(t, n, 0, openAI, openAIField)
	})
	if n := l.internet.dns.questions(evilHost); n != 0 {
		t.Errorf("%s is not allowed, and the gateway asked for it %d times", evilHost, n)
	}
	if n := g.metric(t, "caddy_sandboxallow_panics_total"); n != 0 {
		t.Errorf("%v panics", n)
	}
}

// clientFields are header fields in which clients send credentials.
var clientFields = []string{
	"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Auth-Token", "Private-Token",
	"Job-Token", "X-Access-Token", "X-Vault-Token", "X-Amz-Security-Token", "Ocp-Apim-Subscription-Key",
	"X_Api_Key", "API_KEY",
}

// streams are clients that print the answer of a model as it comes.
var streams = []struct {
	client string
	line   func(l *lab, url, model string) []string
}{
	{"curl", func(l *lab, url, model string) []string {
		return []string{"sh", "-c", `curl -sS --no-buffer --fail-with-body -H 'Authorization: Bearer none' -H 'Content-Type: application/json' \
-d '{"model": "'"$2"'", "stream": true}' "$1" | sed -un 's/.*"content":"\([^"]*\)".*/\1/p' | stdbuf -o0 tr -d '\n'`, "sh", url, model}
	}},
	{"python", func(_ *lab, url, model string) []string { return []string{"python3", testdata("chat.py"), url, model} }},
	{"node", func(_ *lab, url, model string) []string { return []string{"node", testdata("chat.mjs"), url, model} }},
	{"java", func(l *lab, url, model string) []string {
		return []string{"java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", l.dir, "Chat", url, model}
	}},
	{"go-pure", func(_ *lab, url, model string) []string {
		self, err := os.Executable()
		if err != nil {
			panic(err)
		}
		return []string{"env", roleVar + "=" + roleGoChat, self, url, model}
	}},
}

// streamsThrough runs each client with an environment: the first token has to be there before the server sends the
// next one.
func streamsThrough(t *testing.T, l *lab, a *api, name string, env []string) {
	t.Helper()
	for _, s := range streams {
		t.Run(s.client, func(t *testing.T) {
			c := clientNamed(t, s.client)
			need(t, c.programs...)
			ctx, cancel := context.WithTimeout(t.Context(), clientTimeout)
			defer cancel()
			cmd := l.sandbox.command(ctx, s.line(l, "https://"+name+"/v1/chat/completions", s.client)...)
			cmd.Env = append(clientEnv(l), env...)
			var said bytes.Buffer
			cmd.Stderr = &said
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			first := make([]byte, len(tokens[0]))
			_, early := io.ReadFull(out, first)
			a.goOn(s.client)
			rest, err := io.ReadAll(out)
			exit := cmd.Wait()
			if early != nil || string(first) != tokens[0] {
				t.Fatalf("%v: %s", early, said.Bytes())
			}
			if got := string(first) + string(rest); exit != nil || err != nil || got != story {
				t.Errorf("%q, %v, %v, want %q: %s", got, err, exit, story, said.Bytes())
			}
		})
	}
}
