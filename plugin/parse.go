package sandboxallow

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

const (
	defaultTTL      = 60    // seconds
	defaultNegative = 5     // seconds; more would make an added name wait in every stub
	maxTTL          = 86400 // seconds
	defaultPoll     = time.Second
	minPoll         = 100 * time.Millisecond
)

// parse reads the directive of one server block and loads the policy that it names.
func parse(c *caddy.Controller) (*SandboxAllow, error) {
	s := &SandboxAllow{
		zones:    plugin.OriginsFromArgsOrServerBlock(nil, c.ServerBlockKeys),
		ttl:      defaultTTL,
		negative: defaultNegative,
		folder:   decision.NewFolder(write),
	}
	o := policy.Options{Poll: defaultPoll}
	var src policy.Source

	c.Next() // sandboxallow
	start := fmt.Sprintf("%s:%d", c.File(), c.Line())
	if len(c.RemainingArgs()) > 0 {
		return nil, c.ArgErr()
	}
	where := map[string]string{} // file:line of the options so far
	for c.NextBlock() {
		word, line := c.Val(), c.Line()
		args := c.RemainingArgs()
		if c.NextArg() {
			return nil, c.Errf("%q opens no block", word)
		}
		var err error
		switch word {
		case "answer":
			s.v4, s.v6, err = parseAnswer(c, args)
		case "policy_file":
			src.File, err = parsePath(c, args)
		case "policy":
			s.listener.policy, err = parseWord(c, args)
		case "ttl":
			s.ttl, err = parseTTL(c, args)
		case "negative_ttl":
			s.negative, err = parseTTL(c, args)
		case "poll":
			o.Poll, err = parsePoll(c, args)
		case "log":
			s.verbosity, err = parseLog(c, args)
		default:
			// Not ours, so it is of a policy: that parser knows all its words, and says which they are.
			words := append([]string{word}, args...)
			src.Inline = append(src.Inline, policy.Line{File: c.File(), Line: line, Words: words})
			continue
		}
		if err != nil {
			return nil, err
		}
		if where[word] != "" {
			return nil, c.Errf("%s is given twice", word)
		}
		where[word] = fmt.Sprintf("%s:%d", c.File(), line)
	}
	if c.Next() {
		if c.Val() == name {
			return nil, c.Errf("%s is given twice in one server block", name)
		}
		return nil, c.Errf("unexpected %q", c.Val())
	}

	switch {
	case where["answer"] == "":
		return nil, fmt.Errorf("%s: no answer, at least one address of the gateway is needed", start)
	case src.File != "" && len(src.Inline) > 0:
		l := src.Inline[0]
		return nil, fmt.Errorf("%s:%d: %q is of a policy, which stands in policy_file or here, not in both", l.File, l.Line, l.Words[0])
	case src.File == "" && len(src.Inline) == 0:
		return nil, fmt.Errorf("%s: no policy, accepted are policy_file PATH or the lines of a policy", start)
	}
	if err := s.load(src, o); err != nil {
		if src.File != "" { // whose errors say nothing of the Corefile
			err = fmt.Errorf("%s: %w", where["policy_file"], err)
		}
		return nil, err
	}
	s.listener.where = where["policy"]
	if l := s.listener; l.policy != "" && !s.store.Set().HasPolicy(l.policy) {
		return nil, fmt.Errorf("%s: policy %q does not exist, accepted are %s", l.where, l.policy, strings.Join(s.store.Set().Policies(), ", "))
	}
	return s, nil
}

func parseAnswer(c *caddy.Controller, args []string) (v4, v6 []net.IP, err error) {
	if len(args) == 0 {
		return nil, nil, c.ArgErr()
	}
	var seen []netip.Addr
	for _, arg := range args {
		a, err := netip.ParseAddr(arg)
		if err != nil {
			return nil, nil, c.Errf("answer %q, accepted are IP addresses", arg)
		}
		switch {
		case a.Zone() != "":
			return nil, nil, c.Errf("answer %q has a zone, which means nothing to a client", arg)
		case a.Is4In6():
			return nil, nil, c.Errf("answer %q is IPv4-mapped, write %s", arg, a.Unmap())
		case a.IsUnspecified(), a.IsMulticast(), a.Is6() && a.IsLinkLocalUnicast():
			return nil, nil, c.Errf("answer %q is no address that a client can reach", arg)
		case slices.Contains(seen, a):
			return nil, nil, c.Errf("answer %q is given twice", arg)
		}
		seen = append(seen, a)
		if a.Is4() {
			v4 = append(v4, a.AsSlice())
		} else {
			v6 = append(v6, a.AsSlice())
		}
	}
	if len(v4) > maxAddresses || len(v6) > maxAddresses {
		return nil, nil, c.Errf("answer has more than %d addresses of one family, a reply must fit 512 octets", maxAddresses)
	}
	return v4, v6, nil
}

// parsePath makes a relative path one below the root of the server block, as *file* does.
func parsePath(c *caddy.Controller, args []string) (string, error) {
	path, err := parseWord(c, args)
	if root := dnsserver.GetConfig(c).Root; root != "" && err == nil && !filepath.IsAbs(path) {
		path = filepath.Join(root, path)
	}
	return path, err
}

func parseWord(c *caddy.Controller, args []string) (string, error) {
	if len(args) != 1 || args[0] == "" {
		return "", c.ArgErr()
	}
	return args[0], nil
}

func parseTTL(c *caddy.Controller, args []string) (uint32, error) {
	if len(args) != 1 {
		return 0, c.ArgErr()
	}
	n, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil || n > maxTTL {
		return 0, c.Errf("%q seconds, accepted are 0 to %d", args[0], maxTTL)
	}
	return uint32(n), nil
}

func parsePoll(c *caddy.Controller, args []string) (time.Duration, error) {
	if len(args) != 1 {
		return 0, c.ArgErr()
	}
	d, err := time.ParseDuration(args[0])
	if err != nil || d < minPoll {
		return 0, c.Errf("poll %q, accepted is a duration such as 500ms or 2s, at least %v", args[0], minPoll)
	}
	return d, nil
}

func parseLog(c *caddy.Controller, args []string) (verbosity, error) {
	word, err := parseWord(c, args)
	if err != nil {
		return 0, err
	}
	switch word {
	case "denied":
		return logDenied, nil
	case "all":
		return logAll, nil
	case "off":
		return logOff, nil
	}
	return 0, c.Errf("log %q, accepted are denied, all and off", word)
}
