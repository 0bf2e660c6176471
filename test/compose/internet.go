//go:build linux

package compose

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/miekg/dns"
)

// page is what the server of a name says at /.
func page(name string) string { return "this is " + name + "\n" }

// address is what the internet's DNS server says of a name: its own address, or the one in its first label,
// 10-0-0-5.addr.example.com.
func address(name string, own netip.Addr) netip.Addr {
	if first, rest, _ := strings.Cut(name, "."); strings.HasPrefix(rest, "addr.") {
		if a, err := netip.ParseAddr(strings.ReplaceAll(first, "-", ".")); err == nil {
			return a
		}
	}
	return own
}

// internet is beyond the gateway, on one address: a DNS server that knows every name, and a web server behind each.
// It writes a line for all that comes, which arrived reads:
//
//	dns NAME TYPE FROM
//	http NAME FROM
//	https NAME FROM
func internet(args []string) (code int) {
	if len(args) != 1 {
		fmt.Fprintf(os.Stderr, "internet: %q, accepted is its address\n", args)
		return 2
	}
	own, err := netip.ParseAddr(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	certificate, err := certify(filepath.Join(internetDir, "ca.pem"), filepath.Join(internetDir, "ca.key"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	failed := make(chan error)
	for _, network := range []string{"udp", "tcp"} {
		s := &dns.Server{Addr: ":53", Net: network, Handler: answers(own)}
		go func() { failed <- s.ListenAndServe() }()
	}
	// The repository is read over git's dumb protocol, which is files.
	mux := http.NewServeMux()
	mux.Handle("/code.git/", http.FileServer(http.Dir(internetDir)))
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, r *http.Request) {
		kind := "http"
		if r.TLS != nil {
			kind = "https"
		}
		fmt.Println(kind, r.Host, r.RemoteAddr)
		_, _ = io.WriteString(w, page(r.Host))
	})
	quiet := log.New(io.Discard, "", 0)
	go func() { failed <- (&http.Server{Addr: ":80", Handler: mux, ErrorLog: quiet}).ListenAndServe() }()
	go func() {
		s := &http.Server{Addr: ":443", Handler: mux, ErrorLog: quiet, TLSConfig: &tls.Config{GetCertificate: certificate}}
		failed <- s.ListenAndServeTLS("", "")
	}()
	fmt.Fprintln(os.Stderr, <-failed)
	return 1
}

// answers is the DNS server of an internet with an address.
type answers netip.Addr

// ServeDNS implements dns.Handler.
func (a answers) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	m := new(dns.Msg).SetReply(r)
	m.RecursionAvailable = true
	for _, q := range r.Question {
		name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
		host, _, _ := net.SplitHostPort(w.RemoteAddr().String())
		fmt.Println("dns", name, dns.TypeToString[q.Qtype], host)
		if q.Qtype == dns.TypeA {
			h := dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}
			m.Answer = append(m.Answer, &dns.A{Hdr: h, A: address(name, netip.Addr(a)).AsSlice()})
		}
	}
	_ = w.WriteMsg(m)
}
