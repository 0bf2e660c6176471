package caddymodule

import (
	"bufio"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func TestParseAuthority(t *testing.T) {
	for _, tc := range []struct {
		in     string
		name   string
		port   uint16 // with 80 as the default
		reason policy.Reason
	}{
		{"example.com", "example.com", 80, policy.ReasonNone},
		{"example.com:80", "example.com", 80, policy.ReasonNone},
		{"example.com:8080", "example.com", 8080, policy.ReasonNone},
		{"example.com:65535", "example.com", 65535, policy.ReasonNone},
		{"EXAMPLE.Com.:1", "example.com", 1, policy.ReasonNone},
		{"_x.a-b.example", "_x.a-b.example", 80, policy.ReasonNone},
		{"a", "a", 80, policy.ReasonNone},

		{"", "", 0, policy.ReasonBadRequest},
		{":", "", 0, policy.ReasonBadRequest},
		{":80", "", 0, policy.ReasonBadRequest},
		{"example.com:", "", 0, policy.ReasonBadRequest},
		{"example.com:0", "", 0, policy.ReasonBadRequest},
		{"example.com:65536", "", 0, policy.ReasonBadRequest},
		{"example.com:99999999999999999999", "", 0, policy.ReasonBadRequest},
		{"example.com:+80", "", 0, policy.ReasonBadRequest},
		{"example.com:-80", "", 0, policy.ReasonBadRequest},
		{"example.com:080", "", 0, policy.ReasonBadRequest},
		{"example.com:0x50", "", 0, policy.ReasonBadRequest},
		{"example.com:8_0", "", 0, policy.ReasonBadRequest},
		{"example.com:http", "", 0, policy.ReasonBadRequest},
		{"example.com:80 ", "", 0, policy.ReasonBadRequest},
		{" example.com", "", 0, policy.ReasonBadRequest},
		{"example.com\x00.evil.test", "", 0, policy.ReasonBadRequest},
		{"example.com\t", "", 0, policy.ReasonBadRequest},
		{"example.com\r\nHost: evil.test", "", 0, policy.ReasonBadRequest},
		{"example.com@evil.test", "", 0, policy.ReasonBadRequest},
		{"example.com/evil", "", 0, policy.ReasonBadRequest},
		{"example.com?x", "", 0, policy.ReasonBadRequest},
		{"example.com#x", "", 0, policy.ReasonBadRequest},
		{"example.com\\evil", "", 0, policy.ReasonBadRequest},
		{"example%2ecom", "", 0, policy.ReasonBadRequest},
		{"*.example.com", "", 0, policy.ReasonBadRequest},
		{"example.com,evil.test", "", 0, policy.ReasonBadRequest},
		{"ex\u212aample.com", "", 0, policy.ReasonBadRequest},
		{"例え.テスト", "", 0, policy.ReasonBadRequest},
		{"①⑥⑨.②⑤④.①⑥⑨.②⑤④", "", 0, policy.ReasonBadRequest},
		{"\xff.example", "", 0, policy.ReasonBadRequest},
		{"[fe80::1%25eth0]:80", "", 0, policy.ReasonBadRequest},

		{"127.0.0.1", "", 0, policy.ReasonBadName},
		{"127.0.0.1:80", "", 0, policy.ReasonBadName},
		{"169.254.169.254.", "", 0, policy.ReasonBadName},
		{"2130706433", "", 0, policy.ReasonBadName},
		{"0x7f000001", "", 0, policy.ReasonBadName},
		{"0177.0.0.1", "", 0, policy.ReasonBadName},
		{"[::1]", "", 0, policy.ReasonBadName},
		{"[::1]:80", "", 0, policy.ReasonBadName},
		{"::1", "", 0, policy.ReasonBadName},
		{"::1:80", "", 0, policy.ReasonBadName},
		{"[::ffff:127.0.0.1]:80", "", 0, policy.ReasonBadName},
		{"[example.com]", "", 0, policy.ReasonBadName},
		{"[example.com]:80", "", 0, policy.ReasonBadName},
		{"example.com]:80", "", 0, policy.ReasonBadName},
		{"example.com:80:80", "", 0, policy.ReasonBadName},
		{"example.com..", "", 0, policy.ReasonBadName},
		{".example.com", "", 0, policy.ReasonBadName},
		{"a..b", "", 0, policy.ReasonBadName},
		{".", "", 0, policy.ReasonBadName},
		{".:80", "", 0, policy.ReasonBadName},
		{strings.Repeat("a", 64) + ".example", "", 0, policy.ReasonBadName},
		{strings.Repeat("a.", 127) + "a", "", 0, policy.ReasonBadName},
	} {
		t.Run(tc.in, func(t *testing.T) {
			n, port, reason, err := parseAuthority(tc.in, 80)
			if n.String() != tc.name || reason != tc.reason || (err == nil) != (reason == policy.ReasonNone) {
				t.Errorf("got %q, %v, %v, want %q, %v", n, reason, err, tc.name, tc.reason)
			}
			if err == nil && port != tc.port {
				t.Errorf("got port %d, want %d", port, tc.port)
			}
			if strings.ContainsAny(tc.in, ":") || tc.reason == policy.ReasonBadRequest {
				return
			}
			// Where a port has to be written, and is not.
			if n, _, reason, err := parseAuthority(tc.in, 0); err == nil || !n.IsZero() || tc.reason == policy.ReasonNone && reason != policy.ReasonBadRequest {
				t.Errorf("without a default port: got %q, %v, %v", n, reason, err)
			}
		})
	}
}

var authorityForm = regexp.MustCompile(`^([^:]*)(?::([1-9][0-9]{0,4}))?$`)

// What is accepted is one name and one port, and everybody reads the same host in it: net, net/url and net/http.
// What is not accepted is not in that form.
func FuzzParseAuthority(f *testing.F) {
	for _, s := range []string{
		"", "a", "example.com", "example.com:443", "EXAMPLE.com.:80", "example.com:", ":443", "example.com:0443", "example.com:+443",
		"[::1]:443", "::1", "[example.com]:443", "example.com@evil.test:443", "example.com\x00:443", "127.0.0.1:80", "a:b:c",
		"example.com:65536", "example.com:443/", "example.com:443?x", "example.com:443#@evil.test", "example.com\\@evil.test",
		"ex%61mple.com", "a.:1", "..:1", "\u212a:1", "a b", "a\tb", "a\r\nb", "//a", "http://a", "0x7f.1:1", "a:1:", "[a", "a]", "-:1", "_:1",
	} {
		f.Add(s, uint16(0))
		f.Add(s, uint16(80))
	}
	f.Fuzz(func(t *testing.T, s string, byDefault uint16) {
		n, port, reason, err := parseAuthority(s, byDefault)
		m := authorityForm.FindStringSubmatch(s)
		var want policy.Name
		wantPort := uint64(byDefault)
		if m != nil {
			want, _ = policy.ParseName(m[1])
			if m[2] != "" {
				wantPort, _ = strconv.ParseUint(m[2], 10, 64)
			}
		}
		ok := !want.IsZero() && 0 < wantPort && wantPort < 1<<16
		if (err == nil) != ok || (reason == policy.ReasonNone) != ok {
			t.Fatalf("%q: got %q:%d, %v, %v", s, n, port, reason, err)
		}
		if !ok {
			if reason != policy.ReasonBadRequest && reason != policy.ReasonBadName || !n.IsZero() {
				t.Errorf("%q: got %q, %v, %v", s, n, reason, err)
			}
			return
		}
		if n != want || uint64(port) != wantPort {
			t.Errorf("%q: got %q:%d, want %q:%d", s, n, port, want, wantPort)
		}
		host := s
		if h, p, err := net.SplitHostPort(s); err == nil {
			host = h
			if p != strconv.Itoa(int(port)) {
				t.Errorf("%q: port %d, but %q to net", s, port, p)
			}
		}
		fold := func(s string) string { return strings.ToLower(strings.TrimSuffix(s, ".")) }
		if fold(host) != n.String() {
			t.Errorf("%q: %q, but %q to net", s, n, host)
		}
		u, err := url.Parse("http://" + s + "/")
		if err != nil || u.User != nil || u.Path != "/" || fold(u.Hostname()) != n.String() {
			t.Errorf("%q: %q, but %+v, %v to net/url", s, n, u, err)
		}
		for _, head := range []string{"GET / HTTP/1.1\r\nHost: " + s, "GET http://" + s + "/ HTTP/1.1\r\nHost: x", "CONNECT " + s + " HTTP/1.1\r\nHost: x"} {
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head + "\r\n\r\n")))
			if err != nil || r.Host != s || len(r.Header) != 0 {
				t.Errorf("%q: %+v, %v to net/http", head, r, err)
			}
		}
		for _, again := range []string{(target{name: n, port: port}).address(), (target{name: n, port: port}).authority()} {
			if n2, port2, _, err := parseAuthority(again, httpPort); err != nil || n2 != n || port2 != port {
				t.Errorf("%q: %q parses to %q:%d, %v", s, again, n2, port2, err)
			}
		}
	})
}

// parsed parses the head of a request as the server does.
func parsed(t *testing.T, head string) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(head, "|", "\r\n") + "\r\n\r\n")))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// targetText puts a target on a line: what is judged and the Host field that is sent, or the reason.
func targetText(tg target, bad *badTarget) string {
	if bad != nil {
		return bad.reason.String()
	}
	return tg.address() + " " + tg.authority()
}

// On port 80, where Host needs no port.
func TestHostTarget(t *testing.T) {
	for _, tc := range []struct{ name, head, want string }{
		{"http-001", "GET / HTTP/1.1|Host: example.com", "example.com:80 example.com"},
		{"http-008", "GET http://evil.test/ HTTP/1.1|Host: example.com", "evil.test:80 evil.test"},
		{"http-008", "GET http://example.com/ HTTP/1.1|Host: evil.test", "example.com:80 example.com"},
		{"http-008", "GET http://example.com HTTP/1.1|Host: evil.test", "example.com:80 example.com"},
		{"http-008", "GET HTTP://example.com:80/ HTTP/1.1|Host: evil.test", "example.com:80 example.com"},
		{"http-009", "GET / HTTP/1.1|Host: example.com:80", "example.com:80 example.com"},
		{"http-009", "GET / HTTP/1.1|Host: example.com:8080", "bad_request"},
		{"http-009", "GET / HTTP/1.1|Host: example.com:443", "bad_request"},
		{"http-009", "GET / HTTP/1.1|Host: example.com:", "bad_request"},
		{"http-009", "GET / HTTP/1.1|Host: example.com:abc", "bad_request"},
		{"http-009", "GET http://example.com:8080/ HTTP/1.1|Host: example.com", "bad_request"},
		{"http-012", "GET / HTTP/1.1|Host: EXAMPLE.COM.", "example.com:80 example.com"},
		{"http-012", "GET / HTTP/1.1|Host: example.com.:80", "example.com:80 example.com"},
		{"scheme", "GET https://example.com/ HTTP/1.1|Host: example.com", "bad_request"},
		{"scheme", "GET ftp://example.com/ HTTP/1.1|Host: example.com", "bad_request"},
		{"scheme", "GET ws://example.com/ HTTP/1.1|Host: example.com", "bad_request"},
		{"opaque", "GET http:example.com/ HTTP/1.1|Host: example.com", "bad_request"},
		{"opaque", "GET example.com:80 HTTP/1.1|Host: example.com", "bad_request"},
		{"no host", "GET http:/example.com/ HTTP/1.1|Host: example.com", "bad_request"},
		{"no host", "GET http:///example.com/ HTTP/1.1|Host: example.com", "bad_request"},
		{"no host", "GET http://:80/ HTTP/1.1|Host: example.com", "bad_request"},
		{"userinfo", "GET http://user@example.com/ HTTP/1.1|Host: example.com", "bad_request"},
		{"userinfo", "GET http://@example.com/ HTTP/1.1|Host: example.com", "bad_request"},
		{"slashes", "GET //evil.test/ HTTP/1.1|Host: example.com", "example.com:80 example.com"},
		{"colon", "GET /http://evil.test/ HTTP/1.1|Host: example.com", "example.com:80 example.com"},
		{"connect", "CONNECT example.com:80 HTTP/1.1|Host: example.com", "bad_request"},
		{"connect", "CONNECT / HTTP/1.1|Host: example.com", "bad_request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := targetText(hostTarget(parsed(t, tc.head), 80)); got != tc.want {
				t.Errorf("%s: got %s, want %s", tc.head, got, tc.want)
			}
		})
	}
}

func TestProxyTarget(t *testing.T) {
	for _, tc := range []struct{ name, head, want string }{
		{"forwardproxy-009", "GET http://example.com/x HTTP/1.1|Host: example.com", "example.com:80 example.com"},
		{"forwardproxy-009", "GET http://example.com:8080/x HTTP/1.1|Host: example.com", "example.com:8080 example.com:8080"},
		{"forwardproxy-009", "GET http://example.com/x HTTP/1.1|Host: evil.test", "example.com:80 example.com"},
		{"forwardproxy-009", "GET http://example.com:443/x HTTP/1.1|Host: example.com", "bad_request"},
		{"forwardproxy-011", "GET https://example.com/ HTTP/1.1|Host: example.com", "bad_request"},
		{"forwardproxy-011", "GET https://example.com:80/ HTTP/1.1|Host: example.com", "bad_request"},
		{"forwardproxy-012", "GET ftp://example.com/ HTTP/1.1|Host: example.com", "bad_request"},
		{"forwardproxy-012", "GET file:///etc/passwd HTTP/1.1|Host: example.com", "bad_request"},
		{"forwardproxy-012", "GET unix:/run/x HTTP/1.1|Host: example.com", "bad_request"},
		{"forwardproxy-012", "GET gopher://example.com/ HTTP/1.1|Host: example.com", "bad_request"},
		{"forwardproxy-013", "GET http://example.com@evil.test/ HTTP/1.1|Host: example.com", "bad_request"},
		{"forwardproxy-014", "GET http://2852039166/ HTTP/1.1|Host: example.com", "bad_name"},
		{"forwardproxy-014", "GET http://0xa9fea9fe/ HTTP/1.1|Host: example.com", "bad_name"},
		{"forwardproxy-014", "GET http://0251.0376.0251.0376/ HTTP/1.1|Host: example.com", "bad_name"},
		{"forwardproxy-014", "GET http://169.254.169.254./ HTTP/1.1|Host: example.com", "bad_name"},
		{"forwardproxy-014", "GET http://①⑥⑨.②⑤④.①⑥⑨.②⑤④/ HTTP/1.1|Host: example.com", "bad_request"},
		{"forwardproxy-036", "GET example.com:80 HTTP/1.1|Host: example.com", "bad_request"},
		{"origin-form", "GET / HTTP/1.1|Host: example.com", "bad_request"},
		{"origin-form", "GET //example.com/ HTTP/1.1|Host: example.com", "bad_request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := targetText(proxyTarget(parsed(t, tc.head))); got != tc.want {
				t.Errorf("%s: got %s, want %s", tc.head, got, tc.want)
			}
		})
	}
}

func TestConnectTarget(t *testing.T) {
	for _, tc := range []struct{ name, head, want string }{
		{"forwardproxy-001", "CONNECT example.com:443 HTTP/1.1|Host: example.com:443", "example.com:443 example.com:443"},
		{"forwardproxy-002", "CONNECT example.com:443 HTTP/1.1|Host: evil.test:443", "example.com:443 example.com:443"},
		{"forwardproxy-002", "CONNECT example.com:443 HTTP/1.1", "example.com:443 example.com:443"},
		{"forwardproxy-004", "CONNECT 93.184.215.14:443 HTTP/1.1", "bad_name"},
		{"forwardproxy-004", "CONNECT [2606:4700::1111]:443 HTTP/1.1", "bad_name"},
		{"forwardproxy-004", "CONNECT [::1]:443 HTTP/1.1", "bad_name"},
		{"forwardproxy-004", "CONNECT 169.254.169.254:80 HTTP/1.1", "bad_name"},
		{"forwardproxy-005", "CONNECT [fe80::1%25eth0]:443 HTTP/1.1", "bad_request"},
		{"forwardproxy-005", "CONNECT [::ffff:127.0.0.1]:443 HTTP/1.1", "bad_name"},
		{"forwardproxy-006", "CONNECT example.com HTTP/1.1", "bad_request"},
		{"forwardproxy-006", "CONNECT example.com: HTTP/1.1", "bad_request"},
		{"forwardproxy-006", "CONNECT example.com:0 HTTP/1.1", "bad_request"},
		{"forwardproxy-006", "CONNECT example.com:70000 HTTP/1.1", "bad_request"},
		{"forwardproxy-006", "CONNECT example.com:0443 HTTP/1.1", "bad_request"},
		{"forwardproxy-022", "CONNECT example.com:443 HTTP/1.1|Content-Length: 5", "bad_request"},
		{"forwardproxy-022", "CONNECT example.com:443 HTTP/1.1|Transfer-Encoding: chunked", "bad_request"},
		{"forwardproxy-022", "CONNECT example.com:443 HTTP/1.1|Content-Length: 0", "example.com:443 example.com:443"},
		{"forwardproxy-033", "CONNECT EXAMPLE.COM.:443 HTTP/1.1", "example.com:443 example.com:443"},
		{"forwardproxy-033", "CONNECT example.com..:443 HTTP/1.1", "bad_name"},
		{"path", "CONNECT /example.com:443 HTTP/1.1", "bad_request"},
		{"path", "CONNECT example.com:443/ HTTP/1.1", "bad_request"},
		{"path", "CONNECT example.com:443?x HTTP/1.1", "bad_request"},
		{"userinfo", "CONNECT a@example.com:443 HTTP/1.1", "bad_request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := targetText(connectTarget(parsed(t, tc.head))); got != tc.want {
				t.Errorf("%s: got %s, want %s", tc.head, got, tc.want)
			}
		})
	}
}
