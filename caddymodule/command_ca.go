package caddymodule

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddypki"
	"github.com/spf13/cobra"
)

func caCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ca [--bundle] [--ca <id>] [--admin <address> | --config <path> [--adapter <name>]]",
		Short: "Prints the certificate that clients of brokered names must trust",
		Long: `
Prints the root certificate of the CA from which brokered names have their
certificates, in PEM, for sandboxes to trust. It is no secret. Only brokered
names need it.

Most programs that are given a file of certificates trust nothing else. With
--bundle the public roots of this machine come first: those of SSL_CERT_FILE,
or of the system.

Sites whose issuer names a CA of its own need that one: --ca.

The running Caddy is asked by its admin endpoint: --admin, or that of a
configuration, by default ` + defaultConfig + ` or the Caddyfile in the
current directory.

The exit status is 0 if the certificate is printed, and 2 if the command could
not be run.
`,
		Example: `  $ docker exec GATEWAY caddy sandboxallow ca --bundle > ca-bundle.pem
  $ caddy sandboxallow ca --admin unix//run/caddy-admin.sock > gateway-ca.pem`,
	}
	f := cmd.Flags()
	f.Bool("bundle", false, "Print the public roots of this machine too")
	f.String("ca", caddypki.DefaultCAID, "Name of the CA")
	f.String("admin", "", "Address of the admin endpoint")
	f.StringP("config", "c", "", "Configuration file that Caddy runs")
	f.StringP("adapter", "a", "", "Name of the adapter of that file")
	setRun(cmd, cobra.NoArgs, runCA)
	return cmd
}

func runCA(cmd *cobra.Command, _ []string) (bool, error) {
	if err := errors.Join(exclusive(cmd, "admin", "config"), exclusive(cmd, "admin", "adapter")); err != nil {
		return false, err
	}
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	listen, err := adminListen(flags)
	if err != nil {
		return false, err
	}
	root, err := runningRoot(listen, flags.String("ca"))
	if err != nil {
		return false, err
	}
	certs := []*x509.Certificate{root}
	if flags.Bool("bundle") {
		public, err := publicRoots()
		if err != nil {
			return false, err
		}
		certs = append(public, root)
	}
	return true, writeCertificates(cmd.OutOrStdout(), certs)
}

// adminListen returns where the admin endpoint listens that the flags name.
func adminListen(flags caddycmd.Flags) (string, error) {
	if listen := flags.String("admin"); listen != "" {
		return listen, nil
	}
	text, file, err := loadConfig(flags)
	if err != nil {
		return "", err
	}
	if file == "" {
		return "", fmt.Errorf("no running Caddy: give --admin, or --config; there is no %s and no Caddyfile here", defaultConfig)
	}
	var running runningConfig
	if err := json.Unmarshal(text, &running); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	switch {
	case running.Admin.Disabled:
		return "", fmt.Errorf("%s: the admin endpoint is off; the certificate is pki/authorities/%s/root.crt in the storage of Caddy",
			file, flags.String("ca"))
	case running.Admin.Listen == "":
		return caddy.DefaultAdminListen, nil
	}
	return running.Admin.Listen, nil
}

// runningRoot asks a running Caddy for the root certificate of a CA.
func runningRoot(listen, ca string) (*x509.Certificate, error) {
	resp, err := caddycmd.AdminAPIRequest(listen, http.MethodGet, "/pki/ca/"+url.PathEscape(ca), nil, nil)
	if err != nil {
		return nil, fmt.Errorf("admin endpoint %s: %w", listen, err)
	}
	defer resp.Body.Close()
	var info struct {
		Root string `json:"root_certificate"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&info); err != nil {
		return nil, fmt.Errorf("admin endpoint %s: %w", listen, err)
	}
	certs := parseCertificates([]byte(info.Root))
	if len(certs) != 1 {
		return nil, fmt.Errorf("admin endpoint %s: %d certificates in place of the root", listen, len(certs))
	}
	return certs[0], nil
}

// rootFiles are where systems keep the public roots in one file: Debian and Alpine, Red Hat, SUSE, and others.
var rootFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// publicRoots returns the roots that upstreams are verified by on this machine.
func publicRoots() ([]*x509.Certificate, error) {
	files := rootFiles
	if file := os.Getenv("SSL_CERT_FILE"); file != "" { // crypto/x509 knows no other ones then either
		files = []string{file}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) && len(files) > 1 {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("public roots: %w", err)
		}
		certs := parseCertificates(text)
		if len(certs) == 0 {
			return nil, fmt.Errorf("public roots: %s: no certificate in PEM", file)
		}
		return certs, nil
	}
	return nil, fmt.Errorf("no public roots: there is none of %q; install ca-certificates, or set SSL_CERT_FILE", files)
}

// parseCertificates returns the certificates of a text. What stands between them is for people, and those that
// crypto/x509 cannot read it skips in the system's files too.
func parseCertificates(text []byte) (certs []*x509.Certificate) {
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			return certs
		}
		if c, err := x509.ParseCertificate(b.Bytes); b.Type == "CERTIFICATE" && err == nil {
			certs = append(certs, c)
		}
	}
}

// writeCertificates writes each certificate in PEM, once.
func writeCertificates(to io.Writer, certs []*x509.Certificate) error {
	var text bytes.Buffer
	seen := make(map[string]bool)
	for _, c := range certs {
		if seen[string(c.Raw)] {
			continue
		}
		seen[string(c.Raw)] = true
		if err := pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}); err != nil {
			return err
		}
	}
	_, err := to.Write(text.Bytes())
	return err
}
