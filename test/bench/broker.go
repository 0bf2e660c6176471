package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// brokeredName is the one that a credential is set for. The first rule admits it.
var brokeredName = theRule(0).Name

// brokeredKey is the credential. Without it the upstream serves nothing.
const brokeredKey = "sk-bench-0123456789abcdef0123456789abcdef"

// broker is our Caddy with a site that brokers.
func broker(l *lab, name string) peer {
	setUp := fmt.Sprintf("a list of %s rules, resolver, decision log, `sandboxallow broker`: broker.Caddyfile", count(gatewayRules))
	return peer{name: name, setUp: setUp, ours: true, start: func(ctx context.Context) (*server, error) {
		program, err := l.makeOurs(ctx, "caddy")
		if err != nil {
			return nil, err
		}
		return l.startBrokering(ctx, name, program, "broker.Caddyfile")
	}}
}

// brokerStock is the site that people write without us.
func brokerStock(l *lab, name string) peer {
	setUp := "stock; a fixed address instead of a resolver, no policy, access log: broker-stock.Caddyfile"
	return peer{name: name, setUp: setUp, start: func(ctx context.Context) (*server, error) {
		program, err := l.buildStock(ctx, "caddy-http", "nobadger,nomysql,nopgx", "github.com/caddyserver/caddy/v2/cmd/caddy")
		if err != nil {
			return nil, err
		}
		s, err := l.startBrokering(ctx, name, program, "broker-stock.Caddyfile")
		if s == nil {
			return nil, err
		}
		if v, err := l.moduleVersion(ctx, "github.com/caddyserver/caddy/v2"); err == nil {
			s.version = v // which a program does not know that was built in our module
		}
		return s, err
	}}
}

// startBrokering starts a Caddy whose site sets the credential.
func (l *lab) startBrokering(ctx context.Context, name, program, configuration string) (*server, error) {
	api, err := secureUpstream()
	if err != nil {
		return nil, err
	}
	s, err := l.newSetting(name, gatewayRules)
	if err != nil {
		return nil, err
	}
	s.Web = api.addr
	if err := s.policy(fmt.Sprintf("ports %d", api.addr.Port()), fmt.Sprintf("private %v/32", api.addr.Addr())); err != nil {
		return nil, err
	}
	for file, text := range map[string][]byte{"key": []byte(brokeredKey + "\n"), "ca.pem": api.ca} {
		if err := os.WriteFile(filepath.Join(s.Dir, file), text, 0o600); err != nil {
			return nil, err
		}
	}
	server, err := s.startCaddy(program, configuration)
	if err != nil {
		return nil, err
	}
	server.webPort = api.addr.Port()
	return server, server.process.await(ctx, func() error {
		w, err := server.secureWeb()
		if err != nil {
			return err
		}
		defer w.close()
		return w.get(brokeredName, true, http.StatusOK)
	})
}

// secureWeb is a connection for HTTP over TLS. Which certificate the client gets is not its concern here.
func (s *server) secureWeb() (*web, error) {
	w, err := s.web()
	if err != nil {
		return nil, err
	}
	w.conn.SetDeadline(time.Now().Add(tunnelPatience))
	c := tls.Client(w.conn, &tls.Config{ServerName: brokeredName, InsecureSkipVerify: true})
	if err := c.Handshake(); err != nil {
		w.close()
		return nil, err
	}
	return &web{s, c, bufio.NewReader(c)}, nil
}

// brokeredRequests is the cost of a request for which a credential is set, with TLS on both sides.
func brokeredRequests(name, against string, clients int) measure {
	return measure{
		name: name,
		text: fmt.Sprintf("%d clients send GET requests over TLS one after the other, on a connection that is kept, and read %d bytes of body. "+
			"The server sets Authorization from a file and asks the upstream over TLS, which serves nobody without it.", clients, pageSize),
		against: against,
		columns: []column{
			{"CPU per request", microseconds, true},
			{"requests/s", count, true},
			{"p50", milliseconds, false},
			{"p99", milliseconds, true},
		},
		take: requestingSecurely(clients).values(func(u use) []float64 {
			return []float64{u.cpuPer(), u.perSecond(), u.percentile(0.5), u.percentile(0.99)}
		}),
	}
}

// requestingSecurely is the load of brokeredRequests.
func requestingSecurely(clients int) load {
	return func(ctx context.Context, s *server, m *meter) error {
		return together(ctx, clients, func(ctx context.Context, _ int) error {
			w, err := s.secureWeb()
			if err != nil {
				return err
			}
			defer w.close()
			for ctx.Err() == nil {
				began := time.Now()
				if err := w.get(brokeredName, true, http.StatusOK); err != nil {
					return err
				}
				m.took(time.Since(began))
			}
			return nil
		})
	}
}

// secure is the upstream of brokeredName.
type secure struct {
	addr netip.AddrPort
	ca   []byte // in PEM: its certificate, which it has signed itself
}

// secureUpstream is one for all peers, until this process ends.
var secureUpstream = sync.OnceValues(func() (*secure, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		DNSNames:              []string{brokeredName},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(upstreamAddr, 0)))
	if err != nil {
		return nil, err
	}
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+brokeredKey {
				http.Error(w, "no key", http.StatusUnauthorized)
				return
			}
			w.Write(zeros[:pageSize])
		}),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	go func() {
		if err := srv.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, "bench: upstream with TLS:", err)
		}
	}()
	return &secure{l.Addr().(*net.TCPAddr).AddrPort(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
})
