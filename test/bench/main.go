// Command bench measures sandboxallow beside what people run today, on this machine and in one run: what a DNS
// question, a tunnel, a GB through it and a request cost, and how many there are a second.
//
//	go run ./test/bench          under 10 minutes once all is compiled; writes test/bench/RESULTS.md and quotes it in README.md
//	go run ./test/bench -quick   under 2 minutes, a first impression; prints only
//
// Everything happens on loopback addresses. The peers are started by the bench and stopped by it, on Ctrl-C
// too; what they write goes to a temporary folder. Most are Debian's, which -install installs as root; stock CoreDNS
// and stock Caddy with caddy-l4 are built from this module. A peer that is not there, or does not do its job, gets a
// line that says so and no number.
//
// A suite is peers that are measured in turns: suites.go lists them all, and is what to add to. A measure is one file
// here; the peers are in peers_*.go and their configurations in peers/; targets.go is what the figures should be.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	maybeUpstream()
	quick := flag.Bool("quick", false, "fewer and shorter rounds, and no file unless -o names one")
	out := flag.String("o", "", "write the results to this `file` (default test/bench/RESULTS.md)")
	names := strings.Join(suiteNames(suites(new(lab))), ", ")
	only := flag.String("only", "", "run the suite of this `name` alone ("+names+"), and write no file unless -o names one")
	debian := flag.Bool("install", false, "install the Debian packages of peers that are missing; as root, else say which")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	signal.Ignore(syscall.SIGPIPE) // `| head` must not keep us from tidying up
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *debian {
		install(ctx, programs, func(format string, a ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", a...) })
	}
	err := run(ctx, *quick, *out, *only)
	switch {
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "bench: interrupted, everything that was started is stopped")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures, prints and writes. It returns an error if something of ours could not be measured; a missed
// target is none, it is in the results.
func run(ctx context.Context, quick bool, out, only string) error {
	l, err := newLab(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	readme := ""
	if out == "" && !quick && only == "" {
		out = filepath.Join(l.root, "test", "bench", "RESULTS.md")
		readme = filepath.Join(l.root, "README.md")
	}
	p := full
	if quick {
		p = brief
	}
	command := strings.Join(append([]string{"go run ./test/bench"}, os.Args[1:]...), " ")
	r := report{command: command, began: time.Now(), machine: thisMachine(), pace: p}
	found := only == ""
	for _, s := range suites(l) {
		if only != "" && s.name != only {
			continue
		}
		found = true
		tables, err := s.run(ctx, p)
		if err != nil {
			return err
		}
		r.tables = append(r.tables, tables...)
	}
	if !found {
		return fmt.Errorf("no suite %q, accepted are %s", only, strings.Join(suiteNames(suites(l)), ", "))
	}
	r.took = time.Since(r.began)
	r.print(os.Stdout)
	if out != "" {
		if err := writeFile(out, r.print); err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "bench: wrote", out)
	}
	if readme != "" {
		if err := quoteIn(readme, out); err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "bench: wrote", readme)
	}
	return r.ourFailure()
}

// writeFile writes the file that print prints.
func writeFile(path string, print func(io.Writer)) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	print(f)
	return f.Close()
}
