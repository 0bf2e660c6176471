//go:build linux

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Names that are brokered.
const (
	openAI    = "api.openai.com"
	anthropic = "api.anthropic.com"
)

// secret writes a credential to a file of the lab's, and returns its path. It is in no other place.
func (l *lab) secret(tb testing.TB, name, value string) string {
	tb.Helper()
	dir := filepath.Join(l.dir, "secrets")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// publicRoots is the environment of a program that knows the roots of the internet, and no other ones.
func (l *lab) publicRoots(tb testing.TB) string {
	tb.Helper()
	file := filepath.Join(l.dir, "public.pem")
	if _, err := os.Stat(file); err != nil {
		b, err := os.ReadFile(l.ca.file)
		if err == nil {
			err = os.WriteFile(file, b, 0o644)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	return "SSL_CERT_FILE=" + file
}

// inGateway runs a shell script beside the product, in its folder, with the binaries in the path.
func (g *gateway) inGateway(tb testing.TB, env []string, script string) string {
	tb.Helper()
	cmd := g.lab.gateway.command(tb.Context(), "sh", "-euc", script)
	cmd.Dir = g.dir
	cmd.Env = append([]string{"PATH=" + built.dir(tb) + ":" + os.Getenv("PATH"), "HOME=" + g.dir}, env...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		tb.Fatalf("%s: %v: %s", script, err, said.Bytes())
	}
	return out.String()
}

// trust has the clients of the lab trust the CA of a gateway, besides the public roots, and returns its certificate.
func (l *lab) trust(tb testing.TB, g *gateway) *x509.Certificate {
	tb.Helper()
	command := "caddy sandboxallow ca --admin unix/" + adminSocket
	bundle := g.inGateway(tb, []string{l.publicRoots(tb)}, command+" --bundle")
	if err := os.WriteFile(l.ca.file, []byte(bundle), 0o644); err != nil {
		tb.Fatal(err)
	}
	root := parsePEM(tb, []byte(g.inGateway(tb, nil, command)))
	l.ca.pool.AddCert(root)
	return root
}

// startBroker runs the product with sites that broker names of an api, which the gateway trusts by the public roots.
func (l *lab) startBroker(tb testing.TB, c config) (*gateway, *api) {
	tb.Helper()
	a := newAPI(l.ca, l.internet.web)
	tb.Cleanup(a.close)
	c.env = append(c.env, l.publicRoots(tb))
	g := l.start(tb, c)
	if c.sites != "" {
		// Clients wait for it too, but on a busy machine it takes longer than the hello_timeout that they have.
		must(tb, startTimeout, "a site has its certificate", func() bool {
			return len(g.caddy.log.with(0, "certificate obtained successfully")) > 0
		})
	}
	return g, a
}

// brokered is a site that brokers names; option is the lines of sandboxallow broker, and to where requests go.
func brokered(names, option, to, fieldName, value string) string {
	return fmt.Sprintf(`https://%s {
	sandboxallow broker {
		%s
	}
	reverse_proxy %s {
		header_up %s "%s"
		transport sandboxallow
	}
}
`, strings.ReplaceAll(names, " ", ", https://"), option, to, fieldName, value)
}

// secure connects to a name as a client does that DNS has sent, and offers protocols by ALPN.
func (l *lab) secure(tb testing.TB, name string, protocols ...string) *tls.Conn {
	tb.Helper()
	cfg := l.ca.client(name)
	cfg.NextProtos = protocols
	c := tls.Client(l.converse(tb, gatewayTLS), cfg)
	if err := c.Handshake(); err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return c
}

// httpClient is an HTTP client in the sandbox that goes to the gateway whatever the name is.
func (l *lab) httpClient(tb testing.TB, two bool) *http.Client {
	tb.Helper()
	t := &http.Transport{
		DialContext:       l.dialGateway,
		TLSClientConfig:   &tls.Config{RootCAs: l.ca.pool},
		ForceAttemptHTTP2: two,
	}
	if !two {
		t.TLSNextProto = make(map[string]func(string, *tls.Conn) http.RoundTripper)
	}
	tb.Cleanup(t.CloseIdleConnections)
	return &http.Client{
		Transport:     t,
		Timeout:       20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// framed sends a request as fields of HTTP/2, as they stand, and returns the fields of the answer; nil if the stream
// or the connection was ended instead.
func framed(tb testing.TB, c *tls.Conn, fields ...string) map[string]string {
	tb.Helper()
	if p := c.ConnectionState().NegotiatedProtocol; p != "h2" {
		tb.Fatalf("the protocol is %q", p)
	}
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		tb.Fatal(err)
	}
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		if err := enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			tb.Fatal(err)
		}
	}
	err := f.WriteSettings()
	if err == nil {
		err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	}
	if err != nil {
		tb.Fatal(err)
	}
	for range 100 {
		frame, err := f.ReadFrame()
		if err != nil {
			return nil
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			answer := make(map[string]string)
			for _, h := range frame.Fields {
				answer[h.Name] = h.Value
			}
			return answer
		case *http2.RSTStreamFrame:
			return nil
		case *http2.GoAwayFrame:
			if frame.ErrCode != http2.ErrCodeNo {
				return nil
			}
		}
	}
	tb.Fatal("no answer among 100 frames")
	return nil
}

// dialGateway connects to the gateway from the sandbox, whatever is asked for.
func (l *lab) dialGateway(context.Context, string, string) (net.Conn, error) {
	return l.sandbox.dial("tcp", gatewayTLS)
}

// parsePEM returns the one certificate of a text.
func parsePEM(tb testing.TB, text []byte) *x509.Certificate {
	tb.Helper()
	b, rest := pem.Decode(text)
	if b == nil || len(bytes.TrimSpace(rest)) != 0 {
		tb.Fatalf("not one certificate: %q", text)
	}
	c, err := x509.ParseCertificate(b.Bytes)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}
