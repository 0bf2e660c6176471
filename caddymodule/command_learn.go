package caddymodule

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandboxallow/sandboxallow/caddymodule/learn"
	"github.com/sandboxallow/sandboxallow/internal/policy"
)

// wildcardFrom is how many names below a domain may be endless.
const wildcardFrom = 20

func learnCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "learn [--diff <file>] [--client <prefix>] [--min-count <n>] [--denied] [--wildcard-from <n>] <log>...",
		Short: "Makes a policy out of decision logs",
		Long: `
Reads decision logs and prints the smallest policy, in mode strict, that allows
what was let through: run a sandbox under a policy in mode learn or open for a
while first. Each name has a comment on how often it was used, and since when.
Review the policy: the sandbox chose the names.

Logs are the JSON log of Caddy's logger sandboxallow, rolled and compressed ones
too, and what the plugin sandboxallow writes into the log of CoreDNS. Give both,
and each line once; - is stdin. Other lines are ignored, but for those that a
sandbox writes itself: keep the logs of sandboxes out.

Names are allowed one by one, on the ports on which they were used. All below a
domain is allowed only where names have no end: clients were connected to at
least as many as --wildcard-from says, and nearly all look generated or
numbered, or they kept coming for more than a day. Below a public suffix, or a
domain in which customers of a provider get names, it is never more than single
names. Names of cloud metadata services are left out.

If --diff is specified, prints what is to be added to the policies of a
document: the names that its rules do not allow, whatever its modes are.

The exit status is 0 if all that was read and asked for is in the policy, 1 if
something is missing, which stderr tells, and 2 if the command could not be run.
`,
		Example: `  $ caddy sandboxallow learn /var/log/caddy/sandboxallow*.log* > policy.new
  $ docker logs caddy 2>&1 | caddy sandboxallow learn --diff policy -
  $ caddy sandboxallow learn --client 172.30.0.70 --min-count 3 sandboxallow.log`,
	}
	f := cmd.Flags()
	f.String("diff", "", "Policy document to add to")
	f.String("client", "", "Learn from these clients only, a prefix or an address")
	f.Int("min-count", 1, "Leave out names with fewer decisions")
	f.Bool("denied", false, "Learn from denials too, where a rule would have allowed it")
	f.Int("wildcard-from", wildcardFrom, "Names below a domain that it takes to allow all below it, 0 for never")
	setRun(cmd, cobra.MinimumNArgs(1), runLearn)
	return cmd
}

func runLearn(cmd *cobra.Command, logs []string) (bool, error) {
	o, err := learnOptions(cmd)
	if err != nil {
		return false, err
	}
	l := learn.New(o)
	if err := readLogs(cmd, l, logs); err != nil {
		return false, err
	}
	r, err := l.Result()
	if err != nil {
		return false, err
	}
	if _, err := io.WriteString(cmd.OutOrStdout(), r.Document); err != nil {
		return false, err
	}
	stderr := cmd.ErrOrStderr()
	if r.Document == "" && len(r.Missing) == 0 {
		fmt.Fprintln(stderr, "nothing to add")
	}
	for _, m := range r.Missing {
		fmt.Fprintln(stderr, "missing:", m)
	}
	return len(r.Missing) == 0, nil
}

func learnOptions(cmd *cobra.Command) (o learn.Options, err error) {
	f := cmd.Flags()
	diff, derr := f.GetString("diff")
	client, cerr := f.GetString("client")
	var merr, nerr, werr error
	o.MinCount, merr = f.GetInt("min-count")
	o.Denied, nerr = f.GetBool("denied")
	o.WildcardFrom, werr = f.GetInt("wildcard-from")
	if err := errors.Join(derr, cerr, merr, nerr, werr); err != nil {
		return o, err
	}
	if o.MinCount < 1 {
		return o, fmt.Errorf("--min-count %d, accepted are positive numbers", o.MinCount)
	}
	if o.WildcardFrom < 0 || o.WildcardFrom == 1 {
		return o, fmt.Errorf("--wildcard-from %d, accepted are 0 and numbers from 2", o.WildcardFrom)
	}
	if client != "" {
		if o.Client, err = policy.ParsePrefix(client); err != nil {
			return o, fmt.Errorf("--client %w", err)
		}
	}
	if diff != "" {
		o.Diff, err = policy.Load(policy.Source{File: diff})
	}
	return o, err
}

// readLogs reads logs one after the other, "-" for the standard input.
func readLogs(cmd *cobra.Command, l *learn.Learner, logs []string) error {
	p := progress{learner: l}
	if f, ok := cmd.ErrOrStderr().(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.to = f
	}
	for _, name := range logs {
		if info, err := os.Stat(name); err == nil {
			p.total += info.Size()
		}
	}
	defer p.clear()
	for _, name := range logs {
		if name == "-" {
			if err := l.Read("stdin", p.of(cmd.InOrStdin())); err != nil {
				return err
			}
			continue
		}
		if err := readLog(l, name, &p); err != nil {
			return err
		}
	}
	return nil
}

func readLog(l *learn.Learner, name string, p *progress) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return l.Read(name, p.of(f))
}

// progress shows how much has been read.
type progress struct {
	to      *os.File // nil: it is not a terminal
	learner *learn.Learner
	log     io.Reader
	read    int64 // octets
	total   int64 // octets of all logs, 0 if unknown
	shown   time.Time
}

// of returns a reader of a log whose octets count.
func (p *progress) of(log io.Reader) io.Reader {
	p.log = log
	return p
}

// Read implements io.Reader.
func (p *progress) Read(b []byte) (int, error) {
	n, err := p.log.Read(b)
	p.read += int64(n)
	if now := time.Now(); p.to != nil && now.Sub(p.shown) > 200*time.Millisecond {
		p.shown = now
		of := ""
		if p.total >= p.read {
			of = fmt.Sprintf(" of %d", p.total>>20)
		}
		fmt.Fprintf(p.to, "\r%d%s MiB, %d decisions", p.read>>20, of, p.learner.Decisions())
	}
	return n, err
}

// clear removes what was shown.
func (p *progress) clear() {
	if !p.shown.IsZero() && p.to != nil {
		fmt.Fprint(p.to, "\r\x1b[K")
	}
}
