package hello

// Kind says why there is no name to be had from what a client sent. The set is closed; its strings are
// the reason labels of the decision record.
type Kind uint8

// The zero Kind is none of them.
const (
	NotTLS    Kind = iota + 1 // the first record header is none that a TLS client sends
	Malformed                 // TLS, but not a ClientHello that is well formed in every length
	TooLarge                  // the hello ends after MaxSize bytes
	NoName                    // a well-formed ClientHello without server_name
)

// String returns the reason label, such as "hello_malformed"; "" for a value outside the set.
func (k Kind) String() string {
	switch k {
	case NotTLS:
		return "not_tls"
	case Malformed:
		return "hello_malformed"
	case TooLarge:
		return "hello_too_large"
	case NoName:
		return "no_name"
	}
	return ""
}

// Error is the error of ServerName. It quotes nothing of what the client sent but numbers, so it is safe
// to log.
type Error struct {
	Kind Kind
	Text string // what was wrong, such as "extension 0 appears twice"
}

// Error returns the label and the text, such as "hello_malformed: extension 0 appears twice".
func (e *Error) Error() string { return e.Kind.String() + ": " + e.Text }

func malformed(text string) error { return &Error{Malformed, text} }
