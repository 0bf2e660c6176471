package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// coredns is our CoreDNS with a policy of so many rules.
func coredns(l *lab, name string, rules int) peer {
	setUp := fmt.Sprintf("the plugin sandboxallow alone, a list of %s rules", count(float64(rules)))
	return peer{name: name, setUp: setUp, ours: true, start: func(ctx context.Context) (*server, error) {
		program, err := l.makeOurs(ctx, "coredns")
		if err != nil {
			return nil, err
		}
		dir, err := l.folder(name)
		if err != nil {
			return nil, err
		}
		policy, err := writePolicy(dir, rules)
		if err != nil {
			return nil, err
		}
		asked, err := newQuestions(rules)
		if err != nil {
			return nil, err
		}
		return l.startDNS(ctx, dir, program, asked, fmt.Sprintf(`sandboxallow {
        answer      172.30.0.20 fd00:30::20
        policy_file %s
    }`, policy))
	}}
}

// startDNS starts a CoreDNS with one server block, which has the lines of body and no logs.
func (l *lab) startDNS(ctx context.Context, dir, program string, asked *questions, body string) (*server, error) {
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &server{addr: addr, asked: asked}
	if s.version, err = version(program, "-version"); err != nil {
		return nil, err
	}
	corefile := filepath.Join(dir, "Corefile")
	text := fmt.Sprintf(".:%d {\n    bind %v\n    %s\n}\n", addr.Port(), addr.Addr(), body)
	if err := os.WriteFile(corefile, []byte(text), 0o600); err != nil {
		return nil, err
	}
	if s.process, err = startProcess(dir, program, "-conf", corefile); err != nil {
		return nil, err
	}
	return s, s.awaitDNS(ctx)
}
