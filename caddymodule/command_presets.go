package caddymodule

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func presetsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "presets [<name>]",
		Short: "Lists the presets, or prints one",
		Long: `
Lists the presets that a policy can name, with what each is for. With a name,
prints the rules that it consists of, and what needs each of them. That is a
list which the line allow_list of a policy takes, so a preset can be the start
of a list of your own.

The exit status is 0, or 2 if there is no such preset.
`,
		Example: `  $ caddy sandboxallow presets
  $ caddy sandboxallow presets npm > lists/npm.txt`,
	}
	setRun(cmd, cobra.MaximumNArgs(1), runPresets)
	return cmd
}

func runPresets(cmd *cobra.Command, args []string) (bool, error) {
	if len(args) == 0 {
		t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		for _, name := range policy.Presets() {
			fmt.Fprintf(t, "%s\t%s\n", name, policy.PresetSummary(name))
		}
		return true, t.Flush()
	}
	text, ok := policy.PresetText(args[0])
	if !ok {
		return false, fmt.Errorf("no preset %q, accepted are %s", args[0], strings.Join(policy.Presets(), ", "))
	}
	_, err := io.WriteString(cmd.OutOrStdout(), text)
	return true, err
}
