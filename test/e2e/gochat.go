//go:build linux

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
)

// goChat is this program as a client of a model, with a key that is none: it prints the answer as it comes, and
// returns its exit code.
func goChat(url, model string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	body := fmt.Sprintf(`{"model": %q, "stream": true}`, model)
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return fail(err)
	}
	req.Header.Set("Authorization", "Bearer none")
	c := http.Client{Timeout: 20 * time.Second}
	resp, err := c.Do(req)
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fail(fmt.Errorf("%s, %s", resp.Status, resp.Header.Get(reasonHeader)))
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var event struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil || len(event.Choices) != 1 {
			return fail(fmt.Errorf("event %q: %w", data, err))
		}
		fmt.Print(event.Choices[0].Delta.Content)
	}
	if err := lines.Err(); err != nil {
		return fail(err)
	}
	return 0
}
