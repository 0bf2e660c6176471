package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/sandboxallow/sandboxallow/caddymodule/doctor"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "sandboxallow",
		Usage: "<command>",
		Short: "Commands for the egress firewall of sandboxes",
		Long: `
Commands for the egress firewall that the sandboxallow modules of this Caddy and
the sandboxallow plugin of CoreDNS make up.
`,
		CobraFunc: func(cmd *cobra.Command) {
			cmd.AddCommand(caCommand(), checkCommand(), doctorCommand(), explainCommand(), fmtCommand(), learnCommand(), presetsCommand())
			// Without these a misspelt command would print the help and be a success.
			cmd.Args = cobra.NoArgs
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		},
	})
}

// Exit statuses of doctor. The first three are a doctor.Status.
const (
	exitWarning = int(doctor.Warning)
	exitNotRun  = 3
)

// defaultConfig is what the stock image runs.
const defaultConfig = "/etc/caddy/Caddyfile"

func doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor [--from-sandbox] [--config <path> [--adapter <name>]] [flags]",
		Short: "Checks the surroundings of the firewall",
		Long: `
Looks at what the firewall depends on and cannot change, and prints a line for
each thing that was looked at: ok, warning or failure, the name of the check,
what was found, and what to do about it. It changes nothing.

Run it in the container of the gateway and, with --from-sandbox, in the network
of a sandbox.

The exit status is 0 if all is ok, 1 if there are warnings, 2 if there are
failures, and 3 if the command could not be run.

In the gateway the configuration that Caddy runs says where the admin endpoint
and the resolvers are: --config, by default ` + defaultConfig + ` if it is
there. It is adapted and not loaded.
`,
		Example: `  $ docker exec GATEWAY caddy sandboxallow doctor
  $ docker run --rm --network container:SANDBOX --pid container:SANDBOX IMAGE \
      caddy sandboxallow doctor --from-sandbox --name api.example.com
  $ kubectl debug POD --image IMAGE --target SANDBOX --attach -- \
      caddy sandboxallow doctor --from-sandbox --probe 1.1.1.1:443`,
	}
	f := cmd.Flags()
	f.Bool("from-sandbox", false, "Look from a sandbox, not from the gateway")
	f.Duration("timeout", doctor.DefaultTimeout, "How long to wait for each answer")
	f.Bool("json", false, "Print each line as a JSON object")
	f.String("docker", os.Getenv("DOCKER_HOST"), "API of Docker to ask for its version, a path, unix:///path or tcp://host:port")
	f.String("docker-version", "", "Version of Docker Engine, where its API is not at hand")

	f.StringP("config", "c", "", "Gateway: configuration file that Caddy runs")
	f.StringP("adapter", "a", "", "Gateway: name of the adapter of that file")
	f.String("admin", "", "Gateway: address of the admin endpoint, or off, if not the configuration's")
	f.String("coredns-metrics", "http://127.0.0.1:9153/metrics", "Gateway: URL of CoreDNS's metrics")
	f.String("caddy-metrics", "", "Gateway: URL of Caddy's metrics, if not the admin endpoint's")

	f.String("name", "", "Sandbox: a name that the policy allows")
	f.StringSlice("gateway", nil, "Sandbox: address of the gateway (repeatable; default: the nameserver's and the name's)")
	f.StringSlice("probe", nil, "Sandbox: address:port that must not be reachable (repeatable)")

	cmd.Args = func(cmd *cobra.Command, args []string) error { return notRun(cmd, cobra.NoArgs(cmd, args)) }
	cmd.SetFlagErrorFunc(notRun)
	cmd.RunE = runDoctor
	return cmd
}

// notRun makes an error the end of the command with exitNotRun, by Caddy's own means.
func notRun(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return exit(cmd, exitNotRun, err)
}

func exit(cmd *cobra.Command, status int, err error) error {
	return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return status, err })(cmd, nil)
}

func runDoctor(cmd *cobra.Command, _ []string) error {
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	c, err := doctorConfig(flags)
	if err != nil {
		return notRun(cmd, err)
	}
	found := doctor.Run(cmd.Context(), c)
	write := doctor.Write
	if flags.Bool("json") {
		write = doctor.WriteJSON
	}
	if err := write(cmd.OutOrStdout(), found); err != nil {
		return notRun(cmd, err)
	}

	cmd.SilenceErrors = true // the report has said it
	switch worst := int(doctor.Worst(found)); {
	case worst == exitWarning:
		return errors.New("there are warnings") // Caddy's means have no status 1 without a line of the log
	case worst > exitWarning:
		return exit(cmd, worst, nil)
	}
	return nil
}

func doctorConfig(flags caddycmd.Flags) (c doctor.Config, err error) {
	c = doctor.Config{
		FromSandbox:   flags.Bool("from-sandbox"),
		Docker:        flags.String("docker"),
		DockerVersion: flags.String("docker-version"),
	}
	if c.Timeout, err = flags.GetDuration("timeout"); err != nil {
		return c, err
	}
	if c.Timeout <= 0 {
		return c, fmt.Errorf("--timeout is %v, accepted are positive durations such as 2s", c.Timeout)
	}
	for _, name := range gatewayFlags {
		if c.FromSandbox && flags.Changed(name) {
			return c, fmt.Errorf("--%s is for the gateway, and excludes --from-sandbox", name)
		}
	}
	for _, name := range sandboxFlags {
		if !c.FromSandbox && flags.Changed(name) {
			return c, fmt.Errorf("--%s is for a sandbox, and needs --from-sandbox", name)
		}
	}
	if c.FromSandbox {
		c.Sandbox, err = doctorSandbox(flags)
	} else {
		c.Gateway, err = doctorGateway(flags)
	}
	return c, err
}

// Flags that only one of the two sides takes.
var (
	gatewayFlags = []string{"config", "adapter", "admin", "coredns-metrics", "caddy-metrics"}
	sandboxFlags = []string{"name", "gateway", "probe"}
)

func doctorSandbox(flags caddycmd.Flags) (s doctor.Sandbox, err error) {
	s.Name = flags.String("name")
	gateways, err := flags.GetStringSlice("gateway")
	if err != nil {
		return s, err
	}
	for _, g := range gateways {
		a, err := netip.ParseAddr(g)
		if err != nil {
			return s, fmt.Errorf("--gateway %q, accepted are addresses such as 172.30.0.20", g)
		}
		s.Gateways = append(s.Gateways, a)
	}
	probes, err := flags.GetStringSlice("probe")
	if err != nil {
		return s, err
	}
	for _, p := range probes {
		ap, err := netip.ParseAddrPort(p)
		if err != nil {
			return s, fmt.Errorf("--probe %q, accepted are an address and a port such as 1.1.1.1:443 and [2606:4700:4700::1111]:443", p)
		}
		s.Probes = append(s.Probes, ap)
	}
	return s, nil
}

func doctorGateway(flags caddycmd.Flags) (g doctor.Gateway, err error) {
	g.CoreDNSMetrics = flags.String("coredns-metrics")
	g.CaddyMetrics = flags.String("caddy-metrics")
	g.Descriptors = descriptorLimit()
	g.Tunnels = tunnelsFor(g.Descriptors, uint64(tunnel.PipeDescriptors()))

	file := flags.String("config")
	if _, err := os.Stat(defaultConfig); file == "" && err == nil {
		file = defaultConfig
	}
	var running runningConfig
	if file == "" {
		g.AdminFrom = "no --config and no " + defaultConfig
	} else if running, err = readConfig(file, flags.String("adapter")); err != nil {
		return g, err
	} else {
		g.AdminFrom = file
		g.Resolvers = running.Apps.Sandboxallow.Resolvers
	}
	listen := flags.String("admin")
	switch {
	case listen != "":
		g.AdminFrom = "--admin"
	case file == "":
		return g, nil
	case running.Admin.Disabled:
		listen = "off"
	case running.Admin.Listen != "":
		listen = running.Admin.Listen
	default:
		listen = caddy.DefaultAdminListen
	}
	g.Admin, err = adminEndpoint(listen)
	return g, err
}

// runningConfig is what doctor needs to know of a configuration.
type runningConfig struct {
	Admin struct {
		Disabled bool   `json:"disabled"`
		Listen   string `json:"listen"`
	} `json:"admin"`
	Apps struct {
		Sandboxallow struct {
			Resolvers []string `json:"resolvers"`
		} `json:"sandboxallow"`
	} `json:"apps"`
}

func readConfig(file, adapter string) (c runningConfig, err error) {
	text, _, _, err := caddycmd.LoadConfig(file, adapter)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

// adminEndpoint parses the address of an admin endpoint as Caddy does.
func adminEndpoint(listen string) (*doctor.Endpoint, error) {
	if listen == "off" {
		return &doctor.Endpoint{}, nil
	}
	a, err := caddy.ParseNetworkAddressWithDefaults(listen, "tcp", 2019)
	if err != nil {
		return nil, fmt.Errorf("admin endpoint %q: %w", listen, err)
	}
	if a.IsUnixNetwork() {
		path, _, _ := strings.Cut(a.Host, "|") // without the permissions of the socket
		return &doctor.Endpoint{Network: "unix", Address: path}, nil
	}
	return &doctor.Endpoint{Network: a.Network, Address: a.JoinHostPort(0)}, nil
}

// loadConfig adapts the configuration that the flags name, or what is there by default. Without one the file is "".
func loadConfig(flags caddycmd.Flags) (text []byte, file string, err error) {
	file = flags.String("config")
	if _, err := os.Stat(defaultConfig); file == "" && err == nil {
		file = defaultConfig
	}
	text, file, _, err = caddycmd.LoadConfig(file, flags.String("adapter"))
	return text, file, err
}
