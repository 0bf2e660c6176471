//go:build linux

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"
)

// goClient is this program as a client: it prints what is at a URL, or why that failed, and returns its exit
// code.
func goClient(target string) int {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
		if resp.StatusCode != http.StatusOK {
			fmt.Fprintf(os.Stderr, "%s: %s\n", reasonHeader, resp.Header.Get(reasonHeader))
		}
		return nil
	}
	c := http.Client{Transport: t, Timeout: 20 * time.Second}
	resp, err := c.Get(target)
	if err == nil {
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s, %s", resp.Status, resp.Header.Get(reasonHeader))
		} else {
			_, err = io.Copy(os.Stdout, resp.Body)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
