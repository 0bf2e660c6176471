package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// caddyL4 is stock Caddy with caddy-l4: its TLS matcher and its proxy. It is given less to do than the
// others: two wildcards instead of the rules, which it would compare one by one, a fixed address to dial
// instead of names to resolve, and no log of connections, which it does not have.
func caddyL4(l *lab, name string) peer {
	const setUp = "stock; two wildcards instead of the rules, a fixed address instead of a resolver, no log"
	return peer{name: name, setUp: setUp, start: func(ctx context.Context) (*server, error) {
		dir, err := l.folder(name)
		if err != nil {
			return nil, err
		}
		source := filepath.Join(dir, "main.go")
		if err := os.WriteFile(source, []byte(`package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	_ "github.com/mholt/caddy-l4"
)

func main() { caddycmd.Main() }
`), 0o600); err != nil {
			return nil, err
		}
		program, err := l.buildStock(ctx, "caddy", "nobadger,nomysql,nopgx", source)
		if err != nil {
			return nil, err
		}
		addr, err := freePort()
		if err != nil {
			return nil, err
		}
		s, err := l.startCaddy(dir, program, fmt.Sprintf(`{
	admin off
	layer4 {
		%v {
			@allowed tls sni *.*.example *.*.test
			route @allowed {
				proxy %v
			}
		}
	}
}
`, addr, l.upstream.addr))
		if err != nil {
			return nil, err
		}
		s.addr = addr
		if err := s.process.awaitTCP(ctx, addr.String()); err != nil {
			return s, err
		}
		if v, err := l.moduleVersion(ctx, "github.com/mholt/caddy-l4"); err == nil {
			s.version += ", caddy-l4 " + v
		}
		return s, l.proveGateway(s, false)
	}}
}

// moduleVersion returns the version of a module in our go.mod.
func (l *lab) moduleVersion(ctx context.Context, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", module)
	cmd.Dir = l.root
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}
