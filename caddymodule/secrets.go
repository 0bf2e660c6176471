package caddymodule

import (
	"bytes"
	"io"
	"net/http"
)

const (
	// minSecret is how long a secret must be to be masked where it is found: what is shorter is found everywhere.
	minSecret = 8

	// minHeld is how much of a secret must stand at the end of what an upstream has sent so far to be held back until
	// more comes. Less is sent on: any message may end with the letter that a secret begins with, and a client that
	// waits for all of it would wait for ever.
	minHeld = 4
)

// secrets are what must not be told to a client.
type secrets struct{ all [][]byte }

func (s *secrets) add(secret string) {
	if len(secret) >= minSecret {
		s.all = append(s.all, []byte(secret))
	}
}

// longest returns the length of the longest secret.
func (s *secrets) longest() int {
	n := 0
	for _, secret := range s.all {
		n = max(n, len(secret))
	}
	return n
}

// hide puts asterisks in the place of the secrets in b.
func (s *secrets) hide(b []byte) {
	for _, secret := range s.all {
		for rest := b; ; {
			i := bytes.Index(rest, secret)
			if i < 0 {
				break
			}
			asterisks(rest[i : i+len(secret)])
			rest = rest[i+len(secret):]
		}
	}
}

func asterisks(b []byte) {
	for i := range b {
		b[i] = '*'
	}
}

// mask returns text with asterisks in the place of secrets.
func (s *secrets) mask(text string) string {
	if len(s.all) == 0 {
		return text
	}
	b := []byte(text)
	s.hide(b)
	return string(b)
}

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
func (s *secrets) maskBody(body io.ReadCloser, ended func()) io.ReadCloser {
	if len(s.all) == 0 {
		return body
	}
	return &maskedBody{ReadCloser: body, s: s, ended: ended}
}

// maskedBody masks what is read through it as it comes, and never makes anybody wait for more than the rest of what
// looks like a secret.
type maskedBody struct {
	io.ReadCloser
	s     *secrets
	ended func()

	tail  []byte // the last that was passed on, shorter than minHeld, which a secret may begin with
	held  []byte // what follows, and is not passed on yet
	ready []byte // masked, to be passed on
	err   error
}

func (m *maskedBody) Read(p []byte) (int, error) {
	for len(m.ready) == 0 {
		if m.err != nil {
			return 0, m.err
		}
		if len(p) == 0 {
			return 0, nil
		}
		m.fill(len(p))
	}
	n := copy(p, m.ready)
	m.ready = m.ready[n:]
	return n, nil
}

// fill reads once from the body.
func (m *maskedBody) fill(size int) {
	b := append(make([]byte, 0, len(m.tail)+len(m.held)+size), m.tail...)
	b = append(b, m.held...)
	n, err := m.ReadCloser.Read(b[len(b) : len(b)+size])
	b = b[:len(b)+n]
	passed := len(m.tail)
	known := bytes.Clone(b) // the tail as the client has it; and what a secret may yet go on from
	m.s.hide(b)
	hold := 0
	if m.err = err; err == nil {
		hold = min(m.s.begun(known), len(b)-passed)
	} else if err == io.EOF {
		m.ended()
	}
	end := len(b) - hold
	m.ready = b[passed:end]
	m.held = known[end:]
	m.tail = known[max(0, end-minHeld+1):end]
}

// begun returns how long the end of b is with which a secret begins, and which is to be held back.
func (s *secrets) begun(b []byte) int {
	for n := min(s.longest()-1, len(b)); n >= minHeld; n-- {
		end := b[len(b)-n:]
		for _, secret := range s.all {
			if n < len(secret) && bytes.HasPrefix(secret, end) {
				return n
			}
		}
	}
	return 0
}
