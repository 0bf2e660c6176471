//go:build linux

package e2e

import "net/netip"

// The listeners of the gateway.
var (
	gatewayTLS   = netip.AddrPortFrom(gatewayAddr, 443)
	gatewayHTTP  = netip.AddrPortFrom(gatewayAddr, 80)
	gatewayProxy = netip.AddrPortFrom(gatewayAddr, 8080)
)

// way is how a client comes to a name: by which listener of the gateway, and by what it was told of it.
type way struct {
	name   string
	scheme string // of the URL
	layer  string // of the decision log

	variables bool // the environment names the forward proxy
	told      bool // and clients that do not look there have it as an option
}

var (
	overTLS     = way{name: "tls", scheme: "https", layer: "tls"}
	overHTTP    = way{name: "http", scheme: "http", layer: "http"}
	byConnect   = way{name: "connect", scheme: "https", layer: "proxy", variables: true, told: true}
	byAbsolute  = way{name: "absolute-form", scheme: "http", layer: "proxy", variables: true, told: true}
	byVariables = way{name: "variables", scheme: "https", layer: "tls", variables: true}
)

// ways are those of the matrix.
var ways = []way{overTLS, overHTTP, byConnect, byAbsolute}

// url is the page of a host.
func (w way) url(host string) string { return w.scheme + "://" + host + "/" }

// port is that of the URL.
func (w way) port() uint16 {
	switch w.scheme {
	case "https":
		return 443
	case "postgres":
		return dbPort
	}
	return 80
}

const (
	proxyHost = "172.30.0.20" // gatewayProxy, in two parts
	proxyPort = "8080"
	proxyURL  = "http://" + proxyHost + ":" + proxyPort
)

// proxyVariables name the forward proxy, by address: whoever asks it asks no nameserver. Each program reads
// the case that it likes.
var proxyVariables = []string{
	"http_proxy=" + proxyURL, "https_proxy=" + proxyURL, "no_proxy=localhost,127.0.0.1",
	"HTTP_PROXY=" + proxyURL, "HTTPS_PROXY=" + proxyURL, "NO_PROXY=localhost,127.0.0.1",
}

// command is a command line with the environment of the way.
func (w way) command(line ...string) []string {
	if !w.variables {
		return line
	}
	return append(append([]string{"env"}, proxyVariables...), line...)
}
