package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	nginxStream  = "/usr/lib/nginx/modules/ngx_stream_module.so" // where Debian has it
	nginxWorkers = 2
)

// nginx is the set-up with ssl_preread that people write: a map of the rules, a resolver, an access log. What
// is not said here is nginx's default.
func nginx(l *lab, name string) peer {
	setUp := fmt.Sprintf("a map of the same rules, resolver, access log to a file, %d workers", nginxWorkers)
	return peer{name: name, setUp: setUp, start: func(ctx context.Context) (*server, error) {
		program, err := find("nginx", "apt-get install nginx libnginx-mod-stream", nginxStream)
		if err != nil {
			return nil, err
		}
		dir, err := l.folder(name)
		if err != nil {
			return nil, err
		}
		addr, err := freePort()
		if err != nil {
			return nil, err
		}
		s := &server{addr: addr}
		v, err := version(program, "-v")
		if err != nil {
			return nil, err
		}
		s.version = strings.TrimPrefix(v, "nginx version: ")
		var rules strings.Builder
		for i := range gatewayRules {
			name, zone := rule(i)
			if zone {
				name = "." + name
			}
			fmt.Fprintf(&rules, "        %s $ssl_preread_server_name:%d;\n", name, l.upstream.addr.Port())
		}
		conf := filepath.Join(dir, "nginx.conf")
		if err := os.WriteFile(conf, fmt.Appendf(nil, `load_module %[1]s;
daemon off;
worker_processes %[6]d;
pid %[2]s/nginx.pid;
error_log %[2]s/error.log;
events { worker_connections 4096; }
stream {
    resolver %[3]v ipv6=off;
    log_format decision '$time_iso8601 $remote_addr $ssl_preread_server_name $upstream_addr $status '
                        '$bytes_received $bytes_sent $session_time';
    access_log %[2]s/access.log decision;
    map_hash_max_size 8192;
    map_hash_bucket_size 128;
    map $ssl_preread_server_name $to {
        hostnames;
%[4]s    }
    server {
        listen %[5]v;
        ssl_preread on;
        proxy_pass $to;
    }
}
`, nginxStream, dir, l.zone.addr, rules.String(), addr, nginxWorkers), 0o600); err != nil {
			return nil, err
		}
		if s.process, err = startProcess(dir, program, "-e", filepath.Join(dir, "error.log"), "-p", dir, "-c", conf); err != nil {
			return nil, err
		}
		if err := s.process.awaitTCP(ctx, addr.String()); err != nil {
			return s, err
		}
		return s, l.proveGateway(s, true)
	}}
}
