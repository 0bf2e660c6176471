package floor

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// The table of special-purpose ranges. Its rows come from
//
//   - the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890, RFC 8190), all of them, those
//     registered as globally reachable too: relays, sinks and identifiers are no web servers;
//   - the IANA IPv4 Multicast, IPv6 Multicast and IPv6 Address Space registries (RFC 5771, RFC 4291), and
//     ranges that are deprecated and not in a registry any more, each with its RFC;
//   - the cloud vendors' documentation of their metadata and host services ("vendor docs").
//
// A row that says no is a container or a control: it denies nothing, nor does it allow what another row
// denies.
//
//go:embed special_purpose.csv
var specialPurpose string

// Entry is a row of the table.
type Entry struct {
	Prefix netip.Prefix
	Name   string // such as "Link-local"
	Source string // the RFC, or "vendor docs"
}

const vendorDocs = "vendor docs"

var (
	// global6 is all of IPv6 that IANA has made global unicast (RFC 4291 §2.4). What is outside is denied
	// whatever the table says.
	global6 = netip.MustParsePrefix("2000::/3")

	special = parse(specialPurpose) // the rows that deny
	widest  = outermost(special)
)

// parse reads the rows that deny. The table is part of the program: a fault in it is a panic at start.
func parse(table string) []Entry {
	rows, err := csv.NewReader(strings.NewReader(table)).ReadAll()
	if err != nil {
		panic(fmt.Sprintf("special_purpose.csv: %v", err))
	}
	var entries []Entry
	for i, row := range rows[1:] {
		switch deny := row[3]; deny {
		case "yes":
			entries = append(entries, Entry{netip.MustParsePrefix(row[0]), row[1], row[2]})
		case "no":
		default:
			panic(fmt.Sprintf("special_purpose.csv:%d: should_deny is %q, only \"yes\" and \"no\" are accepted", i+2, deny))
		}
	}
	return entries
}

// outermost returns the prefixes that lie in no other, in order of their addresses, IPv4 first. Two
// prefixes are nested or disjoint, so at most one of these has a given address, and a binary search finds
// it.
func outermost(entries []Entry) []netip.Prefix {
	all := make([]netip.Prefix, len(entries))
	for i, e := range entries {
		all[i] = e.Prefix.Masked()
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	var outer []netip.Prefix
	for _, p := range all {
		if n := len(outer); n == 0 || !outer[n-1].Overlaps(p) {
			outer = append(outer, p)
		}
	}
	return outer
}

// Special reports whether a may not be dialled for what it is, and the range that says so: the narrowest
// one, registries before vendors. An IPv4-mapped address is its IPv4 address. An address with a zone and
// one that is not valid are always denied, with the zero Entry if they are in no range.
func Special(a netip.Addr) (entry Entry, denied bool) {
	zoned := a.Zone() != "" // Unmap drops it
	a = a.Unmap().WithZone("")
	switch {
	case !a.IsValid(), zoned, inSpecial(a):
		return narrowest(a), true
	case a.Is6() && !global6.Contains(a):
		return Entry{netip.PrefixFrom(netip.IPv6Unspecified(), 0), "not global unicast", "RFC4291"}, true
	}
	return Entry{}, false
}

func inSpecial(a netip.Addr) bool {
	i, exact := slices.BinarySearchFunc(widest, a, func(p netip.Prefix, a netip.Addr) int {
		return p.Addr().Compare(a)
	})
	return exact || i > 0 && widest[i-1].Contains(a)
}

// narrowest finds the row to blame. Only a refusal pays for it.
func narrowest(a netip.Addr) (best Entry) {
	for _, e := range special {
		if !e.Prefix.Contains(a) {
			continue
		}
		vendor, bestVendor := e.Source == vendorDocs, best.Source == vendorDocs
		switch {
		case best.Name == "", bestVendor && !vendor, bestVendor == vendor && e.Prefix.Bits() > best.Prefix.Bits():
			best = e
		}
	}
	return best
}
