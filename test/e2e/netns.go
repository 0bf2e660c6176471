//go:build linux

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	netnsDir = "/run/netns" // where iproute2 keeps the namespaces it named
	etcDir   = "/etc/netns" // what `ip netns exec` mounts over /etc
)

// namespace is a network namespace of iproute2.
type namespace struct {
	name string
}

// addNamespace makes a namespace, with its loopback device up. The reaper is told first, so that it is
// removed even if this process is killed in the meantime.
func addNamespace(name string) (*namespace, error) {
	reaper.watch(name)
	n := &namespace{name: name}
	if err := ip("netns", "add", name); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(etcDir, name), 0o755); err != nil {
		return nil, err
	}
	// A resolver of the host's that is asked by another way than the network (nscd, resolved) would answer
	// for names that the lab does not have.
	if err := n.etc("nsswitch.conf", "hosts: files dns\n"); err != nil {
		return nil, err
	}
	return n, n.ip("link", "set", "lo", "up")
}

// removeNamespace ends what runs in a namespace and removes it. It is nobody's but the test's: it made it.
func removeNamespace(name string) {
	if _, err := os.Stat(filepath.Join(netnsDir, name)); err == nil {
		out, _ := exec.Command("ip", "netns", "pids", name).Output()
		for _, field := range strings.Fields(string(out)) {
			// This process is in none of them for good, but a thread of it can be.
			if pid, err := strconv.Atoi(field); err == nil && pid != os.Getpid() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		_ = ip("netns", "delete", name)
	}
	_ = os.RemoveAll(filepath.Join(etcDir, name))
	_ = os.Remove(etcDir) // if it was the last
}

// ip runs iproute2.
func ip(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// ip runs iproute2 on the namespace.
func (n *namespace) ip(args ...string) error {
	return ip(append([]string{"-n", n.name}, args...)...)
}

// etc writes a file that processes of the namespace see as /etc/file. Written in place, so that processes
// which have it mounted see the change.
func (n *namespace) etc(file, content string) error {
	return os.WriteFile(filepath.Join(etcDir, n.name, file), []byte(content), 0o644)
}

// sysctl sets a variable such as net/ipv4/ip_forward in the namespace.
func (n *namespace) sysctl(name, value string) error {
	return n.do(func() error {
		return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0)
	})
}

// do runs f on a thread that is in the namespace. A socket stays in the namespace that it was made in, so f
// makes one, or dials, and hands it out; it starts no goroutine of its own.
func (n *namespace) do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and no other one runs in the wrong namespace.
		runtime.LockOSThread()
		done <- func() error {
			fd, err := unix.Open(filepath.Join(netnsDir, n.name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("network namespace %q: %w", n.name, err)
			}
			defer unix.Close(fd)
			if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("network namespace %q: %w", n.name, err)
			}
			return f()
		}()
	}()
	return <-done
}

// command is a process in the namespace, with the files of etc over those in /etc. The process that is
// started is the program itself: `ip netns exec` gives way to it.
func (n *namespace) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", n.name}, args...)...)
}

// freebind lets a socket have an address that no interface has: the internet has them all by its routes.
func freebind(network, _ string, c syscall.RawConn) error {
	var opt error
	err := c.Control(func(fd uintptr) {
		if strings.HasSuffix(network, "6") {
			opt = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
		} else {
			opt = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
		}
	})
	if err != nil {
		return err
	}
	return opt
}

// listen listens on a TCP address in the namespace, whether or not an interface has it.
func (n *namespace) listen(ap netip.AddrPort) (l net.Listener, err error) {
	err = n.do(func() error {
		lc := net.ListenConfig{Control: freebind}
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(context.Background(), "tcp", ap.String())
		return err
	})
	return l, err
}

// listenUDP is listen for UDP.
func (n *namespace) listenUDP(ap netip.AddrPort) (pc net.PacketConn, err error) {
	err = n.do(func() error {
		lc := net.ListenConfig{Control: freebind}
		pc, err = lc.ListenPacket(context.Background(), "udp", ap.String())
		return err
	})
	return pc, err
}

// dial connects from the namespace; network is tcp or udp.
func (n *namespace) dial(network string, ap netip.AddrPort) (c net.Conn, err error) {
	return n.dialWithin(10*time.Second, network, ap)
}

func (n *namespace) dialWithin(d time.Duration, network string, ap netip.AddrPort) (c net.Conn, err error) {
	err = n.do(func() error {
		dialer := net.Dialer{Timeout: d}
		// Of one family: the unspecified address is tried as what it is.
		if network += "4"; ap.Addr().Is6() && !ap.Addr().Is4In6() {
			network = network[:len(network)-1] + "6"
		}
		c, err = dialer.Dial(network, ap.String())
		return err
	})
	return c, err
}

// dialFrom is dial from one of the namespace's addresses.
func (n *namespace) dialFrom(from netip.Addr, network string, to netip.AddrPort) (c net.Conn, err error) {
	err = n.do(func() error {
		dialer := net.Dialer{Timeout: 10 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		if network == "udp" {
			dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		}
		c, err = dialer.Dial(network, to.String())
		return err
	})
	return c, err
}
