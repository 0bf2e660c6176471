package postgres

import (
	"bytes"
	"testing"
)

// FuzzReadFirst holds, whatever the octets are:
//
//   - one of what it is, need and err is set, and need leads up to RequestSize octets and no further;
//   - an answer depends on the first RequestSize octets alone, and no further octet changes it;
//   - need is the least that leads to an answer of acceptance: no fewer octets do;
//   - an SSLRequest is those eight octets, and nothing else is.
func FuzzReadFirst(f *testing.F) {
	for _, s := range []string{
		"", "16", "1603010200010001fc0303", "0000000804d2162f", "0000000804d2162f16030100", "0000000804d21630", "0000001004d2162e0000000100000002",
		"000000290003000075736572006100", "0000271000030000", "0000271100030000", "7fffffff04d2162f", "00000000", "00000004", "0000000904d2162f", "474554202f",
	} {
		f.Add(octets(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		first, need, err := ReadFirst(b)
		set := 0
		for _, is := range []bool{first != 0, need != 0, err != nil} {
			if is {
				set++
			}
		}
		if set != 1 || need < 0 {
			t.Fatalf("%v, %d, %v: want one of them", first, need, err)
		}
		if need > 0 {
			if len(b)+need != RequestSize {
				t.Fatalf("asks for %d octets after %d", need, len(b))
			}
			for _, last := range []byte{0, 0x2f, 0xff} {
				if more, _, _ := ReadFirst(append(bytes.Clone(b), bytes.Repeat([]byte{last}, need-1)...)); more != 0 {
					t.Fatalf("asks for %d octets, and one fewer will do", need)
				}
			}
			return
		}
		more, need, err2 := ReadFirst(append(bytes.Clone(b), 0, 22, 255, 0, 0, 8, 4, 0xd2))
		if more != first || need != 0 || (err == nil) != (err2 == nil) {
			t.Fatalf("%v, %v; with octets behind it %v, %d, %v", first, err, more, need, err2)
		}
		if is := bytes.HasPrefix(b, AppendSSLRequest(nil)); is != (first == SSLRequest) {
			t.Fatalf("% x is %v", b, first)
		}
	})
}

// FuzzFatal holds that a client reads the fields that were written, cut, and no others.
func FuzzFatal(f *testing.F) {
	f.Add("28000", "sandboxallow: not_allowed: evil.example", "allow evil.example:5432")
	f.Add("08006", "a\x00Hlie\x00", "")
	f.Add("", "", "\x00\x00")
	f.Fuzz(func(t *testing.T, code, message, hint string) {
		e := Fatal{code, message, hint}
		b := e.Append(nil)
		if len(b) > 4*(maxField+2)+20 {
			t.Fatalf("%d octets", len(b))
		}
		got := fields(t, b)
		for kind, text := range map[byte]string{'C': code, 'M': message, 'H': hint} {
			want, _, _ := bytes.Cut([]byte(text), []byte{0})
			if got[kind] != string(want[:min(len(want), maxField)]) {
				t.Fatalf("field %c is %q, want %q", kind, got[kind], want)
			}
		}
	})
}
