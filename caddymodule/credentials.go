package caddymodule

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"
)

// credentials tells which fields and query parameters carry credentials, by their names: there are too many APIs, each
// with a field of its own, for a list of them.
type credentials struct {
	headers map[string]bool // in the form of fold: true if it is one, false if it is none
	queries map[string]bool

	judged sync.Map // name of a field -> role
	count  atomic.Int32
}

// role is what a field of a client does in a request.
type role int

const (
	harmless   role = iota
	credential      // says who the client is
	override        // has some servers take the request for another one than the matchers of the site see
	protocols       // lists the protocols that a WebSocket may have, and credentials among them
)

// Clients choose the names of fields: so many are remembered, of at most that length.
const (
	maxJudged     = 512
	maxJudgedName = 64
)

// fold returns the one form of a name of a field or parameter: lower case, `-` between words. Servers that hand
// fields on to programs take X_Api_Key for X-Api-Key, and some drop or replace whatever else is no letter.
func fold(name string) string {
	var b strings.Builder
	apart := false
	for _, c := range name {
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			apart = b.Len() > 0
			continue
		}
		if apart {
			b.WriteByte('-')
			apart = false
		}
		b.WriteRune(unicode.ToLower(unicode.ToUpper(c))) // the long s too has an S as upper case
	}
	return b.String()
}

// inHeader reports whether a field carries a credential.
func (c *credentials) inHeader(name string) bool { return c.role(name) == credential }

func (c *credentials) role(name string) role {
	if r, ok := c.judged.Load(name); ok {
		return r.(role)
	}
	r := c.judge(name)
	if len(name) <= maxJudgedName && c.count.Load() < maxJudged {
		c.count.Add(1)
		c.judged.Store(strings.Clone(name), r)
	}
	return r
}

func (c *credentials) judge(name string) role {
	name = fold(name)
	is, configured := c.headers[name]
	switch {
	case configured && !is:
		return harmless
	case is, slices.Contains(credentialFields, name), namesCredential(name):
		return credential
	case slices.Contains(overrides, name):
		return override
	case name == "sec-websocket-protocol":
		return protocols
	}
	return harmless
}

// kept reports whether the operator lets clients send a field.
func (c *credentials) kept(name string) bool {
	is, ok := c.headers[fold(name)]
	return ok && !is
}

// inQuery reports whether a parameter of a query carries a credential, or makes another request of this one. Most
// servers take key[]= for key, and PHP takes a[b for a_b. What is not to be seen in a name ends it for programs in C,
// and others drop it.
func (c *credentials) inQuery(name string) bool {
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar }) {
		return true
	}
	head, index, _ := strings.Cut(name, "[")
	if fold(head) != "" && strings.Contains(index, "]") {
		name = head
	}
	return c.inParameter(name)
}

func (c *credentials) inParameter(name string) bool {
	words, plain := fold(splitCamel(name)), fold(name)
	if plain == "" {
		return false
	}
	for _, n := range []string{plain, words} {
		if is, ok := c.queries[n]; ok {
			return is
		}
	}
	return slices.Contains(credentialParameters, plain) || namesCredential(words) || slices.Contains(overrides, words) ||
		plain == "method" && !strings.HasPrefix(strings.ToLower(name), plain) // `_method`, in what PHP takes for it
}

// splitCamel makes access-Token of accessToken.
func splitCamel(s string) string {
	var b strings.Builder
	for i, c := range s {
		if i > 0 && unicode.IsUpper(c) && !unicode.IsUpper(rune(s[i-1])) {
			b.WriteByte('-')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// Names of credentials that namesCredential does not find.
var (
	credentialFields     = []string{"cookie", "cookie2", "dpop", "client-cert", "client-cert-chain", "key", "token", "x-honeycomb-team", "x-trackertoken"}
	credentialParameters = []string{"key", "token", "auth", "sig", "pwd", "hapikey", "appid"}
)

// overrides are fields by which some servers take a request for another one than the matchers of the site see.
var overrides = []string{
	"x-http-method", "x-http-method-override", "x-method-override", "x-original-url", "x-original-uri", "x-rewrite-url",
}

// credentialWords are credentials wherever they stand in a name.
var credentialWords = []string{
	"auth", "authorization", "authentication", "oauth", "apikey", "apitoken", "accesskey", "accesstoken", "authkey", "authtoken",
	"bearer", "credential", "credentials", "jwt", "passphrase", "passwd", "password", "secret", "signature",
}

// Words before a last one that make a name one of something else.
var (
	otherKeys = []string{
		"cache", "customer", "dedup", "deduplication", "encryption", "idempotency", "partition", "public", "routing", "sort",
		"surrogate", "websocket",
	}
	otherTokens = []string{"atlassian", "cancel", "continuation", "continue", "cursor", "next", "page", "resume", "start", "sync"}
)

// namesCredential reports whether a name, in the form of fold, says that it is one of a credential.
func namesCredential(name string) bool {
	words := strings.Split(name, "-")
	if slices.ContainsFunc(words, func(w string) bool { return slices.Contains(credentialWords, w) }) {
		return true
	}
	n := len(words)
	if n < 2 {
		return false
	}
	switch words[n-1] {
	case "key":
		return !slices.Contains(otherKeys, words[n-2])
	case "token":
		return !slices.Contains(otherTokens, words[n-2])
	}
	return false
}

// removeFrom removes from a header what carries a credential, and what makes another request of it.
func (c *credentials) removeFrom(h http.Header) {
	for name, values := range h {
		switch c.role(name) {
		case credential, override:
			delete(h, name)
		case protocols:
			if values = removeFromProtocols(values); len(values) > 0 {
				h[name] = values
			} else {
				delete(h, name)
			}
		}
	}
}

// removeFromProtocols returns what Sec-WebSocket-Protocol lists without the protocols that carry a credential: browsers
// can set no other field, and APIs take `openai-insecure-api-key.VALUE`, or `token, VALUE`, for one.
func removeFromProtocols(values []string) []string {
	names := func(w string) bool { return w == "key" || w == "token" || slices.Contains(credentialWords, w) }
	var kept []string
	removed, isValue := false, false
	for p := range strings.SplitSeq(strings.Join(values, ","), ",") {
		p = strings.TrimSpace(p)
		words := strings.Split(fold(splitCamel(p)), "-")
		switch {
		case p == "":
		case isValue:
			isValue = false
		case slices.ContainsFunc(words, names):
			removed, isValue = true, names(words[len(words)-1])
		default:
			kept = append(kept, p)
		}
	}
	switch {
	case !removed:
		return values
	case len(kept) == 0:
		return nil
	}
	return []string{strings.Join(kept, ", ")}
}

// removeFromQuery returns a query without such parameters.
func (c *credentials) removeFromQuery(raw string) string {
	var kept strings.Builder
	kept.Grow(len(raw) + 1)
	changed := false
	for piece := range strings.SplitSeq(raw, "&") {
		if c.inPiece(piece) {
			changed = true
			continue
		}
		kept.WriteByte('&')
		kept.WriteString(piece)
	}
	if !changed {
		return raw
	}
	return strings.TrimPrefix(kept.String(), "&")
}

// inPiece reports whether what stands between two `&` of a query has such a parameter to any server: some end one at
// `;` too, and what cannot be decoded is a name of its own to each.
func (c *credentials) inPiece(piece string) bool {
	for more := true; more; {
		var p string
		p, piece, more = strings.Cut(piece, ";")
		name, _, _ := strings.Cut(p, "=")
		name, err := url.QueryUnescape(name)
		if err != nil || c.inQuery(name) {
			return true
		}
	}
	return false
}
