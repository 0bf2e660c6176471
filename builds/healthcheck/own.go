package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// listening returns the addresses on which the container itself listens, sorted. Its network namespace can
// hold sockets of others: of the host (network mode host), of another container, and Docker's own resolver on
// 127.0.0.11, which it opens in every container of a user-defined network.
func listening(proc string) ([]netip.AddrPort, error) {
	var sockets []socket
	for _, name := range []string{"tcp", "tcp6"} {
		more, err := readTable(filepath.Join(proc, "net", name))
		if err != nil {
			return nil, err
		}
		sockets = append(sockets, more...)
	}
	held, all := heldSockets(proc)
	var addrs []netip.AddrPort
	for _, s := range sockets {
		own := held[s.inode]
		if !all {
			// A server with a file capability must not be looked into. Then it is who made the socket.
			own = own || s.uid == uint64(os.Getuid())
		}
		// The table does not tell the zone of a link-local address, without which it cannot be dialled.
		if own && !s.addr.Addr().IsLinkLocalUnicast() {
			addrs = append(addrs, s.addr)
		}
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	return slices.Compact(addrs), nil // several sockets on one address: SO_REUSEPORT
}

// readTable reads one table; a kernel without IPv6 has but one.
func readTable(path string) ([]socket, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && filepath.Base(path) == "tcp6" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found, err := listeners(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return found, nil
}

// heldSockets returns the inodes of the sockets that the processes of the container hold, and whether these
// are all: whether every process could be looked into.
func heldSockets(proc string) (inodes map[uint64]bool, all bool) {
	inodes = make(map[uint64]bool)
	processes, err := os.ReadDir(proc)
	if err != nil {
		return inodes, false
	}
	// Where processes of others are hidden (hidepid, proc(5)), the first one is.
	all = slices.ContainsFunc(processes, func(p fs.DirEntry) bool { return p.Name() == "1" })
	for _, p := range processes {
		if _, err := strconv.ParseUint(p.Name(), 10, 32); err != nil {
			continue
		}
		dir := filepath.Join(proc, p.Name(), "fd")
		fds, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // not one that has ended meanwhile
			all = false
		}
		for _, fd := range fds {
			target, err := os.Readlink(filepath.Join(dir, fd.Name()))
			if err != nil {
				continue // closed meanwhile
			}
			if number, ok := strings.CutPrefix(target, "socket:["); ok {
				if inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64); err == nil {
					inodes[inode] = true
				}
			}
		}
	}
	return inodes, all
}
