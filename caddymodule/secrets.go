package caddymodule

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

const (
	// minSecret is how long a secret must be to be masked where it is found: what is shorter is found everywhere.
	minSecret = 8

	// minHeld is how much of a secret must stand at the end of what an upstream has sent so far to be held back until
	// more comes. Less is sent on: any line may end with the letter that a secret begins with.
	minHeld = 4
)

// secrets are what must not be told to a client.
type secrets struct {
	all [][]byte
	min int // length of the shortest
	max int // of the longest
}

// add adds a secret, and the forms that it has in JSON, in URLs and in errors.
func (s *secrets) add(secret string) {
	if len(secret) < minSecret {
		return
	}
	inJSON, _ := json.Marshal(secret) // every string has that form
	inError := strconv.Quote(secret)
	for _, form := range []string{
		secret, string(inJSON[1 : len(inJSON)-1]), inError[1 : len(inError)-1], url.QueryEscape(secret), url.PathEscape(secret),
	} {
		s.addForm([]byte(form))
	}
}

// addForm adds what is looked for as it is. It must not be changed.
func (s *secrets) addForm(form []byte) {
	if slices.ContainsFunc(s.all, func(known []byte) bool { return bytes.Equal(known, form) }) {
		return
	}
	if len(s.all) == 0 {
		s.min = len(form)
	}
	s.min, s.max = min(s.min, len(form)), max(s.max, len(form))
	s.all = append(s.all, form)
}

// knownValue is a value whose secrets have been found: with most requests the same one comes again.
type knownValue struct {
	value string
	forms [][]byte
}

// addKnown is addValue for a value that may be the last one.
func (s *secrets) addKnown(v string, last *atomic.Pointer[knownValue]) {
	known := last.Load()
	if known == nil || known.value != v {
		alone := new(secrets)
		alone.addValue(v)
		known = &knownValue{v, alone.all}
		last.Store(known)
	}
	for _, form := range known.forms {
		s.addForm(form)
	}
}

// addValue adds the value of a field, which may be a scheme and a secret, or parameters with secrets as their values.
func (s *secrets) addValue(v string) {
	s.add(v)
	parts := strings.FieldsFunc(v, func(c rune) bool { return strings.ContainsRune(` ,;"`, c) })
	if len(parts) > 1 && !strings.Contains(parts[0], "=") {
		parts = parts[1:] // behind the scheme
	}
	for _, part := range parts {
		_, value, ok := strings.Cut(part, "=")
		if s.add(part); ok {
			s.add(value)
		}
	}
}

// hide puts asterisks in the place of the secrets in b. All are found first: they may have octets in common.
func (s *secrets) hide(b []byte) {
	var found [][]byte
	for _, secret := range s.all {
		for rest := b; ; {
			i := bytes.Index(rest, secret)
			if i < 0 {
				break
			}
			found = append(found, rest[i:i+len(secret)])
			rest = rest[i+1:]
		}
	}
	for _, place := range found {
		asterisks(place)
	}
}

// across returns how much of the beginning of b is the rest of secrets that begin in tail, which stands before it.
func (s *secrets) across(tail, b []byte) int {
	n := 0
	for _, secret := range s.all {
		for k := 1; k <= min(len(tail), len(secret)-1); k++ {
			if bytes.HasSuffix(tail, secret[:k]) && bytes.HasPrefix(b, secret[k:]) {
				n = max(n, len(secret)-k)
			}
		}
	}
	return n
}

func asterisks(b []byte) {
	for i := range b {
		b[i] = '*'
	}
}

// mask returns text with asterisks in the place of secrets.
func (s *secrets) mask(text string) string {
	if len(s.all) == 0 || len(text) < s.min {
		return text
	}
	b := []byte(text)
	s.hide(b)
	return string(b)
}

// maskError returns err with a text without secrets: net/http quotes what it does not understand.
func (s *secrets) maskError(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	text := err.Error()
	if masked := s.mask(text); masked != text {
		return &maskedError{err, masked}
	}
	return err
}

type maskedError struct {
	err  error
	text string
}

func (e *maskedError) Error() string { return e.text }
func (e *maskedError) Unwrap() error { return e.err }

// maskHeader masks the values of fields.
func (s *secrets) maskHeader(h http.Header) {
	if len(s.all) == 0 {
		return
	}
	for name, values := range h {
		for i, v := range values {
			values[i] = s.mask(v)
		}
		if masked := http.CanonicalHeaderKey(s.mask(name)); masked != name {
			delete(h, name)
		}
	}
}

// maskBody returns body with asterisks in the place of secrets. ended is called at its end.
//
// A secret may come in pieces. With hold, the end of what has come is held back where it begins a secret, until more
// comes. Without, it is not, and of a secret in pieces only the last is masked: in a conversation the end of a message
// that is held back is what the client waits for, and whether it is would tell a client that has chosen the message how
// the secret begins. At the end of a body nothing is held back or masked for the same reason.
func (s *secrets) maskBody(body io.ReadCloser, hold bool, ended func()) io.ReadCloser {
	if len(s.all) == 0 {
		return body
	}
	return &maskedBody{ReadCloser: body, s: s, hold: hold, ended: ended}
}

// maskedBody masks what is read through it as it comes.
type maskedBody struct {
	io.ReadCloser
	s     *secrets
	hold  bool
	ended func()

	tail  []byte // the last that was passed on, as it came, as much of it as a secret may begin in
	held  []byte // what follows it, as it came, and was not passed on yet
	own   []byte // is read into where a reader has little space
	ready []byte // is left of own
	err   error
}

func (m *maskedBody) Read(p []byte) (int, error) {
	for len(m.ready) == 0 {
		switch {
		case m.err != nil:
			return 0, m.err
		case len(p) == 0:
			return 0, nil
		case len(p) >= 2*m.s.max:
			if n := m.fill(p); n > 0 {
				return n, nil
			}
		default:
			if m.own == nil {
				m.own = make([]byte, 2*m.s.max)
			}
			m.ready = m.own[:m.fill(m.own)]
		}
	}
	n := copy(p, m.ready)
	m.ready = m.ready[n:]
	return n, nil
}

// fill reads once from the body, behind what is held, and returns how much of b can be passed on.
func (m *maskedBody) fill(b []byte) int {
	n := copy(b, m.held)
	read, err := m.ReadCloser.Read(b[n:])
	b = b[:n+read]
	m.err = m.s.maskError(err)
	hold := 0
	if m.hold && err != io.EOF {
		hold = m.s.begun(m.tail, b)
	}
	// What is held is compared once more with what comes behind it, so it and the tail stay as they came.
	pass, across := b[:len(b)-hold], m.s.across(m.tail, b)
	m.held = append(m.held[:0], b[len(pass):]...)
	m.tail = lastOf(m.tail, pass, m.s.max-1)
	m.s.hide(b)
	asterisks(b[:across])
	switch err {
	case nil:
	case io.EOF:
		m.ended()
	default: // the body was broken off, and not by the client
		asterisks(b[len(pass):])
		pass = b
	}
	return len(pass)
}

// lastOf returns a copy of the last n octets of a and b, less if there are no more.
func lastOf(a, b []byte, n int) []byte {
	if len(b) >= n {
		return bytes.Clone(b[len(b)-n:])
	}
	a = a[max(0, len(a)+len(b)-n):]
	return append(bytes.Clone(a), b...)
}

// begun returns how much of the end of b is to be held back: with it, and what of tail stands before it, a secret
// begins.
func (s *secrets) begun(tail, b []byte) int {
	end := b
	if len(b) < s.max {
		end = lastOf(tail, b, s.max)
	}
	for n := min(s.max-1, len(end)); n >= minHeld; n-- {
		for _, secret := range s.all {
			if n < len(secret) && bytes.HasPrefix(secret, end[len(end)-n:]) {
				return min(n, len(b))
			}
		}
	}
	return 0
}
