package caddymodule

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// http2Client is the client's end of an HTTP/2 connection. It sends what it is told to, right or wrong.
type http2Client struct {
	net.Conn
	t testing.TB

	mu      sync.Mutex // guards what follows, and writing
	changed *sync.Cond
	fr      *http2.Framer
	enc     *hpack.Encoder
	block   bytes.Buffer
	next    uint32
	streams map[uint32]*http2Stream
	err     error // why nothing more comes
}

// http2Stream is a request and what has come in answer to it.
type http2Stream struct {
	c       *http2Client
	id      uint32
	fields  http.Header // with :status; nil before they have come
	trailer http.Header
	data    bytes.Buffer
	ended   bool
	code    http2.ErrCode // of a reset
	reset_  bool
}

// dialHTTP2 connects to a site with HTTP/2 in clear text.
func (g *httpGateway) dialHTTP2(site int) *http2Client {
	g.t.Helper()
	return newHTTP2Client(g.t, g.dial(site).Conn)
}

func newHTTP2Client(t testing.TB, conn net.Conn) *http2Client {
	t.Helper()
	c := &http2Client{Conn: conn, t: t, next: 1, streams: make(map[uint32]*http2Stream)}
	c.changed = sync.NewCond(&c.mu)
	c.enc = hpack.NewEncoder(&c.block)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	c.fr = http2.NewFramer(conn, conn)
	c.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.fr.AllowIllegalWrites = true
	if err := c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	if err := c.fr.WriteWindowUpdate(0, 1<<30); err != nil {
		t.Fatal(err)
	}
	go c.read()
	return c
}

func (c *http2Client) read() {
	for {
		f, err := c.fr.ReadFrame()
		c.mu.Lock()
		if err != nil {
			c.err = err
			c.changed.Broadcast()
			c.mu.Unlock()
			return
		}
		s := c.streams[f.Header().StreamID]
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				c.fr.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				c.fr.WritePing(true, f.Data)
			}
		case *http2.MetaHeadersFrame:
			h := make(http.Header)
			for _, field := range f.Fields {
				h[field.Name] = append(h[field.Name], field.Value)
			}
			if s != nil {
				if s.fields == nil || s.status() < "200" {
					s.fields = h
				} else {
					s.trailer = h
				}
				s.ended = s.ended || f.StreamEnded()
			}
		case *http2.DataFrame:
			if s != nil {
				s.data.Write(f.Data())
				s.ended = s.ended || f.StreamEnded()
			}
		case *http2.RSTStreamFrame:
			if s != nil {
				s.reset_, s.code = true, f.ErrCode
			}
		}
		c.changed.Broadcast()
		c.mu.Unlock()
	}
}

// open sends the fields of a request, "name: value" each, in that order.
func (c *http2Client) open(end bool, fields ...string) *http2Stream {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.block.Reset()
	for _, f := range fields {
		i := strings.Index(f[1:], ":") + 1 // a name can begin with one
		c.enc.WriteField(hpack.HeaderField{Name: f[:i], Value: strings.TrimPrefix(f[i+1:], " ")})
	}
	s := &http2Stream{c: c, id: c.next}
	c.streams[s.id] = s
	c.next += 2
	if err := c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: s.id, BlockFragment: c.block.Bytes(), EndStream: end, EndHeaders: true}); err != nil {
		c.t.Error(err)
	}
	return s
}

// get sends a request without a body.
func (c *http2Client) get(authority, path string, fields ...string) *http2Stream {
	c.t.Helper()
	return c.open(true, append([]string{":method: GET", ":scheme: http", ":authority: " + authority, ":path: " + path}, fields...)...)
}

func (s *http2Stream) write(b []byte, end bool) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.c.fr.WriteData(s.id, end, b)
}

// trailers ends the request with fields.
func (s *http2Stream) trailers(fields ...string) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.block.Reset()
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		s.c.enc.WriteField(hpack.HeaderField{Name: name, Value: value})
	}
	s.c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: s.id, BlockFragment: s.c.block.Bytes(), EndStream: true, EndHeaders: true})
}

// reset gives the stream up.
func (s *http2Stream) reset() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.fr.WriteRSTStream(s.id, http2.ErrCodeCancel)
}

// wait waits until ok, which looks at the stream, or for the end of the connection.
func (s *http2Stream) wait(what string, ok func() bool) bool {
	s.c.t.Helper()
	late := false
	timer := time.AfterFunc(15*time.Second, func() {
		s.c.mu.Lock()
		late = true
		s.c.changed.Broadcast()
		s.c.mu.Unlock()
	})
	defer timer.Stop()
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	for !ok() {
		if late {
			s.c.t.Errorf("waited 15 s for %s", what)
			return false
		}
		if s.c.err != nil {
			return false
		}
		s.c.changed.Wait()
	}
	return true
}

// status returns the field :status, "" if it has not come.
func (s *http2Stream) status() string {
	if v := s.fields[":status"]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// head waits for the fields of the response, and returns its status.
func (s *http2Stream) head() int {
	s.c.t.Helper()
	s.wait("a response", func() bool { return s.status() >= "200" || s.reset_ })
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	status, _ := strconv.Atoi(s.status())
	return status
}

// response waits for all of the response, or for what is there instead.
func (s *http2Stream) response() response {
	s.c.t.Helper()
	done := s.wait("the end of the stream", func() bool { return s.ended || s.reset_ })
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	r := response{header: make(http.Header), body: s.data.String(), trailer: make(http.Header)}
	for name, v := range s.fields {
		r.header[http.CanonicalHeaderKey(name)] = v
	}
	for name, v := range s.trailer {
		r.trailer[http.CanonicalHeaderKey(name)] = v
	}
	r.status, _ = strconv.Atoi(s.status())
	switch {
	case s.reset_ && !s.ended:
		r.err = fmt.Errorf("stream reset: %v", s.code)
	case !done:
		r.err = fmt.Errorf("connection ended: %v", s.c.err)
	}
	return r
}

// streamEnd is a stream as a connection: for TLS in a tunnel.
type streamEnd struct {
	*http2Client
	s *http2Stream
}

func (e streamEnd) Read(b []byte) (n int, err error) {
	e.s.wait("bytes", func() bool { return e.s.data.Len() > 0 || e.s.ended || e.s.reset_ })
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.s.data.Len() > 0:
		return e.s.data.Read(b)
	case e.s.ended:
		return 0, io.EOF
	case e.s.reset_:
		return 0, fmt.Errorf("stream reset: %v", e.s.code)
	}
	return 0, os.ErrDeadlineExceeded
}

func (e streamEnd) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		part := b[:min(len(b), 16<<10)]
		if err := e.s.write(part, false); err != nil {
			return n, err
		}
		n, b = n+len(part), b[len(part):]
	}
	return n, nil
}

func (e streamEnd) Close() error {
	e.s.reset()
	return nil
}

func (e streamEnd) SetDeadline(time.Time) error      { return nil }
func (e streamEnd) SetReadDeadline(time.Time) error  { return nil }
func (e streamEnd) SetWriteDeadline(time.Time) error { return nil }
