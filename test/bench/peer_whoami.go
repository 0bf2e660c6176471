package main

import "context"

// whoami is stock CoreDNS with the plugin that does least: it answers every question with the client's
// address. What it costs is what CoreDNS itself costs.
func whoami(l *lab, name string) peer {
	return peer{name: name, setUp: "stock, the plugin whoami alone", start: func(ctx context.Context) (*server, error) {
		program, err := l.buildStock(ctx, "coredns", "grpcnotrace", "github.com/coredns/coredns")
		if err != nil {
			return nil, err
		}
		dir, err := l.folder(name)
		if err != nil {
			return nil, err
		}
		asked, err := newQuestions(1_000_000) // names of the same length as for fewer rules
		if err != nil {
			return nil, err
		}
		asked.expect(header{}) // NOERROR; the address is in the additional section
		return l.startDNS(ctx, dir, program, asked, "whoami")
	}}
}
