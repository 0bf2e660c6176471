package caddymodule

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func TestPrefersJSON(t *testing.T) {
	for _, tc := range []struct {
		name   string
		accept []string
		want   bool
	}{
		{"nothing said", nil, false},
		{"curl", []string{"*/*"}, false},
		{"a browser", []string{"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"}, false},
		{"a client of an API", []string{"application/json"}, true},
		{"axios", []string{"application/json, text/plain, */*"}, true},
		{"of any kind", []string{"application/*"}, true},
		{"text first", []string{"text/plain, application/json"}, false},
		{"text rather", []string{"application/json;q=0.5, text/plain"}, false},
		{"JSON rather", []string{"text/plain;q=0.5, application/json;q=0.9"}, true},
		{"JSON or whatever", []string{"application/json, */*;q=0.1"}, true},
		{"another JSON", []string{"application/vnd.github+json"}, false},
		{"two fields", []string{"text/html", "application/json"}, true},
		{"nothing that there is", []string{"image/png"}, false},
		{"malformed", []string{";;,,/,q=,application"}, false},
		{"endless", []string{strings.Repeat("a/b,", 300) + "application/json"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := prefersJSON(&http.Request{Header: http.Header{"Accept": tc.accept}}); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestAnswer(t *testing.T) {
	rec := &record{Record: decision.Record{Name: `evil".test<b>`, Port: 443}}
	ask := func(accept string) (*httptest.ResponseRecorder, *http.Request) {
		r := httptest.NewRequest(http.MethodGet, "http://evil.test/", nil)
		r.Header.Set("Accept", accept)
		return httptest.NewRecorder(), r
	}
	w, r := ask("*/*")
	answer(w, r, rec, policy.ReasonBadName, http.StatusForbidden, "that is no name")
	if got := w.Body.String(); got != "sandboxallow: bad_name: that is no name\n" || w.Code != 403 || w.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("text: got %d %v %q", w.Code, w.Header(), got)
	}
	w, r = ask("application/json")
	answer(w, r, rec, policy.ReasonBadName, http.StatusForbidden, "that is no name")
	var got refusal
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if want := (refusal{"bad_name", "that is no name", rec.Name, 443}); got != want || w.Code != 403 || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("JSON: got %d %v %q", w.Code, w.Header(), w.Body)
	}
	if w.Header().Get(reasonField) != "bad_name" || w.Header().Get("X-Content-Type-Options") != "nosniff" || strings.Contains(w.Body.String(), "<b>") {
		t.Errorf("JSON: got %v %q", w.Header(), w.Body)
	}
	rec.Name = strings.Repeat("x", 5000)
	w, r = ask("application/json")
	answer(w, r, rec, policy.ReasonBadName, http.StatusForbidden, "that is no name")
	if n := w.Body.Len(); n > 400 {
		t.Errorf("a long name makes an answer of %d octets", n)
	}
}
