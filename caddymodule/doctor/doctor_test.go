package doctor

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// plant is a misconfiguration, and the one finding that it must make.
type plant struct {
	name  string
	do    func(*world)
	check string
	want  Status
	says  string // the line has it
}

// test plants it, and expects that finding, of that check and no other.
func (p plant) test(t *testing.T, w *world) {
	t.Helper()
	if p.do != nil {
		p.do(w)
	}
	found := w.run()
	hit := false
	for _, f := range found {
		if f.Check != p.check {
			if f.Status != OK {
				t.Errorf("got %q, want ok: only %s is planted", f, p.check)
			}
			continue
		}
		hit = hit || f.Status == p.want && strings.Contains(f.String(), p.says)
		if f.Status > p.want {
			t.Errorf("got %q, want no worse than %s", f, p.want)
		}
		if f.Status != OK && f.Do == "" {
			t.Errorf("%q does not say what to do", f)
		}
		if line := f.String(); strings.Contains(line, "\n") || strings.Contains(line, "%!") {
			t.Errorf("%q is not one line", f.String())
		}
	}
	if !hit {
		var b bytes.Buffer
		Write(&b, found)
		t.Errorf("no %s of %s that says %q:\n%s", p.want, p.check, p.says, &b)
	}
}

// clean expects that all is ok, and each check said something.
func clean(t *testing.T, w *world, checks []check) {
	t.Helper()
	found := w.run()
	for _, f := range found {
		if f.Status != OK {
			t.Errorf("got %q, want ok", f)
		}
	}
	for _, c := range checks {
		if !slices.ContainsFunc(found, func(f Finding) bool { return f.Check == c.name }) {
			t.Errorf("nothing of check %s", c.name)
		}
	}
	if worst := Worst(found); worst != OK {
		t.Errorf("worst is %s, want ok", worst)
	}
}

func TestSandbox(t *testing.T) {
	clean(t, newSandbox(t), sandboxChecks)

	route := func(line string) func(*world) {
		return func(w *world) { w.edit("proc/net/route", "eth0\t", line+"eth0\t") }
	}
	route6 := func(line string) func(*world) {
		return func(w *world) { w.edit("proc/net/ipv6_route", "ff000000", line+"\nff000000") }
	}
	status := func(w *world, code string) { w.edit("proc/1/status", "0000000000000400", code) }
	defaultRoute := "eth0\t00000000\t" + hex4(172, 30, 0, 1) + "\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
	const none = "00000000000000000000000000000000"

	for _, p := range []plant{
		{"no resolv.conf", func(w *world) { delete(w.files, resolvConf); unnamed(w) }, "nameserver", Failure, "/etc/resolv.conf cannot be read"},
		{"no nameserver", func(w *world) { w.write(resolvConf, "# nothing\n"); unnamed(w) }, "nameserver", Failure, "no nameserver in /etc/resolv.conf"},
		{"second nameserver, out of reach", func(w *world) { w.write(resolvConf, "nameserver 172.30.0.20\nnameserver 8.8.8.8\n") },
			"nameserver", Failure, "second nameserver 8.8.8.8 in /etc/resolv.conf: clients ask all they have; start the sandbox with one --dns"},
		{"second nameserver, in reach", func(w *world) {
			w.write(resolvConf, "nameserver 172.30.0.20\nnameserver 8.8.8.8\n")
			w.serveDNS("8.8.8.8:53", resolver)
		}, "nameserver", Failure, "second nameserver 8.8.8.8"},
		{"third nameserver", func(w *world) {
			w.write(resolvConf, "nameserver 172.30.0.20\nnameserver 172.30.0.20\nnameserver fd00::53\n")
		}, "nameserver", Failure, "further nameserver fd00::53"},
		{"nameserver that is no address", func(w *world) { w.write(resolvConf, "nameserver 172.30.0.20\nnameserver dns.google\n") },
			"nameserver", Warning, `nameserver "dns.google" in /etc/resolv.conf is no address`},
		{"another resolver", func(w *world) { w.serveDNS("172.30.0.20:53", resolver); unnamed(w) },
			"nameserver", Failure, "nameserver 172.30.0.20 in /etc/resolv.conf is not sandboxallow: it answers NXDOMAIN"},
		{"no answer", func(w *world) {
			w.write(resolvConf, "nameserver 172.30.0.99\n")
			unnamed(w)
		}, "nameserver", Failure, "nameserver 172.30.0.99 in /etc/resolv.conf does not answer: network is unreachable"},
		{"a plugin before ours", func(w *world) {
			w.serveDNS("172.30.0.20:53", func(rw dns.ResponseWriter, r *dns.Msg) {
				if r.Question[0].Name == somebody {
					resolver(rw, r)
					return
				}
				plugin("not_allowed", true)(rw, r)
			})
		}, "nameserver", Failure, "the answer for example.com. comes from elsewhere: NOERROR"},
		{"no policy for this sandbox", func(w *world) { w.serveDNS("172.30.0.20:53", plugin("no_policy", true)) },
			"nameserver", Warning, "has no policy for this sandbox"},

		{"Docker asks the host's resolver", func(w *world) {
			w.write(resolvConf, "nameserver 127.0.0.11\n# ExtServers: [host(127.0.0.53)]\n")
			w.serveDNS("127.0.0.11:53", resolver)
			unnamed(w)
		}, "nameserver", Failure, "Docker asks host(127.0.0.53) in the network of the host"},
		{"Docker has a second --dns", func(w *world) {
			w.write(resolvConf, "nameserver 127.0.0.11\n# ExtServers: [172.30.0.20 8.8.8.8]\n")
			w.serveDNS("127.0.0.11:53", plugin("not_allowed", true))
		}, "nameserver", Failure, "second nameserver 8.8.8.8 that Docker forwards to"},
		{"Docker has no --dns", func(w *world) {
			w.write(resolvConf, "nameserver 127.0.0.11\n# NO EXTERNAL NAMESERVERS DEFINED\n")
			w.serveDNS("127.0.0.11:53", func(rw dns.ResponseWriter, r *dns.Msg) {
				rw.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeServerFailure))
			})
			unnamed(w)
		}, "nameserver", Failure, "nameserver 127.0.0.11 in /etc/resolv.conf is not sandboxallow: it answers SERVFAIL"},
		{"Docker tells all", func(w *world) {
			w.write(resolvConf, "nameserver 127.0.0.11\n# ExtServers: [172.30.0.20]\n")
			w.serveDNS("127.0.0.11:53", plugin("not_allowed", true))
		}, "nameserver", OK, "nameserver 127.0.0.11 is sandboxallow, through Docker's DNS (not_allowed: text)"},
		{"an old Docker tells nothing", func(w *world) {
			w.write(resolvConf, "nameserver 127.0.0.11\n")
			w.serveDNS("127.0.0.11:53", plugin("not_allowed", true))
		}, "nameserver", OK, "a second --dns would not show"},

		{"default route", route(defaultRoute), "route", Warning, "route default via 172.30.0.1 dev eth0, but 9.9.9.9:443 is not reached (network is unreachable); keep the packet filter"},
		{"default route that leads out", func(w *world) {
			route(defaultRoute)(w)
			w.serveHTTP("tcp", "9.9.9.9:443", nil)
		}, "route", Failure, "route default via 172.30.0.1 dev eth0, and 9.9.9.9:443 is reached; put the sandbox on an internal network"},
		{"default route without a router", route("eth0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0\n"),
			"route", Warning, "route default dev eth0"},
		{"half of everything", route("eth0\t" + hex4(128, 0, 0, 0) + "\t" + hex4(172, 30, 0, 1) + "\t0003\t0\t0\t0\t" + hex4(128, 0, 0, 0) + "\t0\t0\t0\n"),
			"route", Warning, "route 128.0.0.0/1 via 172.30.0.1 dev eth0"},
		{"a rejecting default route", route("eth0\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0\n"), "route", OK, "no default route"},
		{"a router", route("eth0\t" + hex4(10, 0, 0, 0) + "\t" + hex4(172, 30, 0, 1) + "\t0003\t0\t0\t0\t" + hex4(255, 0, 0, 0) + "\t0\t0\t0\n"),
			"route", Warning, "route 10.0.0.0/8 via 172.30.0.1 dev eth0"},
		{"IPv6 default route", route6(none + " 00 " + none + " 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0"),
			"route", Warning, "route default via fe80::1 dev eth0, but [2620:fe::fe]:443"},
		{"IPv6 default route that leads out", func(w *world) {
			route6(none + " 00 " + none + " 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0")(w)
			w.serveHTTP("tcp", "[2620:fe::fe]:443", nil)
		}, "route", Failure, "route default via fe80::1 dev eth0, and [2620:fe::fe]:443 is reached"},
		{"IPv6 of all that is public", route6("20000000000000000000000000000000 03 " + none + " 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0"),
			"route", Warning, "2000::/3 via fe80::1 dev eth0"},
		{"a default route in another table", func(w *world) { w.serveDNS("9.9.9.9:443", resolver) },
			"route", Warning, "in another table than the main one, but 9.9.9.9:443 is not reached"},

		{"two networks", route("eth1\t" + hex4(172, 31, 0, 0) + "\t00000000\t0001\t0\t0\t0\t" + hex4(255, 255, 0, 0) + "\t0\t0\t0\n"),
			"network", Warning, "2 networks: 172.31.0.0/16 (eth1), 172.30.0.0/24 (eth0)"},
		{"no network", func(w *world) {
			w.write("proc/net/route", "Iface\n")
			w.write("proc/net/ipv6_route", "")
		}, "network", Failure, "no network"},

		{"IPv6 that the gateway lacks", func(w *world) { w.serveDNS("172.30.0.20:53", plugin("not_allowed", false)) },
			"ipv6", Warning, "fd00:30::100 (eth0), but api.example.com has no AAAA"},
		{"IPv6, and no name to ask for", func(w *world) { w.c.Sandbox.Name = "" }, "ipv6", Warning, "give --name"},

		{"metadata service", func(w *world) { w.serveHTTP("tcp", "169.254.169.254:80", nil) },
			"metadata", Failure, "connected to 169.254.169.254:80"},
		{"metadata service by IPv6", func(w *world) { w.serveHTTP("tcp", "[fe80::a9fe:a9fe%eth0]:80", nil) },
			"metadata", Failure, "connected to [fe80::a9fe:a9fe%eth0]:80"},
		{"name server of a cloud", func(w *world) { w.serveHTTP("tcp", "169.254.169.253:53", nil) },
			"metadata", Failure, "connected to 169.254.169.253:53"},

		{"probe", func(w *world) {
			w.c.Sandbox.Probes = probes("1.1.1.1:443", "172.30.0.1:22")
			w.serveHTTP("tcp", "172.30.0.1:22", nil)
		}, "probe", Failure, "connected to 172.30.0.1:22"},

		{"admin endpoint", func(w *world) { w.serveHTTP("tcp", "172.30.0.20:2019", map[string]string{"/config/": "{}"}) },
			"admin", Failure, "an admin endpoint answers on 172.30.0.20:2019 (200)"},
		{"admin endpoint at the name's address", func(w *world) {
			w.serveHTTP("tcp", "[fd00:30::20]:2019", nil)
		}, "admin", Failure, "an admin endpoint answers on [fd00:30::20]:2019 (404)"},
		{"metrics", func(w *world) {
			w.serveHTTP("tcp", "172.30.0.20:9153", map[string]string{"/metrics": corednsMetrics})
		}, "service", Warning, "CoreDNS's metrics at http://172.30.0.20:9153/metrics are open"},
		{"health", func(w *world) { w.serveHTTP("tcp", "172.30.0.20:8080", map[string]string{"/health": "OK"}) },
			"service", Warning, "CoreDNS's health at http://172.30.0.20:8080/health"},
		{"ready", func(w *world) { w.serveHTTP("tcp", "172.30.0.20:8181", map[string]string{"/ready": "OK"}) },
			"service", Warning, "CoreDNS's ready at http://172.30.0.20:8181/ready"},
		{"profiles", func(w *world) {
			w.serveHTTP("tcp", "172.30.0.20:6053", map[string]string{"/debug/pprof/": "OK"})
		}, "service", Warning, "CoreDNS's profiles at http://172.30.0.20:6053/debug/pprof/"},
		{"a forward proxy", func(w *world) { w.serveHTTP("tcp", "172.30.0.20:8080", nil) }, "service", OK, "172.30.0.20 shows nothing"},

		{"NET_RAW", func(w *world) { status(w, "00000000a80425fb") }, "capabilities", Warning, "process 1 can have NET_RAW:"},
		{"privileged", func(w *world) { status(w, "000001ffffffffff") }, "capabilities", Warning, "NET_ADMIN, NET_RAW, SYS_ADMIN"},
		{"no status", func(w *world) { delete(w.files, "proc/1/status") }, "capabilities", Warning, "capabilities cannot be read"},
		{"no bounding set", func(w *world) { w.write("proc/1/status", "Name:\tsh\n") }, "capabilities", Warning, "no CapBnd in /proc/1/status"},

		{"Docker that leaks", func(w *world) { w.c.DockerVersion = "25.0.4" }, "docker", Failure, "CVE-2024-29018"},
	} {
		t.Run(p.name, func(t *testing.T) { p.test(t, newSandbox(t)) })
	}
}

// Two checks read the routes.
func TestRoutesUnreadable(t *testing.T) {
	for _, text := range []string{"eth0 nonsense\n", "eth0\tXYZ\t0\t0\t0\t0\t0\t0\n"} {
		w := newSandbox(t)
		w.write("proc/net/route", text)
		var got []string
		for _, f := range w.run() {
			if f.Status == Warning && strings.Contains(f.Found, "cannot be read: /proc/net/route") {
				got = append(got, f.Check)
			}
		}
		if want := []string{"route", "network"}; !slices.Equal(got, want) {
			t.Errorf("%q: got warnings of %q, want %q", text, got, want)
		}
	}
}

// Nobody is known to ask: that is said, and nothing is dialled.
func TestSandboxWithoutGateway(t *testing.T) {
	w := newSandbox(t)
	w.write(resolvConf, "nameserver 8.8.8.8\n")
	w.serveDNS("8.8.8.8:53", resolver)
	w.serveHTTP("tcp", "8.8.8.8:2019", map[string]string{"/config/": "{}"})
	w.c.Sandbox.Name = ""
	for _, f := range w.run() {
		if (f.Check == "admin" || f.Check == "service") && (f.Status != Warning || !strings.Contains(f.Do, "--gateway")) {
			t.Errorf("got %q, want a warning that names --gateway", f)
		}
	}
}

func TestGateway(t *testing.T) {
	clean(t, newGateway(t), gatewayChecks)

	admin := func(network, address string) func(*world) {
		return func(w *world) {
			w.c.Gateway.Admin = &Endpoint{network, address}
			w.c.Gateway.CaddyMetrics = "http://127.0.0.1:9180/metrics"
			w.serveHTTP("tcp", "127.0.0.1:9180", map[string]string{"/metrics": caddyMetrics})
		}
	}
	metrics := func(coredns, caddy string) func(*world) {
		return func(w *world) {
			w.serveHTTP("tcp", "127.0.0.1:9153", map[string]string{"/metrics": coredns})
			w.c.Gateway.CaddyMetrics = "http://127.0.0.1:9180/metrics"
			w.serveHTTP("tcp", "127.0.0.1:9180", map[string]string{"/metrics": caddy})
		}
	}
	other := strings.NewReplacer("0123abcd", "4567ef00").Replace
	stale := strings.NewReplacer("stale 0", "stale 1").Replace

	for _, p := range []plant{
		{"two policies", metrics(corednsMetrics, other(caddyMetrics)), "policy", Failure, "CoreDNS holds policy 0123abcd, Caddy 4567ef00"},
		{"a further document of CoreDNS", metrics(corednsMetrics+"coredns_sandboxallow_policy_info{hash=\"4567ef00\"} 1\n", caddyMetrics),
			"policy", Failure, "CoreDNS holds policy 0123abcd 4567ef00, Caddy 0123abcd"},
		{"CoreDNS is stale", metrics(stale(corednsMetrics), caddyMetrics), "policy", Warning, "CoreDNS holds an older policy"},
		{"Caddy is stale", metrics(corednsMetrics, stale(caddyMetrics)), "policy", Warning, "Caddy holds an older policy"},
		{"no CoreDNS", func(w *world) { delete(w.at, "tcp 127.0.0.1:9153") },
			"policy", Warning, "CoreDNS's policy is not known: http://127.0.0.1:9153/metrics: network is unreachable"},
		{"CoreDNS without the plugin", metrics("coredns_build_info 1\n", caddyMetrics), "policy", Warning, "no coredns_sandboxallow_policy_info at http://127.0.0.1:9153/metrics"},
		{"no metrics", metrics(corednsMetrics, "<html>"), "policy", Warning, "Caddy's policy is not known"},
		{"page that is not there", func(w *world) { w.c.Gateway.CoreDNSMetrics = "http://127.0.0.1:9153/" }, "policy", Warning, "it answers 404"},
		{"no way to Caddy's metrics", func(w *world) { w.c.Gateway.Admin = &Endpoint{} }, "policy", Warning, "its admin endpoint is off"},
		{"metrics of a TCP endpoint", func(w *world) {
			w.c.Gateway.CaddyMetrics = ""
			w.serveHTTP("tcp", "127.0.0.1:2019", map[string]string{"/metrics": other(caddyMetrics)})
			w.c.Gateway.Admin = &Endpoint{"tcp", "127.0.0.1:2019"}
			w.c.Gateway.CoreDNSMetrics = "http://127.0.0.1:9154/metrics"
			w.serveHTTP("tcp", "127.0.0.1:9154", map[string]string{"/metrics": other(corednsMetrics)})
		}, "admin", Warning, "the admin endpoint is 127.0.0.1:2019"},

		{"admin off", admin("", ""), "admin", OK, "the admin endpoint is off (Caddyfile)"},
		{"admin on every address", admin("tcp", ":2019"), "admin", Failure, "the admin endpoint is :2019 (Caddyfile): sandboxes reach it"},
		{"admin on all of IPv6", admin("tcp", "[::]:2019"), "admin", Failure, "sandboxes reach it"},
		{"admin on an address", admin("tcp", "172.30.0.20:2019"), "admin", Failure, "sandboxes reach it"},
		{"admin on a name", admin("tcp", "gateway:2019"), "admin", Failure, "sandboxes reach it"},
		{"admin on an inherited socket", admin("fd", "3"), "admin", Failure, "sandboxes reach it"},
		{"admin on localhost", admin("tcp", "localhost:2019"), "admin", Warning, "all that runs in this network namespace"},
		{"admin on IPv6 loopback", admin("tcp", "[::1]:2019"), "admin", Warning, "all that runs in this network namespace"},
		{"admin not known", func(w *world) {
			admin("", "")(w)
			w.c.Gateway.Admin, w.c.Gateway.AdminFrom = nil, "no --config"
		}, "admin", Warning, "is not known: no --config"},

		{"resolver is the sandboxes'", func(w *world) { w.serveDNS("9.9.9.9:53", plugin("not_allowed", true)) },
			"resolver", Failure, "resolver 9.9.9.9:53 is the CoreDNS of the sandboxes"},
		{"configured resolver is the sandboxes'", func(w *world) {
			w.c.Gateway.Resolvers = []string{"9.9.9.9", "172.30.0.20:5353"}
			w.serveDNS("172.30.0.20:5353", plugin("not_allowed", true))
		}, "resolver", Failure, "resolver 172.30.0.20:5353 is the CoreDNS of the sandboxes"},
		{"resolver does not answer", func(w *world) { w.write(resolvConf, "nameserver 9.9.9.10\n") },
			"resolver", Failure, "resolver 9.9.9.10:53 does not answer: network is unreachable"},
		{"no resolver", func(w *world) { w.write(resolvConf, "") }, "resolver", Failure, "no nameserver in /etc/resolv.conf"},
		{"no resolv.conf", func(w *world) { delete(w.files, resolvConf) }, "resolver", Failure, "resolv.conf"},
		{"resolver that is no address", func(w *world) { w.c.Gateway.Resolvers = []string{"dns.google"} }, "resolver", Failure, `"dns.google"`},

		{"metadata service", func(w *world) { w.serveHTTP("tcp", "168.63.129.16:80", nil) }, "metadata", Warning, "connected to 168.63.129.16:80"},

		{"forwarding", func(w *world) { w.write("proc/sys/net/ipv4/ip_forward", "1\n") }, "forwarding", Warning, "net.ipv4.ip_forward is on"},
		{"IPv6 forwarding", func(w *world) { w.write("proc/sys/net/ipv6/conf/all/forwarding", "1\n") },
			"forwarding", Warning, "net.ipv6.conf.all.forwarding is on"},
		{"forwarding unknown", func(w *world) { delete(w.files, "proc/sys/net/ipv4/ip_forward") }, "forwarding", Warning, "cannot be read"},
		{"no IPv6", func(w *world) { delete(w.files, "proc/sys/net/ipv6/conf/all/forwarding") },
			"forwarding", OK, "nothing is forwarded (net.ipv4.ip_forward)"},

		{"few descriptors", func(w *world) { w.c.Gateway.Descriptors, w.c.Gateway.Tunnels = 1024, 448 },
			"descriptors", Warning, "1024 descriptors may be open, for 448 tunnels"},
		{"descriptors unknown", func(w *world) { w.c.Gateway.Descriptors = 0 }, "descriptors", Warning, "is not known"},

		{"Docker's API", func(w *world) {
			w.c.DockerVersion = ""
			w.c.Docker = w.serveHTTP("unix", w.socket("docker.sock"), map[string]string{"/version": `{"Version":"26.0.0-rc2"}`})
		}, "docker", Failure, "Docker 26.0.0-rc2 has CVE-2024-29018"},
		{"Docker's API as a URL", func(w *world) {
			w.c.DockerVersion = ""
			w.c.Docker = "unix://" + w.serveHTTP("unix", w.socket("docker.sock"), map[string]string{"/version": `{"Version":"20.10.24+dfsg1"}`})
		}, "docker", Warning, "unless your distribution has put the fix in"},
		{"Docker's API over TCP", func(w *world) {
			w.c.DockerVersion, w.c.Docker = "", "tcp://172.17.0.1:2375"
			w.serveHTTP("tcp", "172.17.0.1:2375", map[string]string{"/version": `{"Version":"27.5.1"}`})
		}, "docker", OK, "Docker 27.5.1 has no known leak"},
		{"Podman", func(w *world) {
			w.c.DockerVersion = ""
			w.c.Docker = w.serveHTTP("unix", w.socket("podman.sock"), map[string]string{"/version": `{"Version":"4.3.1","Components":[{"Name":"Podman Engine"}]}`})
		}, "docker", OK, "Podman Engine 4.3.1 is not Docker Engine"},
		{"no such socket", func(w *world) { w.c.DockerVersion, w.c.Docker = "", "/nowhere/docker.sock" },
			"docker", Warning, "/nowhere/docker.sock: no such file or directory; run `docker version"},
		{"no version", func(w *world) {
			w.c.DockerVersion = ""
			w.c.Docker = w.serveHTTP("unix", w.socket("docker.sock"), map[string]string{"/version": "nonsense"})
		}, "docker", Warning, "the version of Docker is not known"},
		{"SSH", func(w *world) { w.c.DockerVersion, w.c.Docker = "", "ssh://host" }, "docker", Warning, "unix:///path"},
		{"a container without the socket", func(w *world) { w.c.DockerVersion = ""; w.write(".dockerenv", "") },
			"docker", Warning, "no /var/run/docker.sock here"},
		{"no Docker", func(w *world) { w.c.DockerVersion = "" }, "docker", OK, "not a container of Docker"},
	} {
		t.Run(p.name, func(t *testing.T) { p.test(t, newGateway(t)) })
	}
}

func TestJudgeDocker(t *testing.T) {
	for _, tc := range []struct {
		version string
		want    Status
		says    string
	}{
		{"17.05.0-ce", Failure, "CVE-2024-29018"},
		{"18.09.1", Failure, "CVE-2024-29018"},
		{"20.10.24", Failure, "CVE-2024-29018"},
		{"20.10.24+dfsg1", Warning, "CVE-2024-29018"},
		{"23.0.10", Failure, "CVE-2024-29018"},
		{"23.0.11", OK, ""},
		{"23.0.15", OK, ""},
		{"24.0.0-rc.1", Failure, "CVE-2024-29018"},
		{"24.0.9", Failure, "CVE-2024-29018"},
		{"25.0.0-beta.1", Failure, "CVE-2024-29018"},
		{"25.0.4", Failure, "CVE-2024-29018"},
		{"25.0.5", Warning, "47822"},
		{"25.0.8", OK, ""},
		{"26.0.0-rc1", Failure, "CVE-2024-29018"},
		{"26.0.0-rc2", Failure, "CVE-2024-29018"},
		{"26.0.0-rc3", Warning, "47822"},
		{"26.0.0", Warning, "47822"},
		{"26.1.2", Warning, "47822"},
		{"26.1.3", OK, ""},
		{"26.1.5+dfsg1", OK, ""},
		{"27.0.1-rc.1", OK, ""},
		{"28.2.2", OK, ""},
		{"", Warning, "is none"},
		{"master-dockerproject", Warning, "is none"},
	} {
		t.Run(tc.version, func(t *testing.T) {
			f := judgeDocker(tc.version)[0]
			if f.Status != tc.want || !strings.Contains(f.Found, tc.says) {
				t.Errorf("got %s %q, want %s with %q", f.Status, f.Found, tc.want, tc.says)
			}
		})
	}
}

func TestWrite(t *testing.T) {
	fs := []Finding{
		{Failure, "nameserver", "second nameserver 8.8.8.8", "start it with one --dns"},
		{OK, "route", "no default\nroute \x1b[31m", ""},
	}
	var text, objects bytes.Buffer
	if err := Write(&text, fs); err != nil {
		t.Fatal(err)
	}
	if err := WriteJSON(&objects, fs); err != nil {
		t.Fatal(err)
	}
	if got, want := text.String(), ""+
		"failure  nameserver    second nameserver 8.8.8.8; start it with one --dns\n"+
		"ok       route         no default route  [31m\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got, want := objects.String(), ""+
		`{"status":"failure","check":"nameserver","found":"second nameserver 8.8.8.8","do":"start it with one --dns"}`+"\n"+
		`{"status":"ok","check":"route","found":"no default\nroute \u001b[31m"}`+"\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// unnamed is for a sandbox that learns nothing of the gateway from its name server.
func unnamed(w *world) {
	w.c.Sandbox.Gateways = []netip.Addr{netip.MustParseAddr("172.30.0.20")}
	w.write("proc/net/if_inet6", "")
}

func probes(ss ...string) (aps []netip.AddrPort) {
	for _, s := range ss {
		aps = append(aps, netip.MustParseAddrPort(s))
	}
	return aps
}
