package caddymodule

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/munnerz/goautoneg"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// reasonField is the response field that tells a client why, in a word.
const reasonField = "X-Sandboxallow-Reason"

// statusFor returns the HTTP status that tells a client about a denial. timedOut is of a dial_error.
func statusFor(r policy.Reason, timedOut bool) int {
	switch r {
	case policy.ReasonBadRequest, policy.ReasonNameMismatch:
		return http.StatusBadRequest
	case policy.ReasonAuthRequired:
		return http.StatusProxyAuthRequired
	case policy.ReasonLimit:
		return http.StatusServiceUnavailable
	case policy.ReasonDialError:
		if timedOut {
			return http.StatusGatewayTimeout
		}
		return http.StatusBadGateway
	case policy.ReasonNoAddress, policy.ReasonResolverError, policy.ReasonUpstreamNoTLS:
		return http.StatusBadGateway
	}
	return http.StatusForbidden
}

// refusal is what a client is told about a denial, as JSON.
type refusal struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Name    string `json:"name,omitempty"`
	Port    uint16 `json:"port,omitempty"`
}

// answer tells a client about a denial: the reason, and in a line for people what it is about; the same as
// JSON, if it would rather have that.
func answer(w http.ResponseWriter, r *http.Request, rec *record, reason policy.Reason, status int, text string) {
	h := w.Header()
	h.Set(reasonField, reason.String())
	h.Set("X-Content-Type-Options", "nosniff") // the text may quote what the client sent
	if expectsContinue(r) {
		h.Set("Connection", "close")
	}
	if !prefersJSON(r) {
		h.Set("Content-Type", typeText+"; charset=utf-8")
		w.WriteHeader(status)
		fmt.Fprintf(w, "sandboxallow: %v: %s\n", reason, text)
		return
	}
	h.Set("Content-Type", typeJSON)
	w.WriteHeader(status)
	name := rec.Name[:min(len(rec.Name), decision.MaxName)]
	json.NewEncoder(w).Encode(refusal{reason.String(), text, name, rec.Port}) // an error is that of a client that has gone
}

const (
	typeText = "text/plain"
	typeJSON = "application/json"

	maxAccept = 1024 // octets; browsers send some 150
)

// prefersJSON reports whether a client would rather have JSON than text (RFC 9110 §12.5.1). One that takes
// anything gets text.
func prefersJSON(r *http.Request) bool {
	accept := strings.Join(r.Header["Accept"], ",")
	return len(accept) <= maxAccept && goautoneg.Negotiate(accept, []string{typeText, typeJSON}) == typeJSON
}
