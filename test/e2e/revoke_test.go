//go:build linux

package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"
)

// stream is an answer without end: what comes of it, and a check that more is to come.
type stream struct {
	io.Reader
	goesOn func()
}

// broken waits for the end of a stream, and returns it.
func (s stream) broken() error {
	for b := make([]byte, 4096); ; {
		if _, err := s.Read(b); err != nil {
			return err
		}
	}
}

// A change of the policy ends what it no longer allows, by whichever way it came, and nothing else.
func TestRevoked(t *testing.T) {
	const kept, removed = allowedHost, evilHost
	l, g := httpLab(t, config{policy: allowing(kept, removed)})
	secure := func(c net.Conn, host string) net.Conn { return tls.Client(c, l.ca.client(host)) }
	kinds := []struct {
		name, layer string
		open        func(t *testing.T, host string) stream
	}{
		{"tunnel", "tls", func(t *testing.T, host string) stream {
			return openEvents(t, converseOver(secure(l.converse(t, gatewayTLS), host)), "", host)
		}},
		{"connect", "proxy", func(t *testing.T, host string) stream {
			return openEvents(t, converseOver(secure(l.connectTo(t, host+":443"), host)), "", host)
		}},
		{"events", "http", func(t *testing.T, host string) stream {
			return openEvents(t, l.converse(t, gatewayHTTP), "", host)
		}},
		{"events by proxy", "proxy", func(t *testing.T, host string) stream {
			return openEvents(t, l.converse(t, gatewayProxy), "http://"+host, host)
		}},
		{"socket", "http", func(t *testing.T, host string) stream {
			ws := openSocket(t, l.converse(t, gatewayHTTP), "ws://"+host+"/socket")
			return stream{ws, func() { talks(t, ws) }}
		}},
		{"secure socket by proxy", "proxy", func(t *testing.T, host string) stream {
			ws := openSocket(t, secure(l.connectTo(t, host+":443"), host), "wss://"+host+"/socket")
			return stream{ws, func() { talks(t, ws) }}
		}},
	}
	stay, ends := make([]stream, len(kinds)), make([]stream, len(kinds))
	wantRevoked := make(map[string]int) // by layer
	for i, k := range kinds {
		stay[i], ends[i] = k.open(t, kept), k.open(t, removed)
		wantRevoked[k.layer]++
	}
	// Connections that are kept alive, with nothing in progress.
	plain, proxy := l.converse(t, gatewayHTTP), l.converse(t, gatewayProxy)
	plain.ask(t, head("GET /", removed)).is(t, page(removed))
	proxy.ask(t, head("GET http://"+removed+"/", removed)).is(t, page(removed))

	mark := g.caddy.log.mark()
	g.setPolicy(t, allowing("another.example.com", kept, removed))
	g.inForce(t)
	for i := range kinds {
		ends[i].goesOn()
	}
	g.setPolicy(t, allowing(kept))
	start := time.Now()
	for i, k := range kinds {
		err := ends[i].broken()
		if d := time.Since(start); errors.Is(err, os.ErrDeadlineExceeded) || d > applies {
			t.Errorf("%s to the name that was removed: %v after %s, want its end within %s", k.name, err, d, applies)
		}
		// Half an answer must not look like all of it; a WebSocket ends well by a message alone.
		if k.name != "socket" && err == io.EOF {
			t.Errorf("%s to the name that was removed ends as if it were complete", k.name)
		}
		stay[i].goesOn()
	}
	must(t, 5*time.Second, "each end is logged", func() bool {
		revoked := make(map[string]int)
		for _, d := range g.decisions(mark) {
			if d.Msg == msgRevoked && d.Name == removed && d.Reason == "not_allowed" && d.BytesOut > 0 {
				revoked[d.Layer]++
			}
		}
		return fmt.Sprint(revoked) == fmt.Sprint(wantRevoked)
	})
	t.Run("reload-011", func(t *testing.T) {
		plain.ask(t, head("GET /", removed)).refuses(t, http.StatusForbidden, "not_allowed")
		plain.ask(t, head("GET /", kept)).is(t, page(kept))
		proxy.ask(t, head("GET http://"+removed+"/", removed)).refuses(t, http.StatusForbidden, "not_allowed")
		proxy.ask(t, head("CONNECT "+removed+":443", removed)).refuses(t, http.StatusForbidden, "not_allowed")
		proxy.ask(t, head("GET http://"+kept+"/", kept)).is(t, page(kept))
	})
}

// openEvents asks for an event stream; base comes before the path.
func openEvents(t *testing.T, c *conversation, base, host string) stream {
	t.Helper()
	const every = 100 * time.Millisecond
	c.say(t, head("GET "+base+"/events?every="+every.String(), host))
	body, heard, start := c.stream(t), 0, time.Now()
	s := stream{Reader: body, goesOn: func() {
		t.Helper()
		n := int(time.Since(start)/every) + 3 - heard // so many cannot be there yet
		hears(t, body, n)
		heard += n
	}}
	s.goesOn()
	return s
}
