//go:build linux

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"time"
)

// muslFetch speaks HTTP, over TLS or not, through pipe, which resolves and connects with musl.
func muslFetch(l *lab, w way, host string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	var said bytes.Buffer
	cmd := l.sandbox.command(ctx, w.command(filepath.Join(l.dir, "pipe"), host, strconv.Itoa(int(w.port())))...)
	cmd.Env = clientEnv(l)
	cmd.Stderr = &said
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	var c net.Conn = &pipeConn{Reader: stdout, WriteCloser: stdin}
	if w.scheme == "https" {
		c = tls.Client(c, l.ca.client(host))
	}
	page, err := getPage(c, host)
	_ = stdin.Close()
	if exit := cmd.Wait(); exit != nil {
		return "", &failure{"pipe", exit, said.String()}
	}
	return page, err
}

// pipeConn makes a connection of the two ends of a program.
type pipeConn struct {
	io.Reader
	io.WriteCloser
}

var _ net.Conn = (*pipeConn)(nil)

// The rest of net.Conn. The program is ended when its time is up, so deadlines are not needed.

func (*pipeConn) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (*pipeConn) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (*pipeConn) SetDeadline(time.Time) error      { return nil }
func (*pipeConn) SetReadDeadline(time.Time) error  { return nil }
func (*pipeConn) SetWriteDeadline(time.Time) error { return nil }
