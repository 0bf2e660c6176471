package caddymodule

import (
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/sandboxallow/sandboxallow/caddymodule/doctor"
)

func TestCommand(t *testing.T) {
	c, ok := caddycmd.Commands()["sandboxallow"]
	if !ok {
		t.Fatal("caddy has no command sandboxallow")
	}
	cmd := &cobra.Command{Use: c.Name}
	c.CobraFunc(cmd)
	if sub, _, err := cmd.Find([]string{"doctor"}); err != nil || sub.Name() != "doctor" {
		t.Errorf("got %v, %v, want doctor", sub, err)
	}
	cmd.SetArgs([]string{"docter"})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if err := cmd.Execute(); err == nil {
		t.Error("a misspelt command is a success")
	}
}

func TestAdminEndpoint(t *testing.T) {
	for _, tc := range []struct {
		listen string
		want   doctor.Endpoint
		fails  bool
	}{
		{listen: "off"},
		{listen: "unix//run/caddy-admin.sock", want: doctor.Endpoint{Network: "unix", Address: "/run/caddy-admin.sock"}},
		{listen: "unix//run/caddy-admin.sock|0222", want: doctor.Endpoint{Network: "unix", Address: "/run/caddy-admin.sock"}},
		{listen: "localhost:2019", want: doctor.Endpoint{Network: "tcp", Address: "localhost:2019"}},
		{listen: "localhost", want: doctor.Endpoint{Network: "tcp", Address: "localhost:2019"}},
		{listen: ":2020", want: doctor.Endpoint{Network: "tcp", Address: ":2020"}},
		{listen: "tcp/[::]:2019", want: doctor.Endpoint{Network: "tcp", Address: "[::]:2019"}},
		{listen: "localhost:port", fails: true},
		{listen: "localhost:70000", fails: true},
	} {
		t.Run(tc.listen, func(t *testing.T) {
			got, err := adminEndpoint(tc.listen)
			if tc.fails {
				if err == nil {
					t.Fatalf("got %v, want an error", got)
				}
				return
			}
			if err != nil || *got != tc.want {
				t.Errorf("got %v, %v, want %v", got, err, tc.want)
			}
		})
	}
}
