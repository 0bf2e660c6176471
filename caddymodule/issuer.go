package caddymodule

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"path"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddypki"
	"github.com/caddyserver/certmagic"
)

func init() {
	caddy.RegisterModule(new(Issuer))
}

const (
	certificateLifetime = 7 * 24 * time.Hour

	// backdated is how far the clock of a sandbox may be behind.
	backdated = 24 * time.Hour
)

// Issuer issues the certificates with which sites broker, by Caddy's internal certificate authority. It issues none
// for a name that no site brokers, and asks nobody outside. The authority's root is not installed in the trust
// store of this machine, unless the `pki` app says so: only sandboxes need it.
type Issuer struct {
	// The certificate authority of the `pki` app that signs. Default: local.
	CA string `json:"ca,omitempty"`

	app *App
	ca  *caddypki.CA
}

// CaddyModule returns the Caddy module information.
func (*Issuer) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "tls.issuance.sandboxallow",
		New: func() caddy.Module { return new(Issuer) },
	}
}

// Provision finds the certificate authority.
func (i *Issuer) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	i.app = app
	if i.CA == "" {
		i.CA = caddypki.DefaultCAID
	}
	pki, err := ctx.App("pki")
	if err != nil {
		return err
	}
	i.ca, err = pki.(*caddypki.PKI).GetCA(ctx, i.CA)
	if err != nil {
		return err
	}
	if i.ca.InstallTrust == nil {
		i.ca.InstallTrust = new(bool)
	}
	return i.backdateRoot(ctx)
}

// backdateRoot has a root that was made just now be valid since yesterday: the clock of a sandbox may be behind. It
// is the same root otherwise, with the same key.
func (i *Issuer) backdateRoot(ctx caddy.Context) error {
	root := i.ca.RootCertificate()
	if i.ca.Root != nil || i.ca.StorageRaw != nil || time.Since(root.NotBefore) > backdated {
		return nil
	}
	key, err := i.ca.RootKey()
	if err != nil {
		return err
	}
	again := *root
	again.NotBefore = root.NotBefore.Add(-2 * backdated)
	again.SignatureAlgorithm = x509.UnknownSignatureAlgorithm
	der, err := x509.CreateCertificate(rand.Reader, &again, &again, key.Public(), key)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	where := path.Join("pki", "authorities", certmagic.StorageKeys.Safe(i.CA), "root.crt")
	if err := ctx.Storage().Store(ctx, where, text); err != nil {
		return err
	}
	return i.ca.Provision(ctx, i.CA, ctx.Logger())
}

// IssuerKey tells this authority's certificates from others' in the storage.
func (i *Issuer) IssuerKey() string { return "sandboxallow-" + i.CA }

// Issue implements certmagic.Issuer.
func (i *Issuer) Issue(_ context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	s, err := i.app.sites()
	if err != nil {
		return nil, err
	}
	if len(csr.DNSNames) == 0 || len(csr.IPAddresses)+len(csr.EmailAddresses)+len(csr.URIs) > 0 {
		return nil, errors.New("accepted are certificates for names")
	}
	for _, name := range csr.DNSNames {
		if !s.brokers(name) {
			return nil, fmt.Errorf("no site brokers %q", name)
		}
	}
	chain, key, err := i.signer()
	if err != nil {
		return nil, err
	}
	der, err := sign(csr, chain[0], key, time.Now())
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: der}) // a Buffer takes all
	for _, c := range chain {
		if !bytes.Equal(c.RawSubject, c.RawIssuer) { // clients have the root
			pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
		}
	}
	return &certmagic.IssuedCertificate{Certificate: b.Bytes()}, nil
}

// signer returns what signs: the root, because an intermediate certificate is renewed every few days, and valid only
// from then on, which is the future to a sandbox whose clock is behind. An authority whose root has no key here
// signs by its intermediate certificate.
func (i *Issuer) signer() ([]*x509.Certificate, crypto.Signer, error) {
	key, err := i.ca.RootKey()
	if err != nil {
		return nil, nil, err
	}
	if key != nil {
		return []*x509.Certificate{i.ca.RootCertificate()}, key, nil
	}
	return i.ca.IntermediateCertificateChain(), i.ca.IntermediateKey(), nil
}

// sign makes the certificate that a request asks for: of a server, for its names, and nothing else.
func sign(csr *x509.CertificateRequest, by *x509.Certificate, key crypto.Signer, now time.Time) ([]byte, error) {
	if err := csr.CheckSignature(); err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber:          serial.Add(serial, big.NewInt(1)),
		DNSNames:              csr.DNSNames,
		NotBefore:             now.Add(-backdated),
		NotAfter:              now.Add(certificateLifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		AuthorityKeyId:        by.SubjectKeyId,
	}
	if leaf.NotAfter.After(by.NotAfter) {
		leaf.NotAfter = by.NotAfter
	}
	return x509.CreateCertificate(rand.Reader, leaf, by, csr.PublicKey, key)
}

// UnmarshalCaddyfile sets up the issuer. Syntax:
//
//	sandboxallow {
//		ca <id>
//	}
func (i *Issuer) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the issuer's name
	if d.NextArg() {
		return d.ArgErr()
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if d.Val() != "ca" {
			return d.Errf("unknown option %q, accepted is ca", d.Val())
		}
		if i.CA != "" {
			return d.Err("ca is given twice")
		}
		if !d.AllArgs(&i.CA) {
			return d.ArgErr()
		}
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner     = (*Issuer)(nil)
	_ certmagic.Issuer      = (*Issuer)(nil)
	_ caddyfile.Unmarshaler = (*Issuer)(nil)
)
