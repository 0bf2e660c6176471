// Package sandboxallow registers sandboxallow's Caddy modules. It is here for xcaddy, whose --with takes
// the path of a module and imports its root package:
//
//	xcaddy build --with github.com/mholt/caddy-l4 --with github.com/sandboxallow/sandboxallow
//
// The CoreDNS plugin is package plugin.
package sandboxallow

import _ "github.com/sandboxallow/sandboxallow/caddymodule"
