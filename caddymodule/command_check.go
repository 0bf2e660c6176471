package caddymodule

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [--strict] <file>...",
		Short: "Checks policy documents",
		Long: `
Reads policy documents, and the lists that they name, as CoreDNS and Caddy do,
and prints the policies that they make: the mode, the number of rules, and the
clients. The hash is that of the policy_info metric of both binaries, where the
same policies are in force.

Errors and warnings go to stderr, with file and line. An error is what would
stop the binaries at their start, and what a running one would not take. A
warning is about a rule that allows more than it seems to, for example below a
domain in which anybody can register names.

The exit status is 0 if all documents are good, 1 if there is an error or, with
--strict, a warning, and 2 if the command could not be run.
`,
		Example: `  $ caddy sandboxallow check /etc/sandboxallow/policy
  $ caddy sandboxallow check --strict policy.new && mv policy.new policy`,
	}
	cmd.Flags().Bool("strict", false, "Take warnings for errors")
	setRun(cmd, cobra.MinimumNArgs(1), runCheck)
	return cmd
}

func runCheck(cmd *cobra.Command, files []string) (bool, error) {
	strict, err := cmd.Flags().GetBool("strict")
	if err != nil {
		return false, err
	}
	good := true
	for _, file := range files {
		set, err := policy.Load(policy.Source{File: file})
		if err != nil {
			good = false
			fmt.Fprintln(cmd.ErrOrStderr(), err)
			continue
		}
		for _, w := range set.Warnings() {
			good = good && !strict
			place, text, _ := strings.Cut(w, ": ")
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: warning: %s\n", place, text)
		}
		if err := writeOverview(cmd.OutOrStdout(), file, set); err != nil {
			return false, err
		}
	}
	return good, nil
}

func writeOverview(to io.Writer, file string, set *policy.Set) error {
	t := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s: ok, hash %s\n", file, set.Hash())
	for _, o := range set.Overview() {
		clients := "clients that no other policy names"
		if len(o.Clients) > 0 {
			clients = joinPrefixes(o.Clients)
		}
		rules := "rules"
		if o.Rules == 1 {
			rules = "rule"
		}
		fmt.Fprintf(t, "  %s\t%s\t%d %s\t%s\n", o.Name, o.Mode, o.Rules, rules, clients)
	}
	return t.Flush()
}

func joinPrefixes(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return strings.Join(texts, " ")
}
