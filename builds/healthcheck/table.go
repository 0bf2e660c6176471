package main

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// socket is a line of /proc/net/tcp or /proc/net/tcp6.
type socket struct {
	addr  netip.AddrPort
	uid   uint64 // of whoever made it
	inode uint64 // what /proc/PID/fd names it by
}

// stateListen is TCP_LISTEN of the kernel, as the table has it.
const stateListen = "0A"

// listeners reads a table of the kernel's, proc_pid_net(5), and returns the sockets in it that listen.
func listeners(table io.Reader) ([]socket, error) {
	var found []socket
	lines := bufio.NewScanner(table)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if n == 1 {
			if len(fields) == 0 || fields[0] != "sl" {
				return nil, fmt.Errorf("line 1: %q is not the head of a table of sockets", lines.Text())
			}
			continue
		}
		if len(fields) < 10 {
			return nil, fmt.Errorf("line %d: %d fields, want 10 or more", n, len(fields))
		}
		if fields[3] != stateListen {
			continue
		}
		s, err := parseSocket(fields[1], fields[7], fields[9])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		found = append(found, s)
	}
	return found, lines.Err()
}

func parseSocket(addr, uid, inode string) (s socket, err error) {
	if s.addr, err = parseAddrPort(addr); err != nil {
		return socket{}, err
	}
	if s.uid, err = strconv.ParseUint(uid, 10, 32); err != nil {
		return socket{}, fmt.Errorf("user: %w", err)
	}
	if s.inode, err = strconv.ParseUint(inode, 10, 64); err != nil {
		return socket{}, fmt.Errorf("inode: %w", err)
	}
	return s, nil
}

// parseAddrPort parses ADDRESS:PORT in hexadecimal. The address is one or four words of 32 bits, each in the
// order of this machine; the port is in that of people.
func parseAddrPort(s string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, fmt.Errorf("address %q: want 8 or 32 hexadecimal digits, a colon and a port", s)
	}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], binary.NativeEndian.Uint32(b[i:]))
	}
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil || len(port) != 4 {
		return netip.AddrPort{}, fmt.Errorf("address %q: want a port of 4 hexadecimal digits", s)
	}
	addr, _ := netip.AddrFromSlice(b) // of 4 or 16 octets
	return netip.AddrPortFrom(addr.Unmap(), uint16(p)), nil
}
