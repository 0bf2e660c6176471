package caddymodule

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/sandboxallow/sandboxallow/internal/decision"
)

func init() {
	caddy.RegisterModule(new(Dashboard))
}

// Dashboard is a page for the operator: what each client was denied, and the line that would allow it, the
// decisions as they are made, the open tunnels, and the policies in force. It changes nothing, and asks nobody
// who they are: that is what Caddy's own basic_auth before it is for.
//
// It is the end of its route. Its server listens on Unix sockets and loopback addresses only, which no sandbox
// reaches, unless `allow_remote` says otherwise.
type Dashboard struct {
	// The host names, or addresses, that browsers reach the page by if not by a loopback address. With one of
	// them the server may listen on any address. Default: none.
	AllowRemote []string `json:"allow_remote,omitempty"`

	app     *App
	journal *journal
	used    bool            // the journal is, by this one
	serving context.Context // until the server shuts down
}

// CaddyModule returns the Caddy module information.
func (*Dashboard) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.sandboxallow_dashboard",
		New: func() caddy.Module { return new(Dashboard) },
	}
}

// Provision refuses a server that a sandbox may reach, and begins to keep what there is to show.
func (d *Dashboard) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	d.app = app
	srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return errors.New("sandboxallow dashboard must stand in a server of the http app")
	}
	if len(d.AllowRemote) == 0 {
		if err := onlyLocal(srv.Listen); err != nil {
			return fmt.Errorf("sandboxallow dashboard: %w", err)
		}
	}
	for _, host := range d.AllowRemote {
		if hostOf(host) != host || host == "" {
			return fmt.Errorf("sandboxallow dashboard: allow_remote %q, accepted are host names in lower case and addresses, without a port", host)
		}
	}
	var stop context.CancelFunc
	d.serving, stop = context.WithCancel(context.Background())
	srv.RegisterOnShutdown(stop) // which waits for requests to end, and those for events never do
	d.journal, d.used = recent.use(), true
	return nil
}

// Cleanup ends what Provision began.
func (d *Dashboard) Cleanup() error {
	if d.used { // requests may still be served
		d.used = false
		recent.release()
	}
	return nil
}

// onlyLocal refuses addresses to listen on that are neither Unix sockets nor loopback addresses.
func onlyLocal(listen []string) error {
	const accepted = "accepted are a Unix socket or a loopback address (bind 127.0.0.1), or allow_remote with what browsers call this site"
	if len(listen) == 0 {
		return errors.New("the server does not say where it listens, " + accepted)
	}
	for _, l := range listen {
		na, err := caddy.ParseNetworkAddress(l)
		if err != nil {
			return err
		}
		if !na.IsUnixNetwork() && !isLoopback(na.Host) {
			return fmt.Errorf("the server listens on %s, which a sandbox may reach: %s", l, accepted)
		}
	}
	return nil
}

// isLoopback reports whether a host is localhost or a loopback address (RFC 6761 §6.3).
func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.Unmap().IsLoopback()
}

// hostOf returns the host of an authority: without port, brackets and the dot at the end, in lower case.
func hostOf(authority string) string {
	host := authority
	if h, _, err := net.SplitHostPort(authority); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// ServeHTTP answers with the page, a file of it, or its events.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	guardPage(w.Header())
	if err := d.admit(r); err != nil {
		http.Error(w, "sandboxallow dashboard: "+err.Error(), http.StatusForbidden)
		return nil
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "sandboxallow dashboard: there is nothing to change here", http.StatusMethodNotAllowed)
		return nil
	}
	switch file := strings.TrimPrefix(r.URL.Path, "/"); file {
	case "":
		d.page(w)
	case "events":
		d.events(w, r)
	case "dashboard.css", "dashboard.js", "icon.svg":
		http.ServeFileFS(w, r, pageFiles, file)
	default:
		http.Error(w, "sandboxallow dashboard: there is no such page", http.StatusNotFound)
	}
	return nil
}

// guardPage sets the fields that keep a browser from doing with the page what it is not for: nothing runs or
// is shown but our own files, nobody frames it, other sites learn nothing, and nothing is stored.
func guardPage(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
		"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Embedder-Policy", "require-corp")
	h.Set("Cache-Control", "no-store")
}

// admit refuses requests that come from elsewhere than they should, whatever let them through: a redirected
// packet, or a page of another site in the operator's browser, whose name leads here by now (DNS rebinding).
func (d *Dashboard) admit(r *http.Request) error {
	host := hostOf(r.Host)
	if !isLoopback(host) && !slices.Contains(d.AllowRemote, host) {
		return fmt.Errorf("host %q, accepted are localhost, loopback addresses and what allow_remote names", decision.Printable(r.Host))
	}
	if len(d.AllowRemote) == 0 && !fromHere(r) {
		return fmt.Errorf("a request from %s, accepted are those of this host", r.RemoteAddr)
	}
	// A link may lead here from another site, and nothing else.
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return nil
	}
	if r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
		return nil
	}
	return errors.New("a request of another site")
}

// fromHere reports whether a connection is one of this host with itself.
func fromHere(r *http.Request) bool {
	if _, ok := localAddrOf(r).(*net.UnixAddr); ok {
		return true
	}
	return addrOf(localAddrOf(r)).IsLoopback() && clientOfRequest(r).IsLoopback()
}

//go:embed dashboard
var dashboardFiles embed.FS

// pageFiles are the files of the page.
var pageFiles = func() fs.FS {
	files, err := fs.Sub(dashboardFiles, "dashboard")
	if err != nil {
		panic(err) // they are part of the binary
	}
	return files
}()

// clock shows the time of day of a time of the view.
func clock(s string) string {
	_, day, _ := strings.Cut(s, "T")
	hms, _, _ := strings.Cut(day, ".")
	if hms == "" {
		return ""
	}
	return hms + " UTC"
}

var pageTemplate = template.Must(template.New("page.html").Funcs(template.FuncMap{"clock": clock}).ParseFS(pageFiles, "page.html"))

func (d *Dashboard) page(w http.ResponseWriter) {
	v := d.view(0)
	v.latestFirst()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	pageTemplate.Execute(w, v) // an error is that of a client that has gone
}

// view returns what there is to see, of the past only what changed after a change.
func (d *Dashboard) view(change uint64) view {
	p := d.journal.since(change)
	v := viewOf(p, open.all(), d.app.store, time.Now())
	v.Cursor = cursor{d.journal.epoch, p.change}.String()
	return v
}

// UnmarshalCaddyfile sets up the dashboard. Syntax:
//
//	sandboxallow [<matcher>] dashboard {
//		allow_remote <host>...
//	}
func (d *Dashboard) UnmarshalCaddyfile(disp *caddyfile.Dispenser) error {
	disp.Next() // the directive's name
	if !disp.NextArg() || disp.Val() != "dashboard" || disp.NextArg() {
		return disp.ArgErr()
	}
	for nesting := disp.Nesting(); disp.NextBlock(nesting); {
		if option := disp.Val(); option != "allow_remote" {
			return disp.Errf("unknown option %q, accepted is allow_remote", option)
		}
		if d.AllowRemote != nil {
			return disp.Err("allow_remote is given twice")
		}
		if d.AllowRemote = disp.RemainingArgs(); len(d.AllowRemote) == 0 {
			return disp.Err("allow_remote without a host, accepted are those that browsers call this site by")
		}
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Dashboard)(nil)
	_ caddy.CleanerUpper          = (*Dashboard)(nil)
	_ caddyhttp.MiddlewareHandler = (*Dashboard)(nil)
	_ caddyfile.Unmarshaler       = (*Dashboard)(nil)
)
