package sandboxallow

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func init() { plugin.Register(name, setup) }

func setup(c *caddy.Controller) error {
	if behindCache() {
		return plugin.Error(name, c.Errf("this binary has sandboxallow behind cache, which would answer for names that are no longer allowed: put its line right after acl in plugin.cfg"))
	}
	s, err := parse(c)
	if err != nil {
		return plugin.Error(name, err)
	}
	s.instance = instanceOf(c)

	dnsserver.GetConfig(c).AddPlugin(func(plugin.Handler) plugin.Handler { return s })

	c.OnStartup(func() error {
		s.start()
		s.instance.once.Do(func() {
			for _, w := range unfiltered(configs(c)) {
				log.Warning(w)
			}
		})
		return nil
	})
	c.OnShutdown(func() error {
		s.stop()
		return nil
	})
	// A new instance whose listeners cannot be opened has run OnStartup and gets no OnShutdown: the old one
	// is told, and stops what the new one has started.
	c.OnRestartFailed(func() error {
		stopOrphans()
		return nil
	})
	return nil
}

// behindCache reports whether the binary was built with the plugin in the wrong place, as COREDNS_PLUGINS
// would put it.
func behindCache() bool {
	cache := slices.Index(dnsserver.Directives, "cache")
	return cache >= 0 && cache < slices.Index(dnsserver.Directives, name)
}

// load gets the policy in force at start, or the error that stops it.
func (s *SandboxAllow) load(src policy.Source, o policy.Options) error {
	o.OnChange = s.changed
	o.OnError = func(err error) {
		reloadFailuresTotal.Inc()
		log.Errorf("Keeping the last good policy: %v", err)
	}
	store, err := policy.NewStore(src, o)
	if err != nil {
		return err
	}
	s.store = store
	return nil
}

// announce logs what is in force from now on.
func announce(set *policy.Set) {
	const most = 8 // where there is a policy for each sandbox
	names, more := set.Policies(), ""
	if len(names) > most {
		names, more = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
	}
	log.Infof("Policy %s%s in force, hash %s", strings.Join(names, ", "), more, set.Hash())
	for _, w := range set.Warnings() {
		log.Warning(w)
	}
}

// changed is told of every set of policies that a reload puts in force.
func (s *SandboxAllow) changed(set *policy.Set) {
	announce(set)
	if l := s.listener; l.policy != "" && !set.HasPolicy(l.policy) {
		log.Warningf("%s: policy %q is no longer in the document, every name is denied (no_policy)", l.where, l.policy)
	}
	running.changed()
}

// start begins to watch the policy.
func (s *SandboxAllow) start() {
	if s.running.Swap(true) {
		return
	}
	announce(s.store.Set())
	s.store.Start()
	running.add(s)
}

// stop ends what start began. It does nothing if the plugin does not run.
func (s *SandboxAllow) stop() {
	if !s.running.Swap(false) {
		return
	}
	running.remove(s)
	s.store.Stop()
	s.folder.Flush()
}

// instance is what the plugins of one Corefile share.
type instance struct {
	once sync.Once // of the warnings about server blocks
}

type instanceKey struct{}

// instanceOf returns the instance that c sets up, making it for the first plugin.
func instanceOf(c *caddy.Controller) *instance {
	i, ok := c.Get(instanceKey{}).(*instance)
	if !ok {
		i = &instance{}
		c.Set(instanceKey{}, i)
	}
	return i
}

// stopOrphans stops the plugins of instances that Caddy has given up.
func stopOrphans() {
	alive := map[*instance]bool{}
	for _, i := range caddy.Instances() {
		i.StorageMu.RLock()
		if in, ok := i.Storage[instanceKey{}].(*instance); ok {
			alive[in] = true
		}
		i.StorageMu.RUnlock()
	}
	for _, s := range running.all() {
		if !alive[s.instance] {
			s.stop()
		}
	}
}
