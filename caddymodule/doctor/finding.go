package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Status is how a finding is to be taken. A greater one is worse.
type Status int

const (
	OK      Status = iota // as it should be
	Warning               // weaker than it need be, or not to be told
	Failure               // a way past the firewall, or nothing gets through it
)

// String returns "ok", "warning" or "failure".
func (s Status) String() string {
	switch s {
	case OK:
		return "ok"
	case Warning:
		return "warning"
	default:
		return "failure"
	}
}

// MarshalText makes it the same in JSON.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is a line of the report.
type Finding struct {
	Status Status `json:"status"`
	Check  string `json:"check"`        // which check found it, such as "nameserver"
	Found  string `json:"found"`        // what is so
	Do     string `json:"do,omitempty"` // what to do about it; "" if there is nothing to do
}

// String returns the finding as one line. Part of it can be what a server said, so control characters, line
// feeds among them, are spaces.
func (f Finding) String() string {
	text := f.Found
	if f.Do != "" {
		text += "; " + f.Do
	}
	line := fmt.Sprintf("%-8s %-13s %s", f.Status, f.Check, text)
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, line)
}

// Worst returns the worst status among findings.
func Worst(fs []Finding) Status {
	worst := OK
	for _, f := range fs {
		worst = max(worst, f.Status)
	}
	return worst
}

// Write writes a line for each finding.
func Write(w io.Writer, fs []Finding) error {
	for _, f := range fs {
		if _, err := fmt.Fprintln(w, f); err != nil {
			return err
		}
	}
	return nil
}

// WriteJSON writes a JSON object for each finding, one a line, such as
//
//	{"status":"warning","check":"network","found":"…","do":"…"}
func WriteJSON(w io.Writer, fs []Finding) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	for _, f := range fs {
		if err := e.Encode(f); err != nil {
			return err
		}
	}
	return nil
}

func ok(format string, args ...any) []Finding {
	return []Finding{{Status: OK, Found: fmt.Sprintf(format, args...)}}
}

func warning(do, format string, args ...any) []Finding {
	return []Finding{{Status: Warning, Found: fmt.Sprintf(format, args...), Do: do}}
}

func failure(do, format string, args ...any) []Finding {
	return []Finding{{Status: Failure, Found: fmt.Sprintf(format, args...), Do: do}}
}
