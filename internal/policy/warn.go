package policy

import (
	"fmt"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// ruleWarnings returns what an operator should know about an allow rule.
func ruleWarnings(r ruleSpec) []string {
	var ws []string
	n := r.name.s
	if r.scope == exact {
		if strings.IndexByte(n, '.') < 0 {
			ws = append(ws, fmt.Sprintf("%q is a single label, no public name", n))
		}
	} else {
		switch suffix, icann := publicsuffix.PublicSuffix(n); {
		case strings.IndexByte(n, '.') < 0 && !icann:
			ws = append(ws, fmt.Sprintf("every name below %q is allowed, which is no public top-level domain", n))
		case strings.IndexByte(n, '.') < 0:
			ws = append(ws, fmt.Sprintf("every name below the top-level domain %q is allowed, anybody can register one", n))
		case suffix == n && (icann || strings.IndexByte(suffix, '.') >= 0):
			ws = append(ws, fmt.Sprintf("anybody can register names below the public suffix %q", n))
		case tenants[n]:
			ws = append(ws, fmt.Sprintf("customers of %q choose names below it, anybody can be one", n))
		}
	}
	var doh []string
	for _, d := range dohResolvers {
		if r.matches(Name{d}) {
			doh = append(doh, d)
		}
	}
	switch len(doh) {
	case 0:
	case 1:
		ws = append(ws, fmt.Sprintf("%q is a DNS-over-HTTPS resolver: with it the sandbox can look up any name and tunnel through DNS", doh[0]))
	default:
		ws = append(ws, fmt.Sprintf("%q and %d more are DNS-over-HTTPS resolvers: with them the sandbox can look up any name and tunnel through DNS", doh[0], len(doh)-1))
	}
	return ws
}

// tenants are domains that are no public suffixes, but below which customers of a provider get names.
var tenants = set(
	"amazonaws.com", "api.aws", "azure.com", "core.windows.net", "windows.net", "googleapis.com",
	"googleusercontent.com", "cloudfront.net", "akamaized.net", "akamaihd.net", "edgekey.net", "fastly.net",
	"oraclecloud.com", "aliyuncs.com", "myqcloud.com", "digitaloceanspaces.com", "backblazeb2.com",
	"wasabisys.com", "r2.cloudflarestorage.com", "cloudflarestorage.com", "supabase.co", "firebaseio.com",
	"ngrok.io", "ngrok.app", "trycloudflare.com", "sharepoint.com", "slack.com", "webhook.site",
)

// dohResolvers are the public resolvers that clients switch to by themselves or that are well known
// (RFC 8484). use-application-dns.net is the canary by which a network tells Firefox to leave DoH off.
var dohResolvers = []string{
	"dns.google", "dns.google.com", "dns64.dns.google",
	"cloudflare-dns.com", "mozilla.cloudflare-dns.com", "chrome.cloudflare-dns.com", "one.one.one.one",
	"security.cloudflare-dns.com", "family.cloudflare-dns.com", "dns.cloudflare.com",
	"dns.quad9.net", "dns9.quad9.net", "dns10.quad9.net", "dns11.quad9.net",
	"doh.opendns.com", "doh.familyshield.opendns.com", "dns.nextdns.io", "doh.cleanbrowsing.org",
	"dns.adguard.com", "dns.adguard-dns.com", "unfiltered.adguard-dns.com", "dns.controld.com", "freedns.controld.com",
	"doh.mullvad.net", "dns.mullvad.net", "doh.dns.sb", "dns.alidns.com", "doh.pub", "dns.twnic.tw",
	"doh.xfinity.com", "dns.switch.ch", "doh.libredns.gr", "doh.applied-privacy.net", "use-application-dns.net",
}

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}
