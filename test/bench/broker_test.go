package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
)

// TestBrokeredLoad has the load of the suite broker go to a server of the test, which grants it at first.
func TestBrokeredLoad(t *testing.T) {
	var refuses atomic.Bool
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS.ServerName != brokeredName || refuses.Load() {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Write(zeros[:pageSize])
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // the end of the load comes within handshakes too
	srv.StartTLS()
	defer srv.Close()
	addr := netip.MustParseAddrPort(srv.Listener.Addr().String())
	s := &server{addr: addr, webPort: addr.Port()}
	got, err := requestingSecurely(2).observe(t.Context(), s, short)
	if err != nil {
		t.Fatal(err)
	}
	if got.done <= 0 || got.wall < short.window {
		t.Errorf("got %v in %v, want something in at least %v", got.done, got.wall, short.window)
	}
	refuses.Store(true)
	if _, err := requestingSecurely(2).observe(t.Context(), s, short); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("got %v, want an error where the site refuses", err)
	}
}

// TestSecureUpstream holds that the upstream serves nobody without the credential.
func TestSecureUpstream(t *testing.T) {
	u, err := secureUpstream()
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: u.addr, webPort: u.addr.Port()}
	w, err := s.secureWeb()
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if err := w.get(brokeredName, true, http.StatusUnauthorized); err != nil {
		t.Error(err)
	}
}
