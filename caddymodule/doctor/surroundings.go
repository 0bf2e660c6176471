package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/miekg/dns"
)

// surroundings are what the checks look at, by way of files and connections alone.
type surroundings struct {
	Config
	files fs.FS // the root directory
	dial  func(ctx context.Context, network, address string) (net.Conn, error)

	// What several checks of a sandbox need; explore finds it.
	stub     stub
	stubErr  error
	gateways []netip.Addr
}

// explore finds what the checks of a sandbox share.
func (s *surroundings) explore(ctx context.Context) {
	s.stub, s.stubErr = s.readStub()
	if s.gateways = s.Sandbox.Gateways; len(s.gateways) > 0 {
		return
	}
	for _, a := range slices.Concat(s.stub.servers, s.stub.forwards) {
		if a.IsLoopback() {
			continue
		}
		// Others are nobody's gateway, and are left alone.
		if r, err := s.askTXT(ctx, netip.AddrPortFrom(a, dnsPort), nobody); err == nil && ours(r) {
			s.gateways = append(s.gateways, a)
		}
	}
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		s.gateways = append(s.gateways, s.lookUp(ctx, qtype)...)
	}
	slices.SortFunc(s.gateways, netip.Addr.Compare)
	s.gateways = slices.Compact(s.gateways)
}

// read returns a file, such as "proc/net/route".
func (s *surroundings) read(name string) (string, error) {
	b, err := fs.ReadFile(s.files, name)
	return string(b), err
}

// has reports whether a file exists.
func (s *surroundings) has(name string) bool {
	_, err := fs.Stat(s.files, name)
	return err == nil
}

// connect connects within the time-out.
func (s *surroundings) connect(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	return s.dial(ctx, network, address)
}

// tryAll connects to all addresses at once, and returns for each why it could not, nil if it could.
func (s *surroundings) tryAll(ctx context.Context, addresses []string) []error {
	errs := make([]error, len(addresses))
	var wg sync.WaitGroup
	for i, a := range addresses {
		wg.Go(func() {
			c, err := s.connect(ctx, "tcp", a)
			if errs[i] = err; err == nil {
				c.Close()
			}
		})
	}
	wg.Wait()
	return errs
}

// maxBody bounds what is read of a page: metrics of a busy Caddy are a few hundred KiB.
const maxBody = 16 << 20

// get fetches a page. A via that is not nil is connected to, whatever the URL of the page says.
func (s *surroundings) get(ctx context.Context, page string, via *Endpoint) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	client := http.Client{
		Transport: &http.Transport{ // no proxy of the environment's
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if via != nil {
					network, address = via.Network, via.Address
				}
				return s.dial(ctx, network, address)
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	return resp.StatusCode, string(b), err
}

// getOK is get of a page that must be there.
func (s *surroundings) getOK(ctx context.Context, page string, via *Endpoint) (string, error) {
	status, body, err := s.get(ctx, page, via)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("it answers %d", status)
	}
	return body, err
}

// why shortens an error of a connection to what went wrong.
func why(err error) string {
	var (
		errno   syscall.Errno
		timeout net.Error
		request *url.Error
	)
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	case errors.As(err, &request):
		return request.Err.Error()
	}
	return err.Error()
}

// list joins values with commas.
func list[T fmt.Stringer](values []T) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ", ")
}
