package caddymodule

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain [--client <address>] [--policy <name>] [--policy-file <path> | --config <path> [--adapter <name>]] <name>[:<port>]",
		Short: "Tells what is answered for a name, and by which rule",
		Long: `
Tells what a client gets for a name: what CoreDNS answers, whether the gateway
lets a connection through, on port 443 if none is given, which rule decides and
where it stands, which other rules are about the name, and what to write to have
it allowed.

It reads the policy and asks nobody: whether the name exists, and whether its
addresses are such as the gateway connects to, is not looked up.

The policy is the document that --policy-file names, or what a configuration of
Caddy has, by default ` + defaultConfig + ` or the Caddyfile in the current
directory. Without --client it is the policy of clients that no other policy
names. --policy is for a listener whose option policy names one: that policy
must allow the name too.

The exit status is 0 if the gateway lets the client through, 1 if it does not,
and 2 if the command could not be run.
`,
		Example: `  $ caddy sandboxallow explain api.github.com
  $ caddy sandboxallow explain db.example.com:5432 --client 172.30.0.70
  $ caddy sandboxallow explain example.org --policy-file policy.new`,
	}
	f := cmd.Flags()
	f.String("client", "", "Address of the client")
	f.String("policy", "", "Name of the policy that the listener names")
	f.String("policy-file", "", "Policy document")
	f.StringP("config", "c", "", "Configuration file of Caddy")
	f.StringP("adapter", "a", "", "Name of the adapter of that file")
	setRun(cmd, cobra.ExactArgs(1), runExplain)
	return cmd
}

func runExplain(cmd *cobra.Command, args []string) (bool, error) {
	if err := errors.Join(exclusive(cmd, "policy-file", "config"), exclusive(cmd, "policy-file", "adapter")); err != nil {
		return false, err
	}
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	n, port, _, err := parseAuthority(args[0], 443)
	if err != nil {
		return false, err
	}
	src, err := policySource(flags)
	if err != nil {
		return false, err
	}
	set, err := policy.Load(src)
	if err != nil {
		return false, err
	}
	sel, err := selectClient(set, flags.String("client"), flags.String("policy"))
	if err != nil {
		return false, err
	}
	e := sel.Explain(n, port)
	dns := sel.Lookup(n, policy.AnyPort) // as the plugin does
	return e.Decision.Verdict.Admits(), writeExplanation(cmd.OutOrStdout(), &e, dns)
}

// policySource returns where the policy comes from that the flags name.
func policySource(flags caddycmd.Flags) (policy.Source, error) {
	if file := flags.String("policy-file"); file != "" {
		return policy.Source{File: file}, nil
	}
	text, file, err := loadConfig(flags)
	if err != nil {
		return policy.Source{}, err
	}
	if file == "" {
		return policy.Source{}, fmt.Errorf("no policy: give --policy-file, or --config; there is no %s and no Caddyfile here", defaultConfig)
	}
	var config struct {
		Apps struct {
			Sandboxallow *App `json:"sandboxallow"`
		} `json:"apps"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return policy.Source{}, fmt.Errorf("%s: %w", file, err)
	}
	app := config.Apps.Sandboxallow
	if app == nil {
		return policy.Source{}, fmt.Errorf("%s: no sandboxallow app", file)
	}
	return policy.Source{File: app.PolicyFile, Inline: app.Policy}, nil
}

// selectClient selects the policy for an address, "" for one that no client line names.
func selectClient(set *policy.Set, client, listener string) (policy.Selection, error) {
	var none policy.Selection
	if listener != "" && !set.HasPolicy(listener) {
		return none, fmt.Errorf("--policy %q does not exist, accepted are %s", listener, strings.Join(set.Policies(), ", "))
	}
	if client != "" {
		a, err := netip.ParseAddr(client)
		if err != nil {
			return none, fmt.Errorf("--client %q, accepted are addresses such as 172.30.0.70", client)
		}
		return set.Select(a, listener), nil
	}
	sel := set.SelectDefault(listener)
	if sel.Policy() == "" {
		return none, errors.New("every policy has a client line: give --client")
	}
	return sel, nil
}

// writeExplanation writes what the gateway does by e and the name server by dns, a line for each thing.
func writeExplanation(to io.Writer, e *policy.Explanation, dns policy.Decision) error {
	var err error
	line := func(what, format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(to, "%-9s %s\n", what, fmt.Sprintf(format, args...))
		}
	}
	line("name", "%s:%d", e.Name, e.Port)
	for i, j := range e.Judges {
		what := "policy"
		if i > 0 {
			what = "listener"
		}
		line(what, "%s, %s: %s", j.Policy, j.Mode, outcome(j.Decision))
	}
	line("dns", "%s", dnsAnswer(dns))
	line("gateway", "%s", gatewayAnswer(e.Decision))
	if r := e.Decision.Rule; !r.IsZero() {
		line("rule", "%s: %s", r, r.Text())
	}
	for _, j := range e.Judges {
		for _, m := range j.Matches {
			switch {
			case m.Rule == e.Decision.Rule:
			case m.OnPort:
				line("also", "%s: %s", m.Rule, m.Rule.Text())
			default:
				line("also", "%s: %s, not on port %d", m.Rule, m.Rule.Text(), e.Port)
			}
		}
	}
	if e.Hint != "" {
		line("hint", "%s", e.Hint)
	}
	return err
}

// outcome returns a verdict and its reason.
func outcome(d policy.Decision) string {
	if d.Reason == policy.ReasonNone {
		return d.Verdict.String()
	}
	return d.Verdict.String() + " (" + d.Reason.String() + ")"
}

// dnsAnswer returns what the name server answers by a decision on any port.
func dnsAnswer(d policy.Decision) string {
	switch d.Existence() {
	case policy.Present:
		return "the gateway's addresses to A and AAAA, NODATA to other types"
	case policy.Empty:
		return "NODATA, as names below it are allowed"
	}
	return "NXDOMAIN"
}

// gatewayAnswer returns what the gateway does by a decision, and how the client hears of a denial.
func gatewayAnswer(d policy.Decision) string {
	switch d.Verdict {
	case policy.Allow:
		return "lets it through"
	case policy.WouldDeny:
		return "lets it through, as the policy learns; strict would deny it"
	}
	alert := strings.TrimPrefix(tls.AlertError(alertFor(d.Reason)).Error(), "tls: ")
	return fmt.Sprintf("denies it: %s (TLS alert %q, HTTP status %d)", d.Reason, alert, statusFor(d.Reason, false))
}
