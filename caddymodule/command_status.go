package caddymodule

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// Exit statuses of ca, check, explain, fmt, presets and learn, those of grep(1) and diff(1); 0 is a yes.
const (
	exitNo      = 1
	exitTrouble = 2
)

// trouble makes an error the end of the command with exitTrouble.
func trouble(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return exit(cmd, exitTrouble, err)
}

// errNo ends a command with exitNo, which is Caddy's status of an error.
var errNo = errors.New("no")

// no makes the end of the command with exitNo. The command has said why.
func no(cmd *cobra.Command) error {
	cmd.SilenceErrors = true
	return errNo
}

// setRun sets what a command runs. It ends with exitTrouble where it is not called as it should be, or where run
// fails.
func setRun(cmd *cobra.Command, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) (yes bool, err error)) {
	cmd.Args = func(cmd *cobra.Command, a []string) error { return trouble(cmd, args(cmd, a)) }
	cmd.SetFlagErrorFunc(trouble)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		switch yes, err := run(cmd, a); {
		case err != nil:
			return trouble(cmd, err)
		case !yes:
			return no(cmd)
		}
		return nil
	}
}

// exclusive returns an error if both flags are given. Cobra's own means know only the status of an error.
func exclusive(cmd *cobra.Command, a, b string) error {
	if cmd.Flags().Changed(a) && cmd.Flags().Changed(b) {
		return fmt.Errorf("--%s and --%s exclude each other", a, b)
	}
	return nil
}
