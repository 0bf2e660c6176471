package doctor

import (
	"net/netip"
	"regexp"
	"strings"

	"github.com/miekg/dns"
)

const (
	resolvConf = "etc/resolv.conf"
	dnsPort    = 53
)

// dockerDNS is Docker's own name server in a container. It answers the names of containers and forwards
// all others.
var dockerDNS = netip.MustParseAddr("127.0.0.11")

// stub is whom a client's stub resolver asks.
type stub struct {
	servers []netip.Addr // of /etc/resolv.conf
	odd     []string     // what stands there in place of an address

	// What Docker writes as a comment: where its own name server forwards to, by the container's network
	// and by the host's. told is false where there is no such comment, as before Docker 25.
	told     bool
	forwards []netip.Addr
	byHost   []string
}

// docker reports whether a client asks Docker's own name server.
func (st stub) docker() bool {
	for _, a := range st.servers {
		if a == dockerDNS {
			return true
		}
	}
	return false
}

// Comments such as
//
//	# ExtServers: [172.30.0.10 host(127.0.0.53)]
//	# NO EXTERNAL NAMESERVERS DEFINED
var (
	extServers   = regexp.MustCompile(`(?m)^# ExtServers: \[(.*)\]\s*$`)
	noExtServers = regexp.MustCompile(`(?m)^# NO EXTERNAL NAMESERVERS DEFINED\s*$`)
)

// readStub reads /etc/resolv.conf.
func (s *surroundings) readStub() (stub, error) {
	text, err := s.read(resolvConf)
	if err != nil {
		return stub{}, err
	}
	conf, err := dns.ClientConfigFromReader(strings.NewReader(text))
	if err != nil {
		return stub{}, err
	}
	var st stub
	for _, server := range conf.Servers {
		if a, err := netip.ParseAddr(server); err == nil {
			st.servers = append(st.servers, a)
		} else {
			st.odd = append(st.odd, server)
		}
	}
	st.told = noExtServers.MatchString(text)
	if m := extServers.FindStringSubmatch(text); m != nil {
		st.told = true
		for _, server := range strings.Fields(m[1]) {
			if a, err := netip.ParseAddr(server); err == nil {
				st.forwards = append(st.forwards, a)
				continue
			}
			// host(ADDRESS), or something that is not known yet and is as bad for all that is known.
			st.byHost = append(st.byHost, server)
		}
	}
	return st, nil
}
