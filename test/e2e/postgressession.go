//go:build linux

package e2e

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// What a client asks for encryption by TLS and by GSSAPI with.
var (
	sslRequest = []byte{0, 0, 0, 8, 4, 210, 22, 47}
	gssRequest = []byte{0, 0, 0, 8, 4, 210, 22, 48}
)

// negotiate sends a request and returns the octet of the answer.
func negotiate(c net.Conn, request []byte) (byte, error) {
	if _, err := c.Write(request); err != nil {
		return 0, err
	}
	answer := make([]byte, 1)
	_, err := io.ReadFull(c, answer)
	return answer[0], err
}

// databaseConfig is that of a client in this process whose connections dial makes; nil is from the sandbox to the
// gateway.
func (l *lab) databaseConfig(tb testing.TB, w way, host string, dial func() (net.Conn, error)) *pgx.ConnConfig {
	tb.Helper()
	c, err := pgx.ParseConfig(conninfo(l, w, host) + " password='" + dbPassword + "'")
	if err != nil {
		tb.Fatal(err)
	}
	if dial == nil {
		dial = func() (net.Conn, error) { return l.sandbox.dial("tcp", gatewayPostgres) }
	}
	c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{gatewayAddr.String()}, nil }
	c.DialFunc = func(context.Context, string, string) (net.Conn, error) { return dial() }
	return c
}

// database connects to a database.
func (l *lab) database(tb testing.TB, w way, host string, dial func() (net.Conn, error)) (*pgx.Conn, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return pgx.ConnectConfig(ctx, l.databaseConfig(tb, w, host, dial))
}

// session is database for the time of a test.
func (l *lab) session(tb testing.TB, host string) *pgx.Conn {
	tb.Helper()
	c, err := l.database(tb, sslRequire, host, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// answers fails the test unless the server answers.
func answers(tb testing.TB, c *pgx.Conn) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var got string
	if err := c.QueryRow(ctx, whoIs).Scan(&got); err != nil || !strings.HasPrefix(got, page(dbHost)+"TLS") {
		tb.Errorf("%q, %v", got, err)
	}
}

// sqlState is the SQLSTATE that a client was told, "" if it was told none.
func sqlState(err error) string {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}
