//go:build linux

package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"
)

// get fetches the page of a host through the gateway, as a client that has its address from CoreDNS. The
// error of a denied one has the TLS alert.
func (l *lab) get(host string) (string, error) {
	c, err := l.sandbox.dial("tcp", gatewayTLS)
	if err != nil {
		return "", err
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return getPage(tls.Client(c, l.ca.client(host)), host)
}

// getPage fetches the page of a host over a connection, and closes it.
func getPage(c net.Conn, host string) (string, error) {
	defer c.Close()
	if _, err := io.WriteString(c, request(host)); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s, %s", resp.Status, resp.Header.Get(reasonHeader))
	}
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// reaches fails the test unless the page of a host can be fetched through the gateway.
func (l *lab) reaches(tb testing.TB, host string) {
	tb.Helper()
	if body, err := l.get(host); err != nil || body != page(host) {
		tb.Fatalf("%s: %q, %v", host, body, err)
	}
}

// send connects to the gateway, sends bytes and returns all that comes back until the gateway closes.
func (l *lab) send(tb testing.TB, b []byte) []byte {
	tb.Helper()
	return l.sendTo(tb, gatewayTLS, b)
}

// sendTo is send to any listener.
func (l *lab) sendTo(tb testing.TB, to netip.AddrPort, b []byte) []byte {
	tb.Helper()
	c, err := l.sandbox.dial("tcp", to)
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write(b); err != nil {
		tb.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		tb.Fatalf("the gateway neither answered nor closed: %v", err)
	}
	return answer
}

// echo is an upstream that sends back what it gets, and ends when its client does.
func echo(c net.Conn) {
	defer c.Close()
	_, _ = io.Copy(c, c)
}

// tunnel opens a tunnel to an upstream that is echo: the hello has come back when it returns.
func (l *lab) tunnel(name string) (*net.TCPConn, error) {
	c, err := l.sandbox.dial("tcp", gatewayTLS)
	if err != nil {
		return nil, err
	}
	hello := realHello(&tls.Config{ServerName: name})
	if err := exchangeBytes(c, hello); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// open is tunnel for the time of a test.
func (l *lab) open(tb testing.TB, name string) *net.TCPConn {
	tb.Helper()
	c, err := l.tunnel(name)
	if err != nil {
		tb.Fatalf("tunnel to %s: %v", name, err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// exchangeBytes sends bytes and expects them back. The error is an alertError if the gateway answered with an
// alert instead.
func exchangeBytes(c net.Conn, b []byte) error {
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	defer c.SetDeadline(time.Time{})
	if _, err := c.Write(b); err != nil {
		return err
	}
	got := make([]byte, len(b))
	n, err := io.ReadFull(c, got)
	switch a := alert(got[:n]); {
	case a != noAlert:
		return alertError(a)
	case err != nil:
		return fmt.Errorf("%d of %d octets came back: %w", n, len(b), err)
	case !bytes.Equal(got, b):
		return fmt.Errorf("%d octets came back changed", n)
	}
	return nil
}

// alertError is a TLS alert that came instead of an answer.
type alertError int

func (a alertError) Error() string { return fmt.Sprintf("TLS alert %d", int(a)) }
