package caddymodule

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
)

func secretsOf(ss ...string) *secrets {
	s := new(secrets)
	for _, secret := range ss {
		s.add(secret)
	}
	return s
}

// pieces is a body that comes piece by piece.
type pieces []string

func (p *pieces) Read(b []byte) (int, error) {
	if len(*p) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*p)[0])
	if (*p)[0] = (*p)[0][n:]; (*p)[0] == "" {
		*p = (*p)[1:]
	}
	return n, nil
}

func TestMaskBody(t *testing.T) {
	const secret = "sk-secret-0123456789"
	stars := strings.Repeat("*", len(secret))
	for _, tc := range []struct {
		name string
		in   []string
		want string
	}{
		{"nothing", []string{"hello", " world"}, "hello world"},
		{"empty", nil, ""},
		{"whole", []string{"a " + secret + " b"}, "a " + stars + " b"},
		{"alone", []string{secret}, stars},
		{"twice", []string{secret + secret}, stars + stars},
		{"in halves", []string{"a sk-secret", "-0123456789 b"}, "a " + stars + " b"},
		{"in three", []string{"a sk-sec", "ret-01234", "56789 b"}, "a " + stars + " b"},
		{"not to its end", []string{"a sk-secret", "-012345678 b"}, "a sk-secret-012345678 b"},
		{"ends within", []string{"a sk-secret"}, "a sk-secret"}, // or a client could find out how the secret begins
		{"ends late within", []string{"a sk-sec", "ret-012345678"}, "a sk-secret-012345678"},
		{"hardly begun", []string{"a sk-"}, "a sk-"},
		{"begins again", []string{"sk-sec", "sk-secret-0123456789"}, "sk-sec" + stars},
		// So little of it is sent on at once, and the rest is masked all the same.
		{"a letter before", []string{"a s", "k-secret-0123456789 b"}, "a s" + stars[1:] + " b"},
		{"three letters before", []string{"a s", "k", "-", "secret-0123456789 b"}, "a sk-" + stars[3:] + " b"},
		{"letter by letter", strings.Split("a"+secret+"b", ""), "ask-" + stars[3:] + "b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, size := range []int{1, 7, 64, 4096} {
				in := pieces(slices.Clone(tc.in))
				ended := 0
				r := secretsOf(secret).maskBody(io.NopCloser(&in), true, func() { ended++ })
				var got bytes.Buffer
				if _, err := io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{r}, make([]byte, size)); err != nil {
					t.Fatal(err)
				}
				if got.String() != tc.want || ended != 1 {
					t.Errorf("by %d octets: got %q, ended %d times, want %q", size, got.String(), ended, tc.want)
				}
			}
		})
	}
}

// In a conversation each message comes to its end, whatever that is, and what comes of a secret after it is masked.
func TestMaskBodyHoldsNothing(t *testing.T) {
	const secret = "sk-secret-0123456789"
	stars := strings.Repeat("*", len(secret))
	for _, tc := range []struct {
		in   []string
		want string
	}{
		{[]string{"a " + secret + " b"}, "a " + stars + " b"},
		{[]string{"a sk-secret", "-0123456789 b"}, "a sk-secret" + stars[9:] + " b"},
		{[]string{"a sk-sec", "ret-01", "23456789 b"}, "a sk-secret-01" + stars[12:] + " b"},
	} {
		for _, size := range []int{1, 64} {
			in := pieces(slices.Clone(tc.in))
			r := secretsOf(secret).maskBody(io.NopCloser(&in), false, func() {})
			var got bytes.Buffer
			io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{r}, make([]byte, size))
			if got.String() != tc.want {
				t.Errorf("got %q, want %q", got.String(), tc.want)
			}
		}
	}
	in, out := io.Pipe()
	r := secretsOf(secret).maskBody(in, false, func() {})
	for _, message := range []string{"ends with s", "ends with sk", "ends with sk-secret-012345678", secret[:3], "\x00\x00s"} {
		go io.WriteString(out, message)
		got := make([]byte, len(message))
		if _, err := io.ReadFull(r, got); err != nil || string(got) != message {
			t.Fatalf("got %q, %v, want %q", got, err, message)
		}
	}
	out.Close()
	if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
		t.Errorf("%q and %v are left", rest, err)
	}
}

func TestMaskBodyError(t *testing.T) {
	r := secretsOf("sk-secret-0123456789").maskBody(io.NopCloser(io.MultiReader(strings.NewReader("half sk-secr"), iotest.ErrReader(io.ErrUnexpectedEOF))), true, func() { t.Error("ended") })
	if got, err := io.ReadAll(r); string(got) != "half *******" || err != io.ErrUnexpectedEOF {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestMaskHeader(t *testing.T) {
	s := secretsOf("pass/word<1>", "short")
	h := http.Header{
		"Plain":   {"a pass/word<1> b"},
		"Json":    {`"pass/word\u003c1\u003e"`},
		"Url":     {"?a=pass%2Fword%3C1%3E"},
		"Path":    {"/pass%2Fword%3C1%3E"},
		"Two":     {"x", "pass/word<1>"},
		"Another": {"short"},
	}
	s.maskHeader(h)
	for name, want := range map[string]string{
		"Plain": "a ************ b", "Json": `"**********************"`, "Url": "?a=******************", "Path": "/******************", "Another": "short",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if h["Two"][0] != "x" || h["Two"][1] != "************" {
		t.Errorf("Two: %q", h["Two"])
	}
}

// What may be held back is little enough for lines to come to their ends.
func TestMaskBodyHoldsLittle(t *testing.T) {
	in, out := io.Pipe()
	r := secretsOf("sk-secret-0123456789").maskBody(in, true, func() {})
	for _, line := range []string{"ends with s", "ends with sk", "ends with sk-", "data: x\n\n"} {
		go io.WriteString(out, line)
		got := make([]byte, len(line))
		if _, err := io.ReadFull(r, got); err != nil || string(got) != line {
			t.Fatalf("got %q, %v, want %q", got, err, line)
		}
	}
	out.Close()
}

// Secrets that have octets in common, with each other or with themselves, are all masked, wherever the body is split.
func TestMaskBodyOverlap(t *testing.T) {
	for _, tc := range []struct {
		name     string
		secrets  []string
		in, want string
	}{
		{"ends as it begins", []string{"abcdXYZ-abcd"}, "key=abcdXYZ-abcd\nrest\n", "key=************\nrest\n"},
		{"twice in each other", []string{"abcdXYZ-abcd"}, "key=abcdXYZ-abcdXYZ-abcd\n", "key=********************\n"},
		{"ends as another begins", []string{"XYZ-1234abcd", "abcd-567890"}, "key=XYZ-1234abcd\nrest\n", "key=************\nrest\n"},
		{"runs into another", []string{"XYZ-1234abcd", "abcd-567890"}, "key=XYZ-1234abcd-567890\n", "key=*******************\n"},
		{"begins with another", []string{"key-12345678", "key-12345678-longer"}, "a key-12345678-longer b", "a ******************* b"},
		{"begins with another, alone", []string{"key-12345678", "key-12345678-longer"}, "a key-12345678-long b", "a ************-long b"},
		{"has another within", []string{"12345678", "key-12345678-longer"}, "a key-12345678-longer b", "a ******************* b"},
		{"has another within, alone", []string{"12345678", "key-12345678-longer"}, "a key-12345678-long b", "a key-********-long b"},
		{"repeats itself", []string{"abababab"}, "xabababababy", "x**********y"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			backwards := slices.Clone(tc.secrets)
			slices.Reverse(backwards)
			for _, s := range []*secrets{secretsOf(tc.secrets...), secretsOf(backwards...)} {
				if got := s.mask(tc.in); got != tc.want {
					t.Errorf("as a field: %q, want %q", got, tc.want)
				}
				for k := range len(tc.in) {
					for _, hold := range []bool{true, false} {
						for _, broken := range []bool{false, true} {
							in := pieces{tc.in[:k], tc.in[k:]}
							if k == 0 {
								in = in[1:]
							}
							var end io.Reader = &in
							if broken {
								end = io.MultiReader(&in, iotest.ErrReader(io.ErrUnexpectedEOF))
							}
							b, _ := io.ReadAll(s.maskBody(io.NopCloser(end), hold, func() {}))
							got := string(b)
							if want := piecewise(tc.secrets, tc.in, tc.want, k, hold); got != want {
								t.Errorf("split at %d, hold %t, broken off %t: %q, want %q", k, hold, broken, got, want)
							}
						}
					}
				}
			}
		})
	}
}

// piecewise returns what is seen of a body that comes in two pieces: want, but for what was passed on of a secret before
// it was one.
func piecewise(secrets []string, in, want string, k int, hold bool) string {
	seen := []byte(want)
	passed := k
	for n := minHeld; hold && n <= k; n++ {
		for _, secret := range secrets {
			if n < len(secret) && strings.HasPrefix(secret, in[k-n:k]) {
				passed = k - n
			}
		}
	}
	copy(seen[:passed], in)
	for _, secret := range secrets {
		for i := range in {
			// Whole in the first piece, or with the end of it held back.
			if strings.HasPrefix(in[i:], secret) && i < passed && (i+len(secret) <= k) {
				asterisks(seen[i:min(passed, i+len(secret))])
			}
		}
	}
	return string(seen)
}

// FuzzMaskBody: however a body comes, it keeps its length, what is no secret stays, and no secret can be read but for
// the few octets that are never held back.
func FuzzMaskBody(f *testing.F) {
	f.Add([]byte("a sk-secret-0123 b sk-secret-0123"), []byte{3, 1, 7}, uint8(20))
	f.Add([]byte("sk-secsk-secret-0123"), []byte{1}, uint8(1))
	f.Add([]byte("aaaaaaaaaaaaaaaaaaaaaaaa"), []byte{5, 2}, uint8(33))
	f.Add([]byte("abcdXYZ-abcdXYZ-abcd rest"), []byte{11, 4}, uint8(64))
	f.Add([]byte("sk-secret-012345 sk-secret-0123-abcdef"), []byte{14, 9}, uint8(64))
	f.Fuzz(func(t *testing.T, data, cuts []byte, size uint8) {
		for _, all := range [][]string{
			{"sk-secret-0123"}, {"aaaaaaaab"}, {"abababababab"}, {"abcdXYZ-abcd"}, {"sk-secret-0123", "sk-secret-012345", "0123-abcdef"},
		} {
			var in pieces
			for rest, i := data, 0; len(rest) > 0; i++ {
				n := len(rest)
				if len(cuts) > 0 {
					n = min(n, 1+int(cuts[i%len(cuts)]))
				}
				in, rest = append(in, string(rest[:n])), rest[n:]
			}
			hold := size%2 == 0
			r := secretsOf(all...).maskBody(io.NopCloser(&in), hold, func() {})
			var b bytes.Buffer
			if _, err := io.CopyBuffer(struct{ io.Writer }{&b}, struct{ io.Reader }{r}, make([]byte, 1+int(size))); err != nil {
				t.Fatal(err)
			}
			got := b.Bytes()
			if len(got) != len(data) {
				t.Fatalf("%d octets of %d", len(got), len(data))
			}
			of := make([]bool, len(data)) // a secret
			for _, secret := range all {
				if bytes.Contains(got, []byte(secret)) {
					t.Fatalf("%q has the secret", got)
				}
				for i := range data {
					if !bytes.HasPrefix(data[i:], []byte(secret)) {
						continue
					}
					for j := range len(secret) {
						of[i+j] = true
						if hold && j >= minHeld-1 && got[i+j] != '*' {
							t.Fatalf("%q has octet %d of the secret", got, j)
						}
					}
				}
			}
			for i := range got {
				if got[i] != data[i] && (got[i] != '*' || !of[i]) {
					t.Fatalf("octet %d of %q is %q", i, data, got)
				}
			}
		}
	})
}

func BenchmarkMaskBody(b *testing.B) {
	data := bytes.Repeat([]byte("data: {\"choices\":[{\"delta\":{\"content\":\" tokens\"}}]}\n\n"), 20_000)
	s := secretsOf(testSecret)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	buf := make([]byte, copyBufferSize)
	for b.Loop() {
		r := s.maskBody(io.NopCloser(bytes.NewReader(data)), true, func() {})
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, buf); err != nil {
			b.Fatal(err)
		}
	}
}

// What is known of a value that comes again is what would be found anew, and nothing of the one before is left.
func TestKnownValue(t *testing.T) {
	var last atomic.Pointer[knownValue]
	for _, v := range []string{"sk-first-0123456789", "sk-first-0123456789", `user="me", key="a \"quoted\" one"`, "short", "sk-first-0123456789", ""} {
		want, got := new(secrets), new(secrets)
		for _, s := range []*secrets{want, got} {
			s.add("another secret")
		}
		want.addValue(v)
		got.addKnown(v, &last)
		if !slices.EqualFunc(got.all, want.all, bytes.Equal) || got.min != want.min || got.max != want.max {
			t.Errorf("%q: %q, want %q", v, got.all, want.all)
		}
	}
}

// What is shorter than every form of every secret has none, and what is as long may be one.
func TestMaskShort(t *testing.T) {
	s := secretsOf("sk-secret-0123456789", "12345678")
	for in, want := range map[string]string{"1234567": "1234567", "12345678": "********", "012345678": "0********"} {
		if got := s.mask(in); got != want {
			t.Errorf("%q is masked as %q, want %q", in, got, want)
		}
	}
}
