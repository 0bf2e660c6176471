//go:build linux

package e2e

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/websocket"
)

// repoName is the name whose page is in the repository.
const repoName = "api.example.com"

// web is the web server behind every public name: HTTP/1.1 and HTTP/2 over TLS 1.0 to 1.3, and HTTP/1.1
// without TLS.
//
//	/               the page of the name
//	/data?size=N    N octets, the same ones each time
//	/code.git       a repository with the page of repoName, by git's smart protocol
//	/request        the request, as JSON of a heard
//	/redirect?to=U  302 to U
//	/events?every=D an event stream without end: an event at once and one after each duration
//	/socket         a WebSocket that sends back what it gets
type web struct {
	srv   *http.Server // of TLS: a server that serves both may set up no HTTP/2
	clear *http.Server
	tls   *door
	plain *door
	repos string // the folder with code.git; "" before publish
}

// heard is what the web server was asked, as it came from the wire.
type heard struct {
	Method, Target, Host string
	Header               http.Header
}

func newWeb(ca *authority) *web {
	w := &web{tls: newDoor(), plain: newDoor()}
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(rw http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(rw, page(r.Host)) })
	mux.HandleFunc("/data", func(rw http.ResponseWriter, r *http.Request) {
		size, _ := strconv.ParseInt(r.FormValue("size"), 10, 64)
		rw.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		_, _ = io.Copy(rw, data(size))
	})
	mux.HandleFunc("/code.git/", func(rw http.ResponseWriter, r *http.Request) {
		git := cgi.Handler{
			Path:   gitPath(),
			Args:   []string{"http-backend"},
			Env:    []string{"GIT_PROJECT_ROOT=" + w.repos, "GIT_HTTP_EXPORT_ALL=1"},
			Stderr: io.Discard,
		}
		git.ServeHTTP(rw, r)
	})
	mux.HandleFunc("/request", func(rw http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(rw).Encode(heard{r.Method, r.RequestURI, r.Host, r.Header})
	})
	mux.HandleFunc("/redirect", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Location", r.FormValue("to"))
		rw.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/events", sendEvents)
	mux.Handle("/socket", websocket.Server{Handler: func(c *websocket.Conn) { _, _ = io.Copy(c, c) }})
	w.srv = &http.Server{
		Handler:   mux,
		TLSConfig: &tls.Config{GetCertificate: ca.certificate, MinVersion: tls.VersionTLS10},
		// Connections that come to nothing are what half of the tests are about.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	w.clear = &http.Server{Handler: mux, ErrorLog: w.srv.ErrorLog}
	go func() { _ = w.srv.ServeTLS(w.tls, "", "") }()
	go func() { _ = w.clear.Serve(w.plain) }()
	return w
}

// event is one of /events.
const event = "data: tick\n\n"

func sendEvents(rw http.ResponseWriter, r *http.Request) {
	every, err := time.ParseDuration(r.FormValue("every"))
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	rw.Header().Set("Content-Type", "text/event-stream")
	for ticks := time.Tick(every); ; {
		if _, err := io.WriteString(rw, event); err != nil {
			return
		}
		_ = http.NewResponseController(rw).Flush()
		select {
		case <-ticks:
		case <-r.Context().Done():
			return
		}
	}
}

// page is what the server of a name says at /.
func page(name string) string { return "this is " + name + "\n" }

// data is a stream of size octets that no compression shortens.
func data(size int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{}), size)
}

// sum is the SHA-256 of data(size).
func sum(size int64) string {
	h := sha256.New()
	_, _ = io.Copy(h, data(size))
	return hex.EncodeToString(h.Sum(nil))
}

// take and takePlain are handlers for internet.serve: the connection is served as HTTPS or as HTTP.
func (w *web) take(c net.Conn)      { w.tls.enter(c) }
func (w *web) takePlain(c net.Conn) { w.plain.enter(c) }

func (w *web) close() {
	_ = w.srv.Close()
	_ = w.clear.Close()
}

// door is a net.Listener that gets its connections from those of all addresses.
type door struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newDoor() *door { return &door{conns: make(chan net.Conn), done: make(chan struct{})} }

// enter hands a connection to whoever accepts.
func (d *door) enter(c net.Conn) {
	select {
	case d.conns <- c:
	case <-d.done:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (d *door) Close() error {
	d.once.Do(func() { close(d.done) })
	return nil
}

// Addr implements net.Listener.
func (d *door) Addr() net.Addr { return &net.TCPAddr{} }

func gitPath() string {
	path, _ := exec.LookPath("git")
	return path
}

// publish makes the repository, with one commit of one file: page, with page(repoName).
func (w *web) publish(dir string) error {
	w.repos = dir
	repo := filepath.Join(dir, "code.git")
	text := page(repoName)
	// The stream of `git fast-import`: neither a work tree nor a configured author is needed.
	stream := fmt.Sprintf("commit refs/heads/main\ncommitter lab <lab@example.com> 0 +0000\ndata 0\nM 644 inline page\ndata %d\n%s\ndone\n",
		len(text), text)
	for _, step := range []struct {
		args  []string
		stdin string
	}{
		{[]string{"init", "--quiet", "--bare", "--initial-branch=main", repo}, ""},
		{[]string{"--git-dir", repo, "fast-import", "--quiet", "--done"}, stream},
	} {
		cmd := exec.Command(gitPath(), step.args...)
		cmd.Stdin = strings.NewReader(step.stdin)
		cmd.Env = append(os.Environ(), "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w: %s", strings.Join(step.args, " "), err, out)
		}
	}
	return nil
}
