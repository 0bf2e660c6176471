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

	judged sync.Map // name of a field -> bool
	count  atomic.Int32
}

// Clients choose the names of fields: so many are remembered, of at most that length.
const (
	maxJudged     = 512
	maxJudgedName = 64
)

// fold returns the one form of a name of a field or parameter: lower case, `-` between words. Servers that hand
// fields on to programs take X_Api_Key for X-Api-Key.
func fold(name string) string {
	return strings.Map(func(c rune) rune {
		if c == '_' || c == '.' {
			return '-'
		}
		return unicode.ToLower(c)
	}, name)
}

// inHeader reports whether a field carries a credential.
func (c *credentials) inHeader(name string) bool {
	if is, ok := c.judged.Load(name); ok {
		return is.(bool)
	}
	is := c.judge(name)
	if len(name) <= maxJudgedName && c.count.Load() < maxJudged {
		c.count.Add(1)
		c.judged.Store(strings.Clone(name), is)
	}
	return is
}

func (c *credentials) judge(name string) bool {
	name = fold(name)
	if is, ok := c.headers[name]; ok {
		return is
	}
	return slices.Contains(credentialFields, name) || namesCredential(name)
}

// kept reports whether the operator lets clients send a field.
func (c *credentials) kept(name string) bool {
	is, ok := c.headers[fold(name)]
	return ok && !is
}

// inQuery reports whether a parameter of a query carries a credential.
func (c *credentials) inQuery(name string) bool {
	name, _, _ = strings.Cut(name, "[") // key[]=
	words := fold(splitCamel(strings.TrimSpace(name)))
	name = fold(strings.TrimSpace(name))
	if name == "" {
		return false
	}
	for _, n := range []string{name, words} {
		if is, ok := c.queries[n]; ok {
			return is
		}
	}
	return slices.Contains(credentialParameters, name) || namesCredential(words)
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
	credentialFields     = []string{"cookie", "cookie2", "dpop", "client-cert", "client-cert-chain", "x-honeycomb-team", "x-trackertoken"}
	credentialParameters = []string{"key", "token", "auth", "sig", "pwd", "hapikey", "appid"}
)

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
	return words[0] == "x" && words[1] == "auth"
}

// removeFrom removes what carries a credential from a header.
func (c *credentials) removeFrom(h http.Header) {
	for name := range h {
		if c.inHeader(name) {
			delete(h, name)
		}
	}
}

// removeFromQuery returns a query without the parameters that carry a credential.
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

// inPiece reports whether what stands between two `&` of a query carries a credential to any server: some end a
// parameter at `;` too.
func (c *credentials) inPiece(piece string) bool {
	for more := true; more; {
		var p string
		p, piece, more = strings.Cut(piece, ";")
		name, _, _ := strings.Cut(p, "=")
		if plain, err := url.QueryUnescape(name); err == nil {
			name = plain
		}
		if c.inQuery(name) {
			return true
		}
	}
	return false
}
