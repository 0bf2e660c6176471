package policy

import "net/netip"

// The cloud metadata services hand out credentials to whoever asks from inside a machine. Their names
// need an exact rule in every mode, and no `private` line reaches their addresses. Both lists come from
// the vendors' documentation; the address table of internal/floor has the vendor of each.

var metadataNames = []string{
	"metadata.google.internal",
	"metadata.goog",
	"metadata",
	"instance-data.ec2.internal",
	"instance-data",
	"metadata.azure.com",
	"metadata.oraclecloud.com",
	"metadata.tencentyun.com",
	"metadata.platformequinix.com",
	"metadata.packet.net",
	"api.metadata.cloud.ibm.com",
	"kubernetes.default.svc",
}

var metadataAddrs = parseAddrs(
	"169.254.169.254",
	"169.254.169.253",
	"169.254.169.123",
	"169.254.170.2",
	"169.254.170.23",
	"169.254.169.252",
	"169.254.169.250",
	"169.254.20.10",
	"169.254.42.42",
	"169.254.0.23",
	"168.63.129.16", // Azure: a public address
	"100.100.100.200",
	"192.0.0.192",
	"fd00:ec2::254",
	"fd00:ec2::253",
	"fd00:ec2::123",
	"fd00:ec2::23",
	"fd20:ce::254",
	"fd00:c1::a9fe:a9fe",
	"fd00:42::42",
	"fd00:100::100:200",
	"fd00:a9fe:a9fe::1",
	"fe80::a9fe:a9fe",
)

func parseAddrs(ss ...string) map[netip.Addr]struct{} {
	m := make(map[netip.Addr]struct{}, len(ss))
	for _, s := range ss {
		m[netip.MustParseAddr(s)] = struct{}{}
	}
	return m
}

// MetadataName reports whether n is the name of a cloud metadata service.
func MetadataName(n Name) bool {
	for _, m := range metadataNames {
		if n.s == m {
			return true
		}
	}
	return false
}

// MetadataAddr reports whether a, in whatever spelling, is the address of a cloud metadata service.
func MetadataAddr(a netip.Addr) bool {
	_, ok := metadataAddrs[a.Unmap().WithZone("")]
	return ok
}

// metadataIn counts the metadata addresses in p, and reports whether p has no other address.
func metadataIn(p netip.Prefix) (n int, only bool) {
	for a := range metadataAddrs {
		if p.Contains(a) {
			n++
		}
	}
	host := p.Addr().BitLen() - p.Bits()
	return n, host < 8 && n == 1<<host
}
