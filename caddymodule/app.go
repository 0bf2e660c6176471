// Package caddymodule is sandboxallow's part of Caddy: the app that holds the policy, the resolver and the
// limits, and accepts connections by TLS, decides on them and tunnels them, the layer4 handler that does so with those
// of a route, and of PostgreSQL too, and the HTTP handler that decides on requests and forwards them, as a forward
// proxy too.
package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/floor"
	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
	"github.com/sandboxallow/sandboxallow/internal/upstream"
)

func init() {
	caddy.RegisterModule(new(App))
}

// What zero means in an App.
const (
	defaultHelloTimeout = 5 * time.Second
	defaultDialTimeout  = 5 * time.Second
	defaultIdleTimeout  = 15 * time.Minute // model streams pause for minutes
)

// drainTimeout is how long the last app waits, when it is stopped, for decisions that are still to be logged.
const drainTimeout = time.Second

// App holds what all sandboxallow handlers of a configuration share: the policy, which it watches, the
// resolver, the floor of addresses that are never dialled, and the limits.
type App struct {
	// The path of the policy document. Either this or `policy` is required.
	PolicyFile string `json:"policy_file,omitempty"`

	// The lines of a policy that stands in the configuration itself. It becomes the policy `default`, which
	// is for every client.
	Policy []policy.Line `json:"policy,omitempty"`

	// The DNS servers that names are resolved with, as `address` or `address:port`. Default: those of
	// /etc/resolv.conf. They may stand on private addresses, and must not be the CoreDNS that answers the
	// sandboxes.
	Resolvers []string `json:"resolvers,omitempty"`

	// Addresses that are never dialled, besides those that no configuration can lift: prefixes of the
	// operator's own networks with public addresses, or the address that this host has behind NAT.
	DenyAddresses []string `json:"deny_addresses,omitempty"`

	// How often the policy document and its lists are looked at. Default: 1s.
	Poll caddy.Duration `json:"poll,omitempty"`

	// How long a client may take to send its TLS ClientHello, and what PostgreSQL has before it. Default: 5s.
	HelloTimeout caddy.Duration `json:"hello_timeout,omitempty"`

	// How long connecting to an upstream may take, resolving not included; and again the answer of a PostgreSQL
	// server that is asked for TLS. Default: 5s.
	DialTimeout caddy.Duration `json:"dial_timeout,omitempty"`

	// How long a tunnel lives in which no byte moves. Default: 15m.
	IdleTimeout caddy.Duration `json:"idle_timeout,omitempty"`

	// How many connections are held at most; more are refused. Default: what the limit of open file
	// descriptors leaves room for, which is two for each tunnel.
	MaxTunnels int `json:"max_tunnels,omitempty"`

	// Where connections of TLS are accepted, besides the layer4 servers with our handler.
	Listen []*Listener `json:"listen,omitempty"`

	log     *zap.Logger
	metrics *metrics
	store   *policy.Store
	floor   *floor.Floor
	dialer  *upstream.Dialer

	folder *decision.Folder // of denials that clients repeat

	upstreams *upstreams
	guarded   map[*caddyhttp.Server]bool // whose connections are counted

	ctx     caddy.Context
	sites   func() (*sites, error)     // what findSites has found
	brokers map[*caddyhttp.Server]bool // that are set up
	feeders int                        // handlers that lead to sites
	inside  *inside                    // what they listen on
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "sandboxallow",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision loads the policy and sets up the resolver. It starts nothing: `caddy validate` provisions too.
func (a *App) Provision(ctx caddy.Context) error {
	a.log = ctx.Logger()
	a.ctx = ctx
	a.sites = sync.OnceValues(a.findSites)
	a.inside = new(inside)
	if err := a.setDefaults(); err != nil {
		return err
	}
	deny, err := parseAddresses(a.DenyAddresses)
	if err != nil {
		return err
	}
	a.floor = floor.New(deny)

	src := policy.Source{File: a.PolicyFile, Inline: a.Policy}
	a.store, err = policy.NewStore(src, policy.Options{
		Poll:     time.Duration(a.Poll),
		OnChange: a.policyChanged,
		OnError:  a.policyFailed,
	})
	if err != nil {
		return err
	}
	if err := a.provisionListeners(); err != nil {
		return err
	}
	a.warn(a.store.Set())
	a.metrics = newMetrics(ctx.GetMetricsRegistry(), a.store)

	resolver, err := upstream.NewResolver(upstream.ResolverConfig{
		Servers:  a.Resolvers,
		Parallel: lookupsFor(descriptorLimit()),
	})
	if err != nil {
		return err
	}
	a.dialer = &upstream.Dialer{
		Resolver: resolver,
		Floor:    a.floor,
		Timeout:  time.Duration(a.DialTimeout),

		ObserveResolve: a.metrics.resolved,
		ObserveDial:    a.metrics.dialled,
	}

	a.folder = newFolder(a.writeFolded)
	a.upstreams = &upstreams{
		dial:     a.dialer.Dial,
		idle:     time.Duration(a.IdleTimeout),
		waiting:  idleFor(descriptorLimit()),
		panicked: func(p any) { a.panicked("panic while dialling", p, debug.Stack()) },
	}

	// The listeners are other apps'. This event comes when all are up.
	events, err := ctx.App("events")
	if err != nil {
		return err
	}
	return events.(*caddyevents.App).On("started", onStarted(a.started))
}

// onStarted is called once all apps of a configuration are up.
type onStarted func()

// Handle implements caddyevents.Handler.
func (f onStarted) Handle(context.Context, caddy.Event) error {
	f()
	return nil
}

// started does what takes the listeners and handlers of the other apps.
func (a *App) started() {
	a.boundBacklog()
	a.warnOfHosts()
	a.warnOfSites()
}

func (a *App) setDefaults() error {
	for _, d := range []struct {
		name  string
		value *caddy.Duration
		zero  time.Duration
	}{
		{"poll", &a.Poll, policy.DefaultPoll},
		{"hello_timeout", &a.HelloTimeout, defaultHelloTimeout},
		{"dial_timeout", &a.DialTimeout, defaultDialTimeout},
		{"idle_timeout", &a.IdleTimeout, defaultIdleTimeout},
	} {
		if *d.value < 0 {
			return fmt.Errorf("%s is %v, accepted are positive durations such as 5s", d.name, time.Duration(*d.value))
		}
		if *d.value == 0 {
			*d.value = caddy.Duration(d.zero)
		}
	}
	if a.MaxTunnels < 0 {
		return fmt.Errorf("max_tunnels is %d, accepted are positive numbers", a.MaxTunnels)
	}
	if a.MaxTunnels == 0 {
		a.MaxTunnels = tunnelsFor(descriptorLimit(), uint64(tunnel.PipeDescriptors()))
	}
	return nil
}

func parseAddresses(ss []string) ([]netip.Prefix, error) {
	var ps []netip.Prefix
	for _, s := range ss {
		p, err := policy.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("deny_addresses: %w", err)
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// Start begins to watch the policy and to accept connections. From now on this configuration judges what is open,
// whichever configuration opened it.
func (a *App) Start() error {
	if _, err := a.sites(); err != nil {
		return err
	}
	if err := a.listenAlone(); err != nil {
		return err
	}
	a.store.Start()
	if err := a.listen(); err != nil {
		a.store.Stop()
		return err
	}
	// Who is served by this configuration is judged by it.
	running.add(a)
	if err := a.serve(); err != nil {
		a.Stop()
		return err
	}
	a.log.Info("policy in force", a.policyFields(a.store.Set())...)
	return nil
}

// Stop ends what Start began. With the last configuration go the tunnels.
func (a *App) Stop() error {
	a.unlisten()
	running.remove(a)
	a.store.Stop()
	a.upstreams.forget()
	if running.judge() == nil {
		tunnel.Drain(drainTimeout)
	}
	a.folder.Flush()
	return nil
}

func (a *App) policyChanged(set *policy.Set) {
	a.log.Info("policy in force", a.policyFields(set)...)
	a.warn(set)
	a.upstreams.forget()
	if running.judge() == a {
		open.recheck(a)
	}
}

// warn logs what deserves a look in a set.
func (a *App) warn(set *policy.Set) {
	for _, w := range set.Warnings() {
		a.log.Warn("policy warning", zap.String("warning", w))
	}
}

func (a *App) policyFields(set *policy.Set) []zap.Field {
	return []zap.Field{
		zap.String("policies", strings.Join(set.Policies(), " ")),
		zap.Int("rules", set.Rules()),
		zap.String("hash", set.Hash()),
	}
}

func (a *App) policyFailed(err error) {
	a.metrics.reloadFailures.Inc()
	a.log.Error("policy not taken, the last good one stays in force", zap.Error(err))
}

// needPolicy is what a handler that names a policy calls when it is provisioned.
func (a *App) needPolicy(name, where string) error {
	if name == "" || a.store.Set().HasPolicy(name) {
		return nil
	}
	err := fmt.Errorf("policy %q does not exist, accepted are %s", name, strings.Join(a.store.Set().Policies(), ", "))
	if where != "" {
		err = fmt.Errorf("%s: %w", where, err)
	}
	return err
}

// appOf returns the app of the configuration that ctx belongs to.
func appOf(ctx caddy.Context) (*App, error) {
	mod, err := ctx.AppIfConfigured("sandboxallow")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return nil, errors.New("no sandboxallow app: the global options need a sandboxallow block with a policy_file or the lines of a policy")
	}
	if err != nil {
		return nil, err
	}
	return mod.(*App), nil
}

// Interface guards
var (
	_ caddy.App         = (*App)(nil)
	_ caddy.Provisioner = (*App)(nil)
)
