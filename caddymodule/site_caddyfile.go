package caddymodule

import (
	"errors"
	"reflect"
	"sync"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// brokerValues adds to the route of `sandboxallow broker` what else makes a site one that brokers: it listens where no
// socket is, and its certificates are the gateway's own. Within route and handle blocks the site has to say so
// itself: a directive that stands there can add nothing to the site.
func brokerValues(h httpcaddyfile.Helper, route []httpcaddyfile.ConfigValue) ([]httpcaddyfile.ConfigValue, error) {
	if reflect.ValueOf(h.State).Pointer() != reflect.ValueOf(h.BlockState).Pointer() {
		return route, nil // Caddy gives blocks within a site a state of their own
	}
	bind, err := bindToBroker()
	if err != nil {
		return nil, h.WrapErr(err)
	}
	return append(append(route, bind...), httpcaddyfile.ConfigValue{Class: "tls.cert_issuer", Value: new(Issuer)}), nil
}

// takeBinding is the option by which bindToBroker asks for what a directive sees.
const takeBinding = "sandboxallow take binding"

// bindToBroker returns what the directive `bind sandboxallow/broker` makes of itself. Caddy exports neither the type of
// that nor its parser, but shows a directive what the global option default_bind has made, which is the same.
var bindToBroker = sync.OnceValues(func() ([]httpcaddyfile.ConfigValue, error) {
	var bind []httpcaddyfile.ConfigValue
	options := map[string]any{takeBinding: func(v any) { bind, _ = v.([]httpcaddyfile.ConfigValue) }}
	text := "{\n\tdefault_bind " + brokerAddress + "\n}\n:443 {\n\tsandboxallow broker\n}\n"
	blocks, err := caddyfile.Parse("Caddyfile", []byte(text))
	if err != nil {
		return nil, err
	}
	if _, _, err := (httpcaddyfile.ServerType{}).Setup(blocks, options); err != nil {
		return nil, err
	}
	if len(bind) == 0 {
		return nil, errors.New("this Caddy does not say how to bind a site: write `bind " + brokerAddress + "`")
	}
	return bind, nil
})

// UnmarshalCaddyfile sets up the handler. Syntax:
//
//	sandboxallow [<matcher>] broker {
//		except        <name>...
//		remove_header <name>...
//		remove_query  <name>...
//		keep          <name>...
//	}
func (b *Broker) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	if !d.NextArg() || d.Val() != "broker" || d.NextArg() {
		return d.ArgErr()
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		var to *[]string
		switch option := d.Val(); option {
		case "except":
			to = &b.Except
		case "remove_header":
			to = &b.RemoveHeader
		case "remove_query":
			to = &b.RemoveQuery
		case "keep":
			to = &b.Keep
		default:
			return d.Errf("unknown option %q, accepted are except, remove_header, remove_query and keep", option)
		}
		args := d.RemainingArgs()
		if len(args) == 0 {
			return d.ArgErr()
		}
		*to = append(*to, args...)
	}
	return nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Broker)(nil)
