package images

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// command runs a program, for two minutes at most, and returns what it writes to standard output and, if it
// fails, what it writes to both.
func command(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &tee{&out, &both}, &both
	if err := cmd.Run(); err != nil {
		return both.String(), fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, &both)
	}
	return out.String(), nil
}

// tee writes to two buffers.
type tee struct{ a, b *bytes.Buffer }

func (t *tee) Write(p []byte) (int, error) {
	t.a.Write(p)
	return t.b.Write(p)
}

// docker runs the client and returns its standard output, without white space at the end.
func docker(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := command("", append([]string{"docker"}, args...)...)
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// eventually calls f until it returns no error, for 30 s at most.
func eventually(tb testing.TB, f func() error) {
	tb.Helper()
	var err error
	for range 300 {
		if err = f(); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	tb.Fatalf("after 30 s: %v", err)
}
