//go:build linux

package e2e

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// reasonHeader is where the gateway says why it answers a request itself.
const reasonHeader = "X-Sandboxallow-Reason"

// conversation is an HTTP/1 connection from the sandbox, on which requests are sent as they stand. Its Read
// goes on behind the answers that were heard.
type conversation struct {
	net.Conn
	r *bufio.Reader
}

// answer is a response, read to its end.
type answer struct {
	status int
	reason string // of the gateway; "" from the upstream
	header http.Header
	body   string
}

// converse connects to a listener of the gateway for the time of a test.
func (l *lab) converse(tb testing.TB, to netip.AddrPort) *conversation {
	tb.Helper()
	c, err := l.sandbox.dial("tcp", to)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return converseOver(c)
}

// converseOver is a conversation on a connection that is there already.
func converseOver(c net.Conn) *conversation {
	return &conversation{Conn: c, r: bufio.NewReader(c)}
}

func (c *conversation) Read(b []byte) (int, error) { return c.r.Read(b) }

// say sends text.
func (c *conversation) say(tb testing.TB, text string) {
	tb.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		tb.Fatal(err)
	}
}

// hear reads the answer to a request; its method says whether there is a body.
func (c *conversation) hear(tb testing.TB, method string) answer {
	tb.Helper()
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		tb.Fatalf("no answer to %s: %v", method, err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, reason: resp.Header.Get(reasonHeader), header: resp.Header}
	if method == http.MethodConnect && a.status == http.StatusOK {
		return a // what follows is the tunnel's
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatalf("the answer to %s ends: %v", method, err)
	}
	a.body = string(body)
	return a
}

// stream reads the head of the answer to a GET and returns the body, of which there need not be an end.
func (c *conversation) stream(tb testing.TB) io.Reader {
	tb.Helper()
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		tb.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		tb.Fatalf("%s, %s", resp.Status, resp.Header.Get(reasonHeader))
	}
	return resp.Body
}

// ask sends a request and hears the answer.
func (c *conversation) ask(tb testing.TB, request string) answer {
	tb.Helper()
	method, _, _ := strings.Cut(request, " ")
	c.say(tb, request)
	return c.hear(tb, method)
}

// head is the head of an HTTP/1.1 request: GET /path.
func head(line, host string, fields ...string) string {
	return line + " HTTP/1.1\r\nHost: " + host + "\r\n" + strings.Join(append(fields, "\r\n"), "\r\n")
}
