package images

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// resolve asks a DNS server for an IPv4 address, and returns the response code and what it answers.
func resolve(network, server, name string) (rcode string, addrs []string, err error) {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), dns.TypeA)
	r, _, err := (&dns.Client{Net: network, Timeout: 2 * time.Second}).Exchange(m, server)
	if err != nil {
		return "", nil, err
	}
	for _, rr := range r.Answer {
		if a, ok := rr.(*dns.A); ok {
			addrs = append(addrs, a.A.String())
		}
	}
	return dns.RcodeToString[r.Rcode], addrs, nil
}

// answers waits until a DNS server answers over UDP and TCP, with a code and addresses.
func answers(tb testing.TB, server, name, rcode string, addrs ...string) {
	tb.Helper()
	for _, network := range []string{"udp", "tcp"} {
		eventually(tb, func() error {
			code, got, err := resolve(network, server, name)
			if err != nil {
				return err
			}
			if code != rcode || strings.Join(got, " ") != strings.Join(addrs, " ") {
				return fmt.Errorf("%s over %s: got %s %v, want %s %v", name, network, code, got, rcode, addrs)
			}
			return nil
		})
	}
}

// page is what a server serves.
type page struct {
	status          int
	mediaType, text string
}

// get waits until a server serves. roots and name are for TLS: which CA it must have a certificate of, and for
// whom; without roots it is plain HTTP.
func get(tb testing.TB, addr, path string, roots *x509.CertPool, name string) page {
	tb.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	url := "http://" + addr + path
	if roots != nil {
		tr.TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: name}
		url = "https://" + addr + path
	}
	client := http.Client{Transport: tr, Timeout: 5 * time.Second}
	var p page
	eventually(tb, func() error {
		req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if name != "" {
			req.Host = name
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		p = page{resp.StatusCode, resp.Header.Get("Content-Type"), string(text)}
		return err
	})
	return p
}

// refused waits until a gateway answers a ClientHello for a name with an alert, and returns the alert's name.
func refused(tb testing.TB, addr, name string) string {
	tb.Helper()
	var alert string
	eventually(tb, func() error {
		d := tls.Dialer{NetDialer: &net.Dialer{Timeout: 5 * time.Second}, Config: &tls.Config{ServerName: name}}
		c, err := d.DialContext(tb.Context(), "tcp", addr)
		if err == nil {
			c.Close()
			return fmt.Errorf("got a connection to %s", name)
		}
		var ok bool
		if _, alert, ok = strings.Cut(err.Error(), "remote error: tls: "); !ok {
			return err
		}
		return nil
	})
	return alert
}

// metric returns the lines of a server's metrics that begin with a name.
func metric(tb testing.TB, addr, name string) (lines []string) {
	tb.Helper()
	text := get(tb, addr, "/metrics", nil, "").text
	if !strings.Contains(text, "\n# TYPE go_goroutines gauge\n") {
		tb.Fatalf("got no metrics: %q", text)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name) {
			lines = append(lines, line)
		}
	}
	return lines
}
