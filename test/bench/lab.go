package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// lab is what all peers share: a place for their files, and the internet that they reach.
type lab struct {
	root        string          // of the module
	dir         string          // temporary, for configurations and logs
	descriptors int             // that each process may have
	built       map[string]bool // programs that are up to date, by path
	upstream    *upstream
	zone        *zone
}

func newLab(ctx context.Context) (*lab, error) {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOMOD: %w", err)
	}
	l := &lab{root: filepath.Dir(strings.TrimSpace(string(mod)))}
	if _, err := os.Stat(filepath.Join(l.root, "builds", "coredns")); err != nil {
		return nil, fmt.Errorf("must be run inside the module: %w", err)
	}
	if l.descriptors, err = limitDescriptors(); err != nil {
		return nil, err
	}
	if l.dir, err = os.MkdirTemp("", "bench"); err != nil {
		return nil, err
	}
	if err := os.Chmod(l.dir, 0o755); err != nil { // squid gives up being root
		l.close()
		return nil, err
	}
	if l.upstream, err = startUpstream(); err != nil {
		l.close()
		return nil, err
	}
	if l.zone, err = newZone(l.upstream.addr.Addr()); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *lab) close() {
	if l.zone != nil {
		l.zone.close()
	}
	if l.upstream != nil {
		l.upstream.close()
	}
	os.RemoveAll(l.dir)
}

// descriptorLimit is how many descriptors a gateway for ten thousand tunnels is meant to need.
const descriptorLimit = 24_000

// limitDescriptors limits this process and all that it starts to descriptorLimit, or to fewer where the machine
// allows no more, and returns to how many. It is the hard limit, as programs raise the soft one.
func limitDescriptors() (int, error) {
	limit := syscall.Rlimit{Cur: descriptorLimit, Max: descriptorLimit}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err == nil {
		return descriptorLimit, nil
	}
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, os.NewSyscallError("getrlimit", err)
	}
	limit.Cur = limit.Max
	err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	return int(limit.Max), os.NewSyscallError("setrlimit", err)
}

// folder makes a folder for the files of a peer.
func (l *lab) folder(peer string) (string, error) {
	dir, err := os.MkdirTemp(l.dir, strings.NewReplacer(" ", "-", ",", "").Replace(peer)+"-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// loopback is where servers listen and clients connect from. The upstream has an address of its own.
var loopback = netip.MustParseAddr("127.0.0.1")

// freePort returns a loopback address with a port that is free for TCP and UDP alike.
func freePort() (netip.AddrPort, error) {
	for range 100 {
		t, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
		if err != nil {
			return netip.AddrPort{}, err
		}
		addr := t.Addr().(*net.TCPAddr).AddrPort()
		u, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(addr))
		t.Close()
		if err == nil {
			u.Close()
			return addr, nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("no port of %v is free for both TCP and UDP", loopback)
}
