package doctor

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/miekg/dns"
)

// world is the surroundings of a test: files, and servers of the test's behind addresses of its choice.
// Whatever else is dialled has no route.
type world struct {
	t     *testing.T
	c     Config
	files fstest.MapFS
	at    map[string]string // "udp 8.8.8.8:53" to where the test serves it
}

func (w *world) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if network == "unix" {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	to, ok := w.at[network+" "+address]
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}
	}
	return new(net.Dialer).DialContext(ctx, network, to)
}

func (w *world) run() []Finding {
	return run(context.Background(), &surroundings{Config: w.c, files: w.files, dial: w.dial})
}

// write sets a file.
func (w *world) write(name, text string) { w.files[name] = &fstest.MapFile{Data: []byte(text)} }

// edit replaces a part of a file that is there.
func (w *world) edit(name, old, new string) {
	w.t.Helper()
	before := string(w.files[name].Data)
	if !strings.Contains(before, old) {
		w.t.Fatalf("%s has no %q", name, old)
	}
	w.write(name, strings.ReplaceAll(before, old, new))
}

// serveDNS answers questions to an address.
func (w *world) serveDNS(address string, handle dns.HandlerFunc) {
	w.t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	up := make(chan struct{})
	srv := &dns.Server{PacketConn: pc, Handler: handle, NotifyStartedFunc: func() { close(up) }}
	go srv.ActivateAndServe()
	<-up
	w.t.Cleanup(func() { srv.Shutdown() })
	w.at["udp "+address] = pc.LocalAddr().String()
}

// serveHTTP answers requests to an address, or to a unix socket, whose path it returns.
func (w *world) serveHTTP(network, address string, pages map[string]string) string {
	w.t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(rw, r)
			return
		}
		fmt.Fprint(rw, page)
	}))
	if network == "unix" {
		l, err := net.Listen("unix", address)
		if err != nil {
			w.t.Fatal(err)
		}
		srv.Listener.Close()
		srv.Listener = l
	}
	srv.Start()
	w.t.Cleanup(srv.Close)
	w.at[network+" "+address] = srv.Listener.Addr().String()
	return address
}

// socket is a path for a unix socket.
func (w *world) socket(name string) string {
	w.t.Helper()
	dir, err := os.MkdirTemp("", "doctor") // t.TempDir is too long for a socket
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, name)
}

// plugin answers as the plugin does under a strict policy that allows api.example.com alone.
func plugin(reason string, aaaa bool) dns.HandlerFunc {
	return func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		m.Authoritative = true
		q := r.Question[0]
		hdr := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 60}
		allowed := q.Name == "api.example.com."
		switch {
		case allowed && q.Qtype == dns.TypeA:
			m.Answer = []dns.RR{&dns.A{Hdr: hdr, A: net.ParseIP("172.30.0.20")}}
		case allowed && q.Qtype == dns.TypeAAAA && aaaa:
			m.Answer = []dns.RR{&dns.AAAA{Hdr: hdr, AAAA: net.ParseIP("fd00:30::20")}}
		default:
			hdr.Name, hdr.Rrtype = ".", dns.TypeSOA
			m.Ns = []dns.RR{&dns.SOA{Hdr: hdr, Ns: mname, Mbox: "hostmaster.invalid."}}
		}
		if opt := r.IsEdns0(); opt != nil && !allowed {
			m.Rcode = dns.RcodeNameError
			m.SetEdns0(opt.UDPSize(), false)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeBlocked, ExtraText: reason + ": text"}}
		}
		w.WriteMsg(m)
	}
}

// resolver answers as any resolver does: what is not nobody exists.
func resolver(w dns.ResponseWriter, r *dns.Msg) {
	m := new(dns.Msg).SetReply(r)
	if r.Question[0].Name == nobody {
		m.Rcode = dns.RcodeNameError
	}
	hdr := dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 60}
	m.Ns = []dns.RR{&dns.SOA{Hdr: hdr, Ns: "a.root-servers.net.", Mbox: "nstld.verisign-grs.com."}}
	w.WriteMsg(m)
}

// newSandbox is a sandbox with which nothing is wrong.
func newSandbox(t *testing.T) *world {
	w := &world{t: t, files: fstest.MapFS{}, at: map[string]string{}}
	w.c.FromSandbox = true
	w.c.Sandbox.Name = "api.example.com"
	w.c.DockerVersion = "28.2.2"
	w.write(resolvConf, "nameserver 172.30.0.20\noptions ndots:0\n")
	w.write("proc/net/route", ""+
		"Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"+
		"eth0\t"+hex4(172, 30, 0, 0)+"\t00000000\t0001\t0\t0\t0\t"+hex4(255, 255, 255, 0)+"\t0\t0\t0\n")
	w.write("proc/net/ipv6_route", ""+
		"fd000030000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n"+
		"fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n"+
		"00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n"+
		"fd000030000000000000000000000100 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001     eth0\n"+
		"ff000000000000000000000000000000 08 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000002 00000000 00000001     eth0\n")
	w.write("proc/net/if_inet6", ""+
		"00000000000000000000000000000001 01 80 10 80       lo\n"+
		"fd000030000000000000000000000100 02 40 00 80     eth0\n"+
		"fe800000000000000042acfffe1e0064 02 40 20 80     eth0\n")
	w.write("proc/1/status", "Name:\tsh\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000400\nCapAmb:\t0000000000000000\n")
	w.serveDNS("172.30.0.20:53", plugin("not_allowed", true))
	return w
}

const corednsMetrics = `# HELP coredns_sandboxallow_policy_info Policies in force, by their hash. Always 1.
# TYPE coredns_sandboxallow_policy_info gauge
coredns_sandboxallow_policy_info{hash="0123abcd"} 1
# TYPE coredns_sandboxallow_policy_stale gauge
coredns_sandboxallow_policy_stale 0
`

var caddyMetrics = strings.ReplaceAll(corednsMetrics, "coredns_", "caddy_")

// newGateway is a gateway with which nothing is wrong.
func newGateway(t *testing.T) *world {
	w := &world{t: t, files: fstest.MapFS{}, at: map[string]string{}}
	w.c.DockerVersion = "28.2.2"
	w.c.Gateway = Gateway{
		Admin:          &Endpoint{"unix", w.serveHTTP("unix", w.socket("admin.sock"), map[string]string{"/metrics": caddyMetrics})},
		AdminFrom:      "Caddyfile",
		CoreDNSMetrics: "http://127.0.0.1:9153/metrics",
		Descriptors:    1 << 20,
		Tunnels:        1 << 18,
	}
	w.serveHTTP("tcp", "127.0.0.1:9153", map[string]string{"/metrics": corednsMetrics})
	w.write(resolvConf, "nameserver 9.9.9.9\n")
	w.serveDNS("9.9.9.9:53", resolver)
	w.write("proc/sys/net/ipv4/ip_forward", "0\n")
	w.write("proc/sys/net/ipv6/conf/all/forwarding", "0\n")
	w.write("proc/net/if_inet6", "")
	return w
}

// hex4 is an IPv4 address as Linux writes it on this machine.
func hex4(a, b, c, d byte) string {
	return fmt.Sprintf("%08X", binary.NativeEndian.Uint32([]byte{a, b, c, d}))
}
