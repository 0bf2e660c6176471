package main

import "context"

// direct is no server at all: the client connects to the upstream. What it reaches is the most that client,
// upstream and machine are good for.
func direct(l *lab, name string) peer {
	return peer{name: name, setUp: "no server between client and upstream", start: func(context.Context) (*server, error) {
		return &server{addr: l.upstream.addr}, nil
	}}
}
