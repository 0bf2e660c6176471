package hello

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"slices"
	"testing"
	"time"
)

// ext is one extension of a hand-made hello.
type ext struct {
	id   uint16
	data []byte
}

// sni is a server_name extension with these host_names, normally one.
func sni(names ...string) ext {
	var entries [][]byte
	for _, n := range names {
		entries = append(entries, entry(nameTypeHost, n))
	}
	return ext{extServerName, vec16(entries...)}
}

// entry is one name of a server_name list.
func entry(typ byte, name string) []byte {
	return append([]byte{typ}, vec16([]byte(name))...)
}

func vec8(parts ...[]byte) []byte {
	b := bytes.Join(parts, nil)
	return append([]byte{byte(len(b))}, b...)
}

func vec16(parts ...[]byte) []byte {
	b := bytes.Join(parts, nil)
	return append([]byte{byte(len(b) >> 8), byte(len(b))}, b...)
}

func zeros(n int) []byte { return make([]byte, n) }

// parts is a hello before it is put together; its zero value is a TLS 1.2 one without extensions.
type parts struct {
	typ         byte   // default client_hello
	vers        uint16 // default 3.3
	sessionID   []byte // default empty
	suites      []byte // default one
	compression []byte // default null
	exts        []ext  // default no extension block
	tail        []byte // what is behind that, within the message
}

// message is p as a handshake message.
func (p parts) message() []byte {
	if p.typ == 0 {
		p.typ = typeClientHello
	}
	if p.vers == 0 {
		p.vers = 0x0303
	}
	if p.suites == nil {
		p.suites = []byte{0x13, 0x01}
	}
	if p.compression == nil {
		p.compression = []byte{0}
	}
	body := slices.Concat([]byte{byte(p.vers >> 8), byte(p.vers)}, zeros(randomSize),
		vec8(p.sessionID), vec16(p.suites), vec8(p.compression))
	if len(p.exts) > 0 {
		var block []byte
		for _, e := range p.exts {
			block = append(block, byte(e.id>>8), byte(e.id))
			block = append(block, vec16(e.data)...)
		}
		body = append(body, vec16(block)...)
	}
	body = append(body, p.tail...)
	n := len(body)
	return append([]byte{p.typ, byte(n >> 16), byte(n >> 8), byte(n)}, body...)
}

// with is a hello with these extensions, in one record or in as few as it fits into.
func with(exts ...ext) []byte { return records(parts{exts: exts}.message(), maxFragment) }

// records frames msg into records of at most size bytes.
func records(msg []byte, size int) []byte {
	var b []byte
	for {
		n := min(size, len(msg))
		b = append(b, record(msg[:n])...)
		if msg = msg[n:]; len(msg) == 0 {
			return b
		}
	}
}

func record(fragment []byte) []byte {
	return append([]byte{typeHandshake, 3, 1}, vec16(fragment)...)
}

// unframe is the reverse of records.
func unframe(b []byte) []byte {
	var msg []byte
	for len(b) > 0 {
		n := int(b[3])<<8 | int(b[4])
		msg = append(msg, b[recordHeader:recordHeader+n]...)
		b = b[recordHeader+n:]
	}
	return msg
}

// stdClient is what a crypto/tls client with this configuration sends first.
func stdClient(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	c := &halfConn{}
	if err := tls.Client(c, cfg).Handshake(); err == nil {
		t.Fatal("handshake with nobody succeeded")
	}
	return c.sent.Bytes()
}

// seeds are hellos of crypto/tls clients for example.com.
func seeds(t testing.TB) map[string][]byte {
	t.Helper()
	cfg := func(change func(*tls.Config)) *tls.Config {
		c := &tls.Config{ServerName: "example.com"}
		change(c)
		return c
	}
	classic := []tls.CurveID{tls.X25519, tls.CurveP256}
	return map[string][]byte{
		"tls10": stdClient(t, cfg(func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS10 })),
		"tls12": stdClient(t, cfg(func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 })),
		"tls13": stdClient(t, cfg(func(c *tls.Config) { c.CurvePreferences = classic })),
		"mlkem": stdClient(t, cfg(func(c *tls.Config) { c.CurvePreferences = append([]tls.CurveID{tls.X25519MLKEM768}, classic...) })),
		"alpn": stdClient(t, cfg(func(c *tls.Config) {
			c.CurvePreferences = classic
			c.NextProtos = []string{"h2", "http/1.1"}
		})),
		"resumption": resumption(t),
	}
}

// resumption is the hello of a TLS 1.3 client that has a session ticket of an earlier connection.
func resumption(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"example.com"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	client := &tls.Config{
		ServerName:         "example.com",
		RootCAs:            roots,
		ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}
	server := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}

	ln, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err == nil {
			_, err = c.Write([]byte("x"))
			err = errors.Join(err, c.Close())
		}
		done <- err
	}()
	c, err := tls.Dial("tcp", ln.Addr().String(), client)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // the ticket comes before the byte
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b := stdClient(t, client)
	if !bytes.Contains(b, []byte{0, extPreSharedKey}) {
		t.Fatal("hello of a client with a ticket has no pre_shared_key")
	}
	return b
}

// browser is a hello of size bytes, in one record, with the extensions that browsers send. From 1,500
// bytes on it has a post-quantum key share.
func browser(size int) []byte {
	shares := slices.Concat([]byte{0x2a, 0x2a, 0, 1, 0, 0, 29}, vec16(zeros(32)))
	if size >= 1500 {
		shares = slices.Concat([]byte{0x11, 0xec}, vec16(zeros(1216)), shares)
	}
	exts := []ext{
		{0x0a0a, nil},
		sni("api.example.com"),
		{extExtendedMasterSecret, nil},
		{extRenegotiationInfo, []byte{0}},
		{extSupportedGroups, vec16([]byte{0x2a, 0x2a, 0x11, 0xec, 0, 29, 0, 23, 0, 24})},
		{extECPointFormats, vec8([]byte{0})},
		{35, nil}, // session_ticket
		{extALPN, vec16(vec8([]byte("h2")), vec8([]byte("http/1.1")))},
		{extStatusRequest, []byte{1, 0, 0, 0, 0}},
		{extSignatureAlgorithms, vec16([]byte{4, 3, 8, 4, 4, 1, 5, 3, 8, 5, 5, 1, 8, 6, 6, 1})},
		{extSCT, nil},
		{extKeyShare, vec16(shares)},
		{extPSKModes, vec8([]byte{1})},
		{extSupportedVersions, vec8([]byte{0x3a, 0x3a, 3, 4, 3, 3})},
		{27, vec8([]byte{0, 2})}, // compress_certificate
		{17513, vec16(vec8([]byte("h2")))},
		{extECH, slices.Concat([]byte{echOuter, 0, 1, 0, 1, 7}, vec16(zeros(32)), vec16(zeros(144)))},
		{0x1a1a, []byte{0}},
	}
	p := parts{sessionID: zeros(32), suites: zeros(32), exts: exts}
	p.exts = append(exts, ext{21, zeros(size - len(records(p.message(), maxFragment)) - 4)})
	return records(p.message(), maxFragment)
}

// stdServer is the server name that a crypto/tls server reads from b, or why it reads none.
func stdServer(b []byte) (name string, err error) {
	read := false
	cfg := &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		read, name = true, h.ServerName
		return nil, errors.New("that is all we want to know")
	}}
	err = tls.Server(&halfConn{in: *bytes.NewReader(b)}, cfg).HandshakeContext(context.Background())
	if read {
		return name, nil
	}
	return "", err
}

// halfConn is a connection to a peer that has sent what it has to send, and keeps what it receives.
type halfConn struct {
	net.Conn
	in   bytes.Reader
	sent bytes.Buffer
}

func (c *halfConn) Read(p []byte) (int, error)       { return c.in.Read(p) }
func (c *halfConn) Write(p []byte) (int, error)      { return c.sent.Write(p) }
func (c *halfConn) Close() error                     { return nil }
func (c *halfConn) SetDeadline(time.Time) error      { return nil }
func (c *halfConn) SetReadDeadline(time.Time) error  { return nil }
func (c *halfConn) SetWriteDeadline(time.Time) error { return nil }
