package images

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

func TestMain(m *testing.M) {
	ended := make(chan int, 1)
	go func() { ended <- m.Run() }()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	code := 1
	select {
	case code = <-ended:
	case <-interrupted: // the containers would go on
	}
	if ran.Load() {
		if err := remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}
