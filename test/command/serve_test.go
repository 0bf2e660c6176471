package command

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// adminSocket is where a Caddy of startCaddy has its admin endpoint, in its folder.
const adminSocket = "admin.sock"

// startCaddy runs Caddy in a folder, with the Caddyfile there, until stop is called. It returns once Caddy serves.
func startCaddy(dir string, env []string) (stop func(), err error) {
	program, err := exec.LookPath("caddy")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, "run", "--config", "Caddyfile")
	cmd.Dir = dir
	cmd.Env = append(env, "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	log, err := os.Create(filepath.Join(dir, "caddy.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("unix", filepath.Join(dir, adminSocket)); err == nil {
			_ = c.Close()
			return stop, nil
		}
		select {
		case <-ended:
		default:
			if time.Now().Before(end) {
				continue
			}
		}
		stop()
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("caddy does not serve:\n%s", text)
	}
}

// serve is a command of scripts: `serve` has Caddy run with the Caddyfile of the script until its end.
func serve(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: serve")
	}
	stop, err := startCaddy(ts.MkAbs("."), []string{"PATH=" + ts.Getenv("PATH")})
	ts.Check(err)
	ts.Defer(stop)
}
