package doctor

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// route is a line of the kernel's main routing table.
type route struct {
	to  netip.Prefix
	via netip.Addr // the zero Addr if what is meant is in a network of dev
	dev string
}

func (r route) String() string {
	s := r.to.String()
	if r.to.Bits() == 0 {
		s = "default"
	}
	if r.via.IsValid() {
		s += " via " + r.via.String()
	}
	return s + " dev " + r.dev
}

// everywhere reports whether a route is for more than anybody's network: the default route, or one of two
// halves of it. No private range is as large.
func (r route) everywhere() bool { return r.to.Bits() < 8 }

// Flags of a route (route(8); linux/ipv6_route.h).
const (
	routeUp     = 0x1
	routeReject = 0x200      // answers that there is none
	routeLocal  = 0x80000000 // an address of this host
)

// readRoutes reads the main routing tables of both families, without those of loopback, multicast and
// link-local addresses.
func (s *surroundings) readRoutes() (rs []route, err error) {
	for _, table := range []struct {
		file string
		line func([]string) (route, bool, error)
	}{
		{"proc/net/route", routeOf4},
		{"proc/net/ipv6_route", routeOf6},
	} {
		text, err := s.read(table.file)
		if errors.Is(err, fs.ErrNotExist) && table.file == "proc/net/ipv6_route" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			fields := strings.Fields(line)
			if len(fields) == 0 || fields[0] == "Iface" {
				continue
			}
			r, use, err := table.line(fields)
			if err != nil {
				return nil, fmt.Errorf("/%s: %q: %w", table.file, strings.TrimSpace(line), err)
			}
			if use && r.dev != "lo" && !r.to.Addr().IsMulticast() && !r.to.Addr().IsLinkLocalUnicast() {
				rs = append(rs, r)
			}
		}
	}
	return rs, nil
}

var errFields = errors.New("not as Linux writes it")

// routeOf4 reads a line of /proc/net/route:
//
//	Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
//
// The three addresses are in the byte order of the host.
func routeOf4(fields []string) (r route, use bool, err error) {
	if len(fields) < 8 {
		return r, false, errFields
	}
	var words [4]uint64
	for i, f := range []string{fields[1], fields[2], fields[3], fields[7]} {
		if words[i], err = strconv.ParseUint(f, 16, 32); err != nil {
			return r, false, err
		}
	}
	addr := func(w uint64) netip.Addr {
		var b [4]byte
		binary.NativeEndian.PutUint32(b[:], uint32(w))
		return netip.AddrFrom4(b)
	}
	r = route{to: netip.PrefixFrom(addr(words[0]), bits.OnesCount64(words[3])), dev: fields[0]}
	if via := addr(words[1]); !via.IsUnspecified() {
		r.via = via
	}
	return r, words[2]&routeUp != 0 && words[2]&routeReject == 0, nil
}

// routeOf6 reads a line of /proc/net/ipv6_route, which has no heading:
//
//	destination length source length next-hop metric refcnt use flags device
func routeOf6(fields []string) (r route, use bool, err error) {
	if len(fields) < 10 {
		return r, false, errFields
	}
	to, err := addrOf6(fields[0])
	if err != nil {
		return r, false, err
	}
	via, err := addrOf6(fields[4])
	if err != nil {
		return r, false, err
	}
	length, err := strconv.ParseUint(fields[1], 16, 8)
	if err != nil {
		return r, false, err
	}
	flags, err := strconv.ParseUint(fields[8], 16, 32)
	if err != nil {
		return r, false, err
	}
	r = route{to: netip.PrefixFrom(to, int(length)), dev: fields[9]}
	if !via.IsUnspecified() {
		r.via = via
	}
	return r, flags&routeUp != 0 && flags&(routeReject|routeLocal) == 0, nil
}

// addrOf6 reads an IPv6 address of 32 hexadecimal digits.
func addrOf6(s string) (netip.Addr, error) {
	b, err := hex.DecodeString(s)
	if err != nil {
		return netip.Addr{}, err
	}
	a, ok := netip.AddrFromSlice(b)
	if !ok || !a.Is6() {
		return netip.Addr{}, errFields
	}
	return a, nil
}

// far are public addresses, of Quad9. The kernel is asked the way to them, which sends nothing: connecting a
// UDP socket only looks the route up, in all routing tables. Where there is one, a TCP connection is tried.
var far = []string{"9.9.9.9:443", "[2620:fe::fe]:443"}

const doInternal = "put the sandbox on an internal network (docker network create --internal) and on no other"

// checkRoutes looks for a route that leads past the gateway: to everywhere, or through a router.
func checkRoutes(ctx context.Context, s *surroundings) (fs []Finding) {
	rs, err := s.readRoutes()
	if err != nil {
		return warning("look at `ip route` in the sandbox", "the routes cannot be read: %s", why(err))
	}
	for _, r := range rs {
		if r.via.IsValid() && !r.everywhere() {
			fs = append(fs, warning("remove it, unless the sandbox may reach all that is there", "route %s", r)...)
		}
	}
	for _, to := range far {
		fs = append(fs, s.wayOut(ctx, rs, to)...)
	}
	if len(fs) == 0 {
		return ok("no default route, IPv4 or IPv6")
	}
	return fs
}

// wayOut looks for a route to everywhere in the family of an address, and tries whether it leads there. Some
// sandboxes cannot be without one: in Kubernetes, and on an internal network of Docker before 25. Packet
// filters have to drop what takes it then.
func (s *surroundings) wayOut(ctx context.Context, rs []route, to string) []Finding {
	is6 := netip.MustParseAddrPort(to).Addr().Is6()
	var ways []string
	for _, r := range rs {
		if r.everywhere() && r.to.Addr().Is6() == is6 {
			ways = append(ways, "route "+r.String())
		}
	}
	if len(ways) == 0 {
		c, err := s.connect(ctx, "udp", to)
		if err != nil {
			return nil
		}
		ways = []string{fmt.Sprintf("a route from %s in another table than the main one", c.LocalAddr())}
		c.Close()
	}
	way := strings.Join(ways, ", ")
	err := s.tryAll(ctx, []string{to})[0]
	if err == nil {
		return failure(doInternal, "%s, and %s is reached", way, to)
	}
	return warning("keep the packet filter that stops it (Docker before 25 has one for internal networks), or take the route away",
		"%s, but %s is not reached (%s)", way, to, why(err))
}

// checkNetworks looks at the networks that a sandbox is in. What else is in them it reaches directly.
func checkNetworks(_ context.Context, s *surroundings) []Finding {
	rs, err := s.readRoutes()
	if err != nil {
		return warning("look at `ip route` in the sandbox", "the networks cannot be read: %s", why(err))
	}
	var devs, nets []string
	for _, r := range rs {
		if r.via.IsValid() || r.everywhere() {
			continue
		}
		nets = append(nets, fmt.Sprintf("%s (%s)", r.to, r.dev))
		if !slices.Contains(devs, r.dev) {
			devs = append(devs, r.dev)
		}
	}
	text := strings.Join(nets, ", ")
	switch len(devs) {
	case 0:
		return failure("attach the sandbox to the network of the gateway", "no network")
	case 1:
		return ok("one network: %s", text)
	}
	return warning("leave the one with the gateway, or isolate the others by packet filters of the host",
		"%d networks: %s; what is in them is reached without the gateway", len(devs), text)
}
