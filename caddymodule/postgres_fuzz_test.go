package caddymodule

import (
	"bytes"
	"io"
	"net"
	"slices"
	"testing"

	"github.com/mholt/caddy-l4/layer4"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// segments is a connection that gives one segment a read, and then ends.
type segments struct {
	net.Conn
	in  [][]byte
	out bytes.Buffer
}

func (s *segments) RemoteAddr() net.Addr { return &net.TCPAddr{} }
func (s *segments) LocalAddr() net.Addr  { return &net.TCPAddr{} }

func (s *segments) Write(b []byte) (int, error) { return s.out.Write(b) }

func (s *segments) Read(b []byte) (int, error) {
	for len(s.in) > 0 && len(s.in[0]) == 0 {
		s.in = s.in[1:]
	}
	if len(s.in) == 0 {
		return 0, io.EOF
	}
	n := copy(b, s.in[0])
	s.in[0] = s.in[0][n:]
	return n, nil
}

// FuzzPostgresNegotiate holds, whatever the client sends in whatever segments:
//
//   - it is answered N at most once, and then S at most once, and nothing else;
//   - TLS may come only if it was answered S, and then nothing is left of what was sent before; or if it came at
//     once, and then all of it is handed on;
//   - whatever is wrong has a reason, and without an answer S the client is not taken to expect TLS.
func FuzzPostgresNegotiate(f *testing.F) {
	hello := []byte{22, 3, 1, 2, 0, 1, 0, 1, 0xfc}
	for _, s := range [][][]byte{
		{sslRequest, hello},
		{sslRequest[:1], sslRequest[1:4], sslRequest[4:]},
		{slices.Concat(sslRequest, hello), nil},
		{gssRequest, sslRequest, hello},
		{gssRequest, gssRequest},
		{gssRequest, hello},
		{sslRequest, gssRequest},
		{slices.Concat(gssRequest, sslRequest)},
		{hello},
		{startup},
		{gssRequest, cancelRequest},
		{{0, 0, 0, 9}, {4}},
	} {
		for len(s) < 3 {
			s = append(s, nil)
		}
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		all := slices.Concat(a, b, c)
		conn := &segments{in: [][]byte{a, b, c}}
		p := &postgresPreamble{layer4Client: layer4Client{layer4.WrapConnection(conn, nil, nil)}}
		first, err := p.negotiate(make([]byte, 4<<10))
		answers := conn.out.String()
		if !slices.Contains([]string{"", "N", "S", "NS"}, answers) {
			t.Fatalf("answers %q", answers)
		}
		accepted := answers == "S" || answers == "NS"
		var left []byte
		for _, s := range conn.in {
			left = append(left, s...)
		}
		switch {
		case err != nil:
			if p.tls || len(first) > 0 || helloReason(err) == policy.ReasonNone {
				t.Fatalf("%v, with %d octets, expecting TLS: %v", err, len(first), p.tls)
			}
		case p.direct:
			if answers != "" || len(first) == 0 || first[0] != 22 || !bytes.Equal(append(bytes.Clone(first), left...), all) {
				t.Fatalf("direct TLS, answered %q, begins with % x", answers, first)
			}
		case !accepted || !p.tls || len(first) > 0 || !bytes.Equal(all[:len(all)-len(left)], requests(answers)):
			t.Fatalf("TLS after % x, answered %q", all[:len(all)-len(left)], answers)
		}
	})
}

// requests are those that the answers are to.
func requests(answers string) []byte {
	if answers == "NS" {
		return slices.Concat(gssRequest, sslRequest)
	}
	return sslRequest
}
