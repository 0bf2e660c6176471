//go:build linux

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// goClient is this program as a client: it prints what is at a URL, or why that failed, and returns its exit
// code.
func goClient(url string) int {
	c := http.Client{Timeout: 20 * time.Second}
	resp, err := c.Get(url)
	if err == nil {
		defer resp.Body.Close()
		_, err = io.Copy(os.Stdout, resp.Body)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
