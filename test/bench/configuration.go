package main

import (
	"bufio"
	"embed"
	"fmt"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"text/template"
)

// configurations are those of the peers, to be read and criticised. A setting fills in what is in braces.
//
//go:embed peers
var configurations embed.FS

// setting is what differs from run to run in the configuration of a peer. The fields are public for the templates.
type setting struct {
	Dir         string // for the files of the peer
	Addr        netip.AddrPort
	Postgres    netip.AddrPort // of ours, as are the next, besides Addr
	HTTP, Proxy netip.AddrPort
	Upstream    netip.AddrPort
	Web         netip.AddrPort // the upstream's for plain HTTP
	Resolver    netip.AddrPort
	Resolver53  netip.Addr // the resolver for whoever knows no port but 53
	Module      string
	User        string // of this process, if it is root
	Policy      string // path of our document
	Descriptors int    // that each process may have
	Tunnels     int    // that have room in these
	Rules       []rule
}

// newSetting is for a peer that is given n rules.
func (l *lab) newSetting(name string, n int) (*setting, error) {
	dir, err := l.folder(name)
	if err != nil {
		return nil, err
	}
	s := &setting{
		Dir: dir, Upstream: l.upstream.addr, Web: l.upstream.web, Resolver: l.zone.addr, Resolver53: l.zone.addr53.Addr(),
		Module: nginxStream, Descriptors: l.descriptors, Tunnels: (l.descriptors - 2200) / 2, Rules: rules(n),
	}
	for _, addr := range []*netip.AddrPort{&s.Addr, &s.Postgres, &s.HTTP, &s.Proxy} {
		if *addr, err = freePort(); err != nil {
			return nil, err
		}
	}
	if os.Geteuid() == 0 {
		s.User = "root"
	}
	return s, nil
}

// write fills in the configuration of that name and returns its path.
func (s *setting) write(name string) (string, error) {
	t, err := template.ParseFS(configurations, "peers/"+name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(s.Dir, name)
	return path, writeLines(path, func(w *bufio.Writer) error { return t.Execute(w, s) })
}

// list writes a line for each of the rules into a file of the folder. Rules for which line is empty have none.
func (s *setting) list(name string, line func(rule) string) error {
	return writeLines(filepath.Join(s.Dir, name), func(w *bufio.Writer) error {
		for _, r := range s.Rules {
			if l := line(r); l != "" {
				fmt.Fprintln(w, l)
			}
		}
		return nil
	})
}

// policy writes the rules as a policy document with a list. The lines are those of the policy besides the list.
func (s *setting) policy(lines ...string) error {
	if err := s.list("rules.txt", rule.suffix); err != nil {
		return err
	}
	s.Policy = filepath.Join(s.Dir, "policy")
	return writePolicy(s.Policy, lines...)
}

// writePolicy replaces a document by a complete one.
func writePolicy(path string, lines ...string) error {
	text := "policy default {\n\tallow_list rules.txt\n"
	for _, line := range lines {
		text += "\t" + line + "\n"
	}
	if err := os.WriteFile(path+".new", []byte(text+"}\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// giveTo makes the folder that of a user, who is to write into it.
func (s *setting) giveTo(name string) error {
	u, err := user.Lookup(name)
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	return os.Chown(s.Dir, uid, -1)
}

func writeLines(path string, write func(*bufio.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	if err := write(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// Regexp is the name of a rule as a regular expression.
func (r rule) Regexp() string { return regexp.QuoteMeta(r.Name) }
