// Command coredns is stock CoreDNS plus the sandboxallow plugin: the same flags, the same plugins, one
// directive more, which stands directly after acl.
package main

import (
	"log"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
)

//go:generate go run ./gen

func main() {
	if err := dnsserver.SetDirectives(directives); err != nil {
		log.Fatal(err)
	}
	// The third field of -version and the revision label of coredns_build_info. A stock binary that was
	// not built by a Makefile leaves it empty; ours says what it is however it was built.
	if coremain.GitCommit == "" {
		coremain.GitCommit = "sandboxallow"
	}
	coremain.Run()
}
