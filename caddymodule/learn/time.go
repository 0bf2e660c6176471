package learn

import (
	"bytes"
	"time"
)

// The forms of time_format in Caddy's log encoders that are text. Those without a zone are taken as UTC, which
// is Caddy's default.
var timeLayouts = []string{
	"2006-01-02T15:04:05.000Z0700", // iso8601
	time.RFC3339Nano,               // and rfc3339
	"2006/01/02 15:04:05.999999999",
	"02/Jan/2006:15:04:05 -0700",
}

// seconds returns the seconds since 1970 that a time of a log says, 0 if it says nothing.
func seconds(raw []byte) int64 {
	if len(raw) < 2 {
		return 0
	}
	if raw[0] == '"' {
		for _, layout := range timeLayouts {
			if t, err := time.Parse(layout, string(raw[1:len(raw)-1])); err == nil {
				return max(0, t.Unix())
			}
		}
		return 0
	}
	whole, fraction, _ := bytes.Cut(raw, []byte("."))
	n, ok := decimal(whole, 1<<62)
	if !ok || bytes.ContainsAny(fraction, "eE") {
		return 0
	}
	// unix_seconds_float is the default; unix_milli_float and unix_nano have more digits for a long time to come.
	switch {
	case len(whole) > 15:
		n /= 1e9
	case len(whole) > 11:
		n /= 1e3
	}
	return int64(n)
}
