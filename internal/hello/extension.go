package hello

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// The extensions whose inside crypto/tls parses (IANA, TLS ExtensionType Values).
const (
	extServerName              = 0      // RFC 6066 §3
	extStatusRequest           = 5      // RFC 6066 §8
	extSupportedGroups         = 10     // RFC 8446 §4.2.7
	extECPointFormats          = 11     // RFC 8422 §5.1.2
	extSignatureAlgorithms     = 13     // RFC 8446 §4.2.3
	extALPN                    = 16     // RFC 7301 §3.1
	extSCT                     = 18     // RFC 6962 §3.3.1
	extExtendedMasterSecret    = 23     // RFC 7627 §5.1
	extPreSharedKey            = 41     // RFC 8446 §4.2.11
	extEarlyData               = 42     // RFC 8446 §4.2.10
	extSupportedVersions       = 43     // RFC 8446 §4.2.1
	extCookie                  = 44     // RFC 8446 §4.2.2
	extPSKModes                = 45     // RFC 8446 §4.2.9
	extSignatureAlgorithmsCert = 50     // RFC 8446 §4.2.3
	extKeyShare                = 51     // RFC 8446 §4.2.8
	extECH                     = 0xfe0d // RFC 9849 §5
	extRenegotiationInfo       = 0xff01 // RFC 5746 §3.2
)

const (
	nameTypeHost = 0      // RFC 6066 §3, the only one there is
	versionTLS13 = 0x0304 // in supported_versions
	echOuter     = 0
	echInner     = 1
)

// extensions returns the host name of server_name, nil without one, and whether TLS 1.3 is offered, from
// the inside of a hello's extension block.
func extensions(block []byte) (name []byte, tls13 bool, err error) {
	var seen idSet
	for rest := block; len(rest) > 0; {
		id, data, after, ok := cutExtension(rest)
		if !ok {
			return nil, false, malformed("extensions are cut short")
		}
		rest = after
		if !seen.add(id) {
			return nil, false, malformed(fmt.Sprintf("extension %d appears twice", id))
		}
		switch {
		case id == extServerName:
			if name, err = hostName(data); err != nil {
				return nil, false, err
			}
			continue
		case id == extPreSharedKey && len(rest) > 0:
			return nil, false, malformed("extension 41, pre_shared_key, is not the last")
		case id == extSupportedVersions:
			tls13 = offersTLS13(data)
		}
		if !wellFormed(id, data) {
			return nil, false, malformed(fmt.Sprintf("inside of extension %d is malformed", id))
		}
	}
	if seen.overflow && repeats(block) {
		return nil, false, malformed("an extension appears twice")
	}
	return name, tls13, nil
}

// cutExtension takes the first extension off a block.
func cutExtension(block []byte) (id uint16, data, rest []byte, ok bool) {
	if len(block) < 2 {
		return 0, nil, nil, false
	}
	data, rest, ok = cut16(block[2:])
	return binary.BigEndian.Uint16(block), data, rest, ok
}

// hostName returns the one host_name in a server_name extension. RFC 6066 lets the list hold names of
// other types, of which none was ever defined, and servers have differed on which entry counts: refused.
func hostName(data []byte) ([]byte, error) {
	list, ok := only16(data)
	if !ok {
		return nil, malformed("length of the server_name list is not that of its extension")
	}
	if len(list) == 0 {
		return nil, malformed("server_name list is empty")
	}
	name, rest, ok := cut16(list[1:])
	switch {
	case !ok:
		return nil, malformed("name in server_name is cut short")
	case list[0] != nameTypeHost:
		return nil, malformed(fmt.Sprintf("server_name is of type %d, not host_name", list[0]))
	case len(name) == 0:
		return nil, malformed("host_name is empty")
	case len(rest) > 0:
		return nil, malformed("server_name holds more than one name")
	}
	return name, nil
}

func offersTLS13(data []byte) bool {
	list, _ := only8(data)
	for ; len(list) >= 2; list = list[2:] {
		if binary.BigEndian.Uint16(list) == versionTLS13 {
			return true
		}
	}
	return false
}

// wellFormed reports whether crypto/tls would go on after the inside of an extension. What it does not
// look into, we do not either.
func wellFormed(id uint16, data []byte) bool {
	switch id {
	case extSupportedGroups, extSignatureAlgorithms, extSignatureAlgorithmsCert:
		list, ok := only16(data)
		return ok && pairs(list)
	case extSupportedVersions:
		list, ok := only8(data)
		return ok && pairs(list)
	case extSCT, extExtendedMasterSecret, extEarlyData:
		return len(data) == 0
	case extECPointFormats:
		list, ok := only8(data)
		return ok && len(list) > 0
	case extPSKModes:
		_, ok := only8(data)
		return ok
	case extCookie:
		cookie, ok := only16(data)
		return ok && len(cookie) > 0
	case extRenegotiationInfo:
		verify, ok := only8(data)
		return ok && len(verify) == 0 // in the first handshake of a connection
	case extStatusRequest:
		return statusRequest(data)
	case extALPN:
		return protocols(data)
	case extKeyShare:
		return keyShares(data)
	case extPreSharedKey:
		return preSharedKeys(data)
	case extECH:
		return encryptedHello(data)
	}
	return true
}

// pairs reports whether list is a non-empty one of 16-bit values.
func pairs(list []byte) bool { return len(list) > 0 && len(list)%2 == 0 }

func statusRequest(data []byte) bool {
	if len(data) == 0 {
		return false
	}
	_, rest, ok := cut16(data[1:]) // behind the type of the status
	if !ok {
		return false
	}
	_, ok = only16(rest)
	return ok
}

func protocols(data []byte) bool {
	list, ok := only16(data)
	if !ok || len(list) == 0 {
		return false
	}
	for len(list) > 0 {
		var proto []byte
		if proto, list, ok = cut8(list); !ok || len(proto) == 0 {
			return false
		}
	}
	return true
}

func keyShares(data []byte) bool {
	list, ok := only16(data)
	if !ok {
		return false
	}
	for len(list) > 0 {
		if len(list) < 2 { // the group
			return false
		}
		var key []byte
		if key, list, ok = cut16(list[2:]); !ok || len(key) == 0 {
			return false
		}
	}
	return true
}

// preSharedKeys wants one binder for each identity.
func preSharedKeys(data []byte) bool {
	identities, rest, ok := cut16(data)
	if !ok || len(identities) == 0 {
		return false
	}
	binders, ok := only16(rest)
	if !ok {
		return false
	}
	for len(identities) > 0 {
		var ticket, binder []byte
		if ticket, identities, ok = cut16(identities); !ok || len(ticket) == 0 || len(identities) < 4 {
			return false
		}
		identities = identities[4:] // the ticket's age
		if binder, binders, ok = cut8(binders); !ok || len(binder) == 0 {
			return false
		}
	}
	return len(binders) == 0
}

// encryptedHello checks the outer part only. The inner name is the server's to decrypt and to serve; the
// name that the gateway sees and allows is the outer one.
func encryptedHello(data []byte) bool {
	if len(data) == 0 {
		return true // crypto/tls takes it for none
	}
	switch data[0] {
	case echInner:
		return len(data) == 1
	case echOuter:
		if len(data) < 6 { // type, cipher suite, configuration
			return false
		}
		_, rest, ok := cut16(data[6:])
		if !ok {
			return false
		}
		_, _, ok = cut16(rest)
		return ok
	}
	return false
}

// idSet notices extensions that appear twice. Registered numbers are below 64 but for a handful; others
// beyond what it has room for are left to repeats.
type idSet struct {
	low      uint64 // bit i: extension i
	high     [8]uint16
	n        int // of high in use
	overflow bool
}

// add reports whether id is new, as far as s can tell.
func (s *idSet) add(id uint16) bool {
	if id < 64 {
		bit := uint64(1) << id
		if s.low&bit != 0 {
			return false
		}
		s.low |= bit
		return true
	}
	if slices.Contains(s.high[:s.n], id) {
		return false
	}
	if s.n == len(s.high) {
		s.overflow = true
		return true
	}
	s.high[s.n] = id
	s.n++
	return true
}

// repeats reports whether any extension of a well-formed block appears twice, in time linear in its
// length. A function of its own: few hellos need the 8 KiB of stack.
//
//go:noinline
func repeats(block []byte) bool {
	var seen [1 << 16 / 64]uint64
	for len(block) > 0 {
		var id uint16
		id, _, block, _ = cutExtension(block)
		if seen[id/64]&(1<<(id%64)) != 0 {
			return true
		}
		seen[id/64] |= 1 << (id % 64)
	}
	return false
}
