//go:build linux

package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/websocket"
)

// api is a web server that wants a key, as those of models do, and keeps what it was asked. It speaks HTTP/1.1 and
// HTTP/2 over TLS. Besides what a web has at each of its names:
//
//	POST /v1/chat/completions  the answer to a prompt as an event stream, of which all but the first event waits
//	                           until the test lets it go on
//	/v1/...                    "you are in"
//	/echo                      all that was sent, in the body, in fields of the header and in the trailer
//	/echo/slowly               the same body, an octet at a time
//	/echo/early                the same header, before that of the answer (103)
//	/echo/socket               a WebSocket that begins with all that was sent, and then sends back what it gets
//	/both                      the body, sent back as it comes, and a trailer as gRPC has it
//	/status/CODE               an answer with that status
//
// Below /v1 a request without the key of its name gets 401.
type api struct {
	srv  *http.Server
	door *door

	mu    sync.Mutex
	keys  map[string]field // by host
	calls []call
	chats map[string]chan struct{}
}

// field is one of a header.
type field struct{ name, value string }

// call is a request as it came from the wire.
type call struct {
	heard
	ServerName string // of the ClientHello
	Proto      string
	Body       string
	Trailer    http.Header
}

// newAPI makes a server for the time of a test. Its certificates are those of ca.
func newAPI(ca *authority, w *web) *api {
	a := &api{door: newDoor(), keys: make(map[string]field), chats: make(map[string]chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", a.keyed(a.chat))
	mux.HandleFunc("/v1/", a.keyed(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, welcome) }))
	mux.HandleFunc("/echo", func(rw http.ResponseWriter, r *http.Request) {
		all := sent(r)
		for name, values := range r.Header {
			rw.Header()["X-Echo-"+name] = values
		}
		rw.Header().Set("Set-Cookie", "all="+strings.ReplaceAll(r.Header.Get("Authorization"), " ", "+"))
		rw.Header().Set("Trailer", "X-Echo")
		_, _ = io.WriteString(rw, all)
		rw.Header().Set("X-Echo", strings.Join(strings.Fields(all), " "))
	})
	mux.HandleFunc("/echo/slowly", func(rw http.ResponseWriter, r *http.Request) {
		for _, b := range []byte(sent(r)) {
			_, _ = rw.Write([]byte{b})
			_ = http.NewResponseController(rw).Flush()
		}
	})
	mux.HandleFunc("/echo/early", func(rw http.ResponseWriter, r *http.Request) {
		for _, values := range r.Header {
			rw.Header().Add("Link", strings.Join(values, " "))
		}
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Del("Link")
		_, _ = io.WriteString(rw, "late\n")
	})
	mux.Handle("/echo/socket", websocket.Server{Handler: func(c *websocket.Conn) {
		_, _ = io.WriteString(c, sent(c.Request()))
		_, _ = io.Copy(c, c)
	}})
	mux.HandleFunc("/both", both)
	mux.HandleFunc("/status/{code}", func(rw http.ResponseWriter, r *http.Request) {
		var code int
		_, _ = fmt.Sscan(r.PathValue("code"), &code)
		http.Error(rw, sent(r), max(code, 200))
	})
	mux.Handle("/", w.srv.Handler)
	a.srv = &http.Server{
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.URL.Path, "/v1/") && r.URL.Path != "/both" && r.Body != http.NoBody {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(strings.NewReader(string(body)))
				a.note(r, string(body))
			} else {
				a.note(r, "")
			}
			mux.ServeHTTP(rw, r)
		}),
		TLSConfig: &tls.Config{GetCertificate: ca.certificate},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	go func() { _ = a.srv.ServeTLS(a.door, "", "") }()
	return a
}

// welcome is what whoever has the key gets.
const welcome = "you are in\n"

// take is a handler for internet.serve.
func (a *api) take(c net.Conn) { a.door.enter(c) }

func (a *api) close() { _ = a.srv.Close() }

// host gives a name to the server, and a key to the name.
func (a *api) host(i *internet, name string, key field, at netip.Addr) error {
	a.rekey(name, key)
	i.dns.set(name, addrs(at))
	_, err := i.serve(i.ns, netip.AddrPortFrom(at, 443), a.take)
	return err
}

// rekey gives a name another key.
func (a *api) rekey(name string, key field) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keys[name] = key
}

// note keeps a request.
func (a *api) note(r *http.Request, body string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, call{
		heard:      heard{r.Method, r.RequestURI, r.Host, r.Header.Clone()},
		ServerName: r.TLS.ServerName,
		Proto:      r.Proto,
		Body:       body,
		Trailer:    r.Trailer.Clone(),
	})
}

// since returns the requests behind the first n.
func (a *api) since(n int) []call {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]call(nil), a.calls[n:]...)
}

// count is how many requests there were.
func (a *api) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.calls)
}

// keyed lets a request through that has the key of its name.
func (a *api) keyed(next http.HandlerFunc) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		name, _, _ := strings.Cut(r.Host, ":")
		a.mu.Lock()
		key, known := a.keys[name]
		a.mu.Unlock()
		if !known || len(r.Header[key.name]) != 1 || r.Header.Get(key.name) != key.value {
			http.Error(rw, "no key, or not the right one", http.StatusUnauthorized)
			return
		}
		next(rw, r)
	}
}

// tokens are what the model says, an event each.
var tokens = []string{"Once", " upon", " a", " time", "."}

// story is all of them.
var story = strings.Join(tokens, "")

// chat streams the tokens in the form of OpenAI's chat completions.
func (a *api) chat(rw http.ResponseWriter, r *http.Request) {
	var asked struct {
		Model  string
		Stream bool
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || !asked.Stream {
		http.Error(rw, "not a request for a stream", http.StatusBadRequest)
		return
	}
	rw.Header().Set("Content-Type", "text/event-stream")
	for i, token := range tokens {
		if i == 1 {
			select {
			case <-a.going(asked.Model):
			case <-r.Context().Done():
				return
			case <-time.After(clientTimeout):
				return
			}
		}
		delta, _ := json.Marshal(map[string]any{
			"object":  "chat.completion.chunk",
			"choices": []any{map[string]any{"index": 0, "delta": map[string]string{"content": token}}},
		})
		_, _ = fmt.Fprintf(rw, "data: %s\n\n", delta)
		_ = http.NewResponseController(rw).Flush()
	}
	_, _ = io.WriteString(rw, "data: [DONE]\n\n")
}

// going is closed once the stream of a model may go on.
func (a *api) going(model string) chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.chats[model] == nil {
		a.chats[model] = make(chan struct{})
	}
	return a.chats[model]
}

// goOn lets the stream of a model go on. It is for one stream.
func (a *api) goOn(model string) { close(a.going(model)) }

// sent is all of a request but its body, as it was sent.
func sent(r *http.Request) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s %s\nHost: %s\n", r.Method, r.RequestURI, r.Proto, r.Host)
	_ = r.Header.Write(&text)
	return text.String()
}

// both sends back what it gets while it gets it.
func both(rw http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(rw).EnableFullDuplex()
	rw.Header().Set("Trailer", "Grpc-Status")
	rw.Header().Set("Content-Type", "application/grpc")
	rw.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(rw).Flush()
	b := make([]byte, 4<<10)
	for {
		n, err := r.Body.Read(b)
		_, _ = rw.Write(b[:n])
		_ = http.NewResponseController(rw).Flush()
		if err != nil {
			break
		}
	}
	rw.Header().Set("Grpc-Status", "0")
}
