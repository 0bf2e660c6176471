// Command rootfs writes the files of an image as a tar archive, which is all that its Dockerfile adds.
//
//	rootfs [-bin folder] [-ca file] [-types file] [-base image] coredns|caddy >rootfs.tar
//
// An archive and not COPY: whoever builds, it has the owners, the modes and the capability that it says, and
// the classic builder keeps the capability. What goes in is the same archive again, bit by bit, for the same
// files. It runs in the root of the repository.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "rootfs:", err)
		os.Exit(1)
	}
}

func run(args []string, w io.Writer) error {
	var s sources
	flags := flag.NewFlagSet("rootfs", flag.ExitOnError)
	flags.StringVar(&s.bin, "bin", "bin", "`folder` of the static binaries")
	flags.StringVar(&s.roots, "ca", "/etc/ssl/certs/ca-certificates.crt", "`file` of CA roots, in PEM")
	flags.StringVar(&s.types, "types", "/etc/mime.types", "`file` of media types by file extension")
	base := flags.String("base", "scratch", "`image` that the files are added to; all but scratch have users of their own")
	if err := flags.Parse(args); err != nil {
		return err
	}
	entries, err := s.entries(flags.Arg(0))
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	if err := write(out, entries, *base == "scratch"); err != nil {
		return err
	}
	return out.Flush()
}
