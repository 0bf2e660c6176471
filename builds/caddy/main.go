// Command caddy is what `xcaddy build` makes of stock Caddy, caddy-l4 and this module: the same flags, the
// same modules, those of layer4 and ours more.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	// The modules of stock Caddy, those of layer4, and ours.
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	_ "github.com/mholt/caddy-l4"
	_ "github.com/sandboxallow/sandboxallow"
)

func main() {
	caddycmd.Main()
}
