package hello

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// FuzzServerName holds, whatever the bytes are:
//
//   - one of name, need and err is set, and need is the least that changes the answer;
//   - further bytes do not change a name or an error;
//   - crypto/tls reads the same name from what is accepted, and reads no hello where we see none yet;
//     but for a trailing dot, which it refuses.
func FuzzServerName(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(b)
		f.Add(records(unframe(b), 100))
	}
	f.Add(browser(517))
	f.Add(browser(1800))
	f.Add(with(sni("example.com.")))
	f.Add(with(sni("example.com"), ext{42, nil}, ext{41, psk(2, 2)}))
	f.Add(with(sni("example.com", "evil.test")))
	f.Add(with(ext{extServerName, vec16(entry(1, "x"), entry(0, "example.com"))}))
	f.Add(with(ext{10, vec16(zeros(4))}, ext{50, vec16(zeros(4))}, ext{44, vec16(zeros(4))}, sni("a.b")))
	f.Add(with(append(unknown(100, 12), sni("a.b"), ext{104, nil})...))
	f.Add(records(parts{}.message(), 1))
	f.Add([]byte("GET / HTTP/1.1\r\n"))

	f.Fuzz(func(t *testing.T, b []byte) {
		name, need, err := ServerName(b)
		set := 0
		for _, is := range []bool{len(name) > 0, need > 0, err != nil} {
			if is {
				set++
			}
		}
		if set != 1 || need < 0 {
			t.Fatalf("%q, %d, %v: want one of them", name, need, err)
		}

		if need > 0 {
			if len(b)+need > MaxSize {
				t.Fatalf("asks for %d bytes after %d", need, len(b))
			}
			for _, n := range []int{need / 2, need - 1} {
				if _, more, err := ServerName(append(bytes.Clone(b), zeros(n)...)); more != need-n {
					t.Fatalf("asked for %d bytes, got %d, then asks for %d (%v)", need, n, more, err)
				}
			}
			if name, err := stdServer(b); err == nil {
				t.Fatalf("asks for %d more bytes, crypto/tls has read %q already", need, name)
			}
			completes(t, bytes.Clone(b))
			return
		}
		if err == nil {
			agrees(t, b, name)
		}
		more, need, err2 := ServerName(append(bytes.Clone(b), 20, 3, 3, 0, 1, 1))
		if need != 0 || !bytes.Equal(more, name) || text(err2) != text(err) {
			t.Fatalf("%q, %v; with bytes behind it %q, %d, %v", name, err, more, need, err2)
		}
	})
}

// agrees holds that crypto/tls reads the name from b that we have read. If a dot is at the end of it, it
// must do so after another character took the dot's place.
func agrees(t *testing.T, b, name []byte) {
	t.Helper()
	if last := len(name) - 1; name[last] == '.' {
		name = append(bytes.Clone(name[:last]), 'x')
		b = rename(t, b, name)
	}
	if std, err := stdServer(b); err != nil || std != string(name) {
		t.Fatalf("name = %q, crypto/tls reads %q (%v)", name, std, err)
	}
}

// completes holds that whoever gives ServerName what it asks for gets an answer, within MaxSize bytes.
func completes(t *testing.T, b []byte) {
	for {
		_, need, _ := ServerName(b)
		if need == 0 {
			return
		}
		if len(b)+need > MaxSize {
			t.Fatalf("asks for %d bytes after %d", need, len(b))
		}
		// Records as large as they come, so that the loop is short; their content does not matter.
		b = append(b, bytes.Repeat([]byte{22, 3, 3, 0x40, 0}, need/recordHeader+1)[:need]...)
	}
}

// rename is the accepted hello in b with another name of the same length.
func rename(t *testing.T, b, to []byte) []byte {
	t.Helper()
	b = bytes.Clone(b)
	end := 0
	for {
		if _, need, _ := ServerName(b[:end]); need == 0 {
			break
		}
		end += recordHeader + int(b[end+3])<<8 + int(b[end+4])
	}
	msg := unframe(b[:end])
	name, err := clientHello(msg) // a view into msg
	if err != nil {
		t.Fatal(err)
	}
	copy(name, to)
	return records(msg, maxFragment)
}

// FuzzExtensions is FuzzServerName for hellos that are well formed but for the inside of the extensions,
// where mutations of a whole hello seldom get to. Each byte of ids stands for an extension, the lengths
// are those of its data, and the data comes from one string. It holds the reverse too: what we refuse,
// crypto/tls refuses, but for what stricter lists.
func FuzzExtensions(f *testing.F) {
	known := []uint16{
		extServerName, extStatusRequest, extSupportedGroups, extECPointFormats, extSignatureAlgorithms,
		extALPN, extSCT, extExtendedMasterSecret, 35, extPreSharedKey, extEarlyData, extSupportedVersions,
		extCookie, extPSKModes, extSignatureAlgorithmsCert, extKeyShare, 57, extECH, extRenegotiationInfo, 0x2a2a,
	}
	add := func(exts ...ext) {
		var ids, lengths, data []byte
		for _, e := range exts {
			ids = append(ids, byte(max(slices.Index(known, e.id), 0)))
			lengths = append(lengths, byte(len(e.data)))
			data = append(data, e.data...)
		}
		f.Add(ids, lengths, data)
	}
	name := sni("example.com")
	add(name)
	add(sni("a."), name)
	add(name, ext{extStatusRequest, []byte{1, 0, 0, 0, 0}}, ext{extECPointFormats, []byte{1, 0}}, ext{extRenegotiationInfo, []byte{0}})
	add(name, ext{extSupportedGroups, vec16(zeros(4))}, ext{extSignatureAlgorithms, vec16(zeros(2))}, ext{extSignatureAlgorithmsCert, vec16(zeros(2))})
	add(name, ext{extALPN, vec16(vec8([]byte("h2")), vec8([]byte("http/1.1")))}, ext{extSCT, nil}, ext{extExtendedMasterSecret, nil})
	add(name, ext{extSupportedVersions, vec8(zeros(4))}, ext{extCookie, vec16(zeros(3))}, ext{extPSKModes, vec8(zeros(1))})
	add(name, ext{extKeyShare, vec16([]byte{0, 29}, vec16(zeros(32)), []byte{0, 23}, vec16(zeros(4)))})
	add(name, ext{extECH, slices.Concat([]byte{echOuter, 0, 1, 0, 1, 7}, vec16(zeros(32)), vec16(zeros(16)))})
	add(name, ext{extECH, []byte{echInner}}, ext{extEarlyData, nil}, ext{extPreSharedKey, psk(2, 2)})

	f.Fuzz(func(t *testing.T, ids, lengths, data []byte) {
		if len(ids) > 100 || len(lengths) != len(ids) {
			return
		}
		exts := make([]ext, len(ids))
		for i := range ids {
			n := min(int(lengths[i]), len(data))
			exts[i] = ext{known[int(ids[i])%len(known)], data[:n]}
			data = data[n:]
		}
		b := with(exts...)
		name, need, err := ServerName(b)
		if need > 0 {
			t.Fatalf("asks for %d more bytes than the hello has", need)
		}
		if err == nil {
			agrees(t, b, name)
			return
		}
		std, stdErr := stdServer(b)
		switch {
		case stdErr != nil:
		case kindOf(err) == NoName && std == "":
		case slices.ContainsFunc(stricter, func(s string) bool { return strings.Contains(err.Error(), s) }):
		default:
			t.Fatalf("%v, crypto/tls reads %q", err, std)
		}
	})
}

// stricter is where we refuse an extension that crypto/tls reads on behind, and why it is no loss.
var stricter = []string{
	"server_name is of type",          // no such type was ever defined
	"server_name holds more than one", // of which crypto/tls skips those of another type
	"inside of extension 41 ",         // a binder for each identity: crypto/tls counts when it answers
	"inside of extension 65281 ",      // empty renegotiation_info: crypto/tls looks when it answers
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// FuzzSplit holds that a handshake message gives the same answer in whatever records and segments it
// comes, and that a reader who reads what it is asked for is never asked for more than there is.
func FuzzSplit(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(unframe(b)[handshakeHeader:], []byte{99, 0, 1, 200}, []byte{0})
		f.Add(unframe(b)[handshakeHeader:], []byte{0}, []byte{0, 3, 255})
	}
	f.Add(unframe(browser(1800))[handshakeHeader:], []byte{255, 255, 255}, []byte{7})
	f.Add(parts{}.message()[handshakeHeader:], []byte{1, 0, 1}, []byte{})

	f.Fuzz(func(t *testing.T, body, cuts, reads []byte) {
		if len(body) > MaxSize {
			return
		}
		msg := append([]byte{typeClientHello, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
		wantName, need, wantErr := ServerName(records(msg, maxFragment))
		if need > 0 {
			t.Fatalf("asks for %d bytes more than there are", need)
		}

		var b []byte
		for i, rest := 0, msg; len(rest) > 0; i++ {
			n := min(len(rest), maxFragment)
			if len(cuts) > 0 {
				n = min(n, int(cuts[i%len(cuts)])+1)
			}
			b = append(b, record(rest[:n])...)
			rest = rest[n:]
		}

		var name []byte
		var err error
		for i, have := 0, 0; ; i++ {
			if name, need, err = ServerName(b[:have]); need == 0 {
				break
			}
			if have+need > len(b) {
				t.Fatalf("after %d of %d bytes it asks for %d more", have, len(b), need)
			}
			have += need
			if len(reads) > 0 {
				have = min(have+int(reads[i%len(reads)]), len(b))
			}
		}
		if len(b) > MaxSize {
			if kindOf(err) != TooLarge {
				t.Fatalf("%d bytes: %q, %v; want hello_too_large", len(b), name, err)
			}
			return
		}
		if !bytes.Equal(name, wantName) || text(err) != text(wantErr) {
			t.Fatalf("in %d bytes of records: %q, %v; in one piece: %q, %v", len(b), name, err, wantName, wantErr)
		}
	})
}
