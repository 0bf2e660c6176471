package caddymodule

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"

	"github.com/sandboxallow/sandboxallow/internal/policy"
)

func fmtCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fmt [--overwrite | --diff] <file>",
		Short: "Formats a policy document",
		Long: `
Puts the blanks of a policy document or a list of rules in order: indentation,
arguments and comments below each other, a blank line between policies. Words,
comments and their order stay as they are, so the policies and their hash do
too. Prints the result to stdout.

If --overwrite is specified, the file is replaced by the result, by a rename, so
that running binaries take it at once. If --diff is specified, prints what would
change, in a form that patch takes.

If you wish to use stdin instead of a file, use - as the path. The result is
printed then, with --overwrite too.

The exit status is 0 if the document is formatted, or is now, 1 if it is not,
and 2 if it cannot be read or formatted. Whether it is a policy is for the
command check to say.
`,
		Example: `  $ caddy sandboxallow fmt --overwrite /etc/sandboxallow/policy
  $ caddy sandboxallow fmt --diff policy`,
	}
	cmd.Flags().BoolP("overwrite", "w", false, "Replace the file by the result")
	cmd.Flags().BoolP("diff", "d", false, "Print what would change")
	setRun(cmd, cobra.ExactArgs(1), runFmt)
	return cmd
}

func runFmt(cmd *cobra.Command, args []string) (bool, error) {
	if err := exclusive(cmd, "overwrite", "diff"); err != nil {
		return false, err
	}
	overwrite, err := cmd.Flags().GetBool("overwrite")
	if err != nil {
		return false, err
	}
	diff, err := cmd.Flags().GetBool("diff")
	if err != nil {
		return false, err
	}
	path := args[0]
	text, err := readText(cmd, path)
	if err != nil {
		return false, err
	}
	formatted, err := policy.Format(path, text)
	if err != nil {
		return false, err
	}
	same := formatted == text
	out := cmd.OutOrStdout()
	switch {
	case overwrite && path != "-":
		if same {
			return true, nil
		}
		return true, replaceFile(path, formatted)
	case diff:
		return same, difflib.WriteUnifiedDiff(out, difflib.UnifiedDiff{
			A: diffLines(text), FromFile: path,
			B: diffLines(formatted), ToFile: path,
			Context: 3,
		})
	}
	_, err = io.WriteString(out, formatted)
	return same, err
}

// diffLines returns the lines of a text as they stand in a diff.
func diffLines(text string) []string {
	lines := slices.Collect(strings.Lines(text))
	if text != "" && !strings.HasSuffix(text, "\n") {
		lines[len(lines)-1] += "\n\\ No newline at end of file\n"
	}
	return lines
}

// readText reads a file, or the standard input for "-".
func readText(cmd *cobra.Command, path string) (string, error) {
	if path == "-" {
		b, err := io.ReadAll(cmd.InOrStdin())
		return string(b), err
	}
	b, err := os.ReadFile(path)
	return string(b), err
}

// replaceFile renames a complete file with the permissions of the old one over it, behind symlinks.
func replaceFile(path, text string) (err error) {
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
			err = fmt.Errorf("%s is as it was: %w", path, err)
		}
	}()
	_, werr := f.WriteString(text)
	if err := errors.Join(werr, f.Chmod(info.Mode().Perm()), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
