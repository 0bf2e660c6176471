//go:build linux

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// badCertificates are names whose server has a certificate that is none for it: what is wrong is changed in one that
// would do. A change that returns true has it signed by itself.
var badCertificates = map[string]func(c *x509.Certificate) (bySelf bool){
	"another.example.com": func(c *x509.Certificate) bool { c.DNSNames = []string{"api.example.com"}; return false },
	"parent.example.com": func(c *x509.Certificate) bool {
		c.DNSNames = []string{"example.com", "*.parent.example.com"}
		return false
	},
	"subject.example.com": func(c *x509.Certificate) bool { c.DNSNames = nil; return false },
	"expired.example.com": func(c *x509.Certificate) bool { c.NotAfter = time.Now().Add(-time.Minute); return false },
	"future.example.com":  func(c *x509.Certificate) bool { c.NotBefore = time.Now().Add(time.Hour); return false },
	"client.example.com": func(c *x509.Certificate) bool {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		return false
	},
	"unknown.example.com": func(*x509.Certificate) bool { return true },
}

var badServers atomic.Uint32

// badServer serves one of these names, and returns how many times it got as far as the first octet of a request.
func (l *lab) badServer(tb testing.TB, name string) *atomic.Int64 {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1 << 20),
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{name},
		NotBefore:    l.ca.cert.NotBefore,
		NotAfter:     l.ca.cert.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	parent, signer := l.ca.cert, l.ca.key
	if badCertificates[name](c) {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		tb.Fatal(err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"http/1.1"}}
	asked := new(atomic.Int64)
	// Each has an address of its own, for good: a test may run several times.
	addr := netip.AddrFrom4([4]byte{93, 184, 217, byte(badServers.Add(1))})
	l.internet.dns.set(name, addrs(addr))
	_, err = l.internet.serve(l.internet.ns, netip.AddrPortFrom(addr, 443), func(c net.Conn) {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if n, _ := tls.Server(c, cfg).Read(make([]byte, 1)); n > 0 {
			asked.Add(1)
		}
	})
	if err != nil {
		tb.Fatal(err)
	}
	return asked
}
