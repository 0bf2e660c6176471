//go:build linux

package compose

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// importMachine makes the image of a machine: an empty one, which needs no registry and no builder.
func importMachine() error {
	var empty bytes.Buffer
	if err := tar.NewWriter(&empty).Close(); err != nil {
		return err
	}
	cmd := exec.Command("docker", "import", "-", suite.machine)
	cmd.Stdin = &empty
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("docker import: %w: %s", err, out)
	}
	return nil
}

// machineMounts are the bind mounts, SOURCE:TARGET:ro, that make a container of the empty image a machine: the
// programs of this one, the authority's certificate, and this program as /lab/self.
func machineMounts() (mounts []string) {
	for _, dir := range []string{"/usr", "/bin", "/lib", "/lib64"} {
		if _, err := os.Stat(dir); err == nil {
			mounts = append(mounts, dir+":"+dir+":ro")
		}
	}
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return append(mounts, self+":/lab/self:ro", filepath.Join(suite.dir, "internet", "ca.pem")+":"+trustFile+":ro")
}

// machineEnv is the environment of clients, VARIABLE=VALUE: all trust the authority, and none has a language.
func machineEnv() []string {
	return []string{
		"PATH=/usr/bin:/bin", "HOME=/tmp", "LC_ALL=C",
		"CURL_CA_BUNDLE=" + trustFile, "SSL_CERT_FILE=" + trustFile, "GIT_SSL_CAINFO=" + trustFile,
		"NODE_EXTRA_CA_CERTS=" + trustFile, "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_NOSYSTEM=1",
	}
}

// machineOptions are the options of `docker run` that make a container of the empty image a machine.
func machineOptions() (options []string) {
	for _, m := range machineMounts() {
		options = append(options, "--volume", m)
	}
	for _, e := range machineEnv() {
		options = append(options, "--env", e)
	}
	return append(options, "--tmpfs", "/tmp", "--user", "1000:1000")
}

// machineService is the same for a service of Compose that has a name and nothing to do.
func machineService(name string) string {
	return service(name, "1000:1000", machineMounts(), "sleep", "infinity")
}

// service is the YAML of a service that is a machine.
func service(name, user string, mounts []string, command ...string) string {
	quote := func(v any) string { b, _ := json.Marshal(v); return string(b) } // JSON is YAML
	return fmt.Sprintf(`
  %s:
    image: %s
    user: %s
    volumes: %s
    environment: %s
    tmpfs: [/tmp]
    stop_signal: SIGKILL
    command: %s
`, name, quote(suite.machine), quote(user), quote(mounts), quote(machineEnv()), quote(command))
}

// impatient are services of the product that are asked for their health each second, not each ten.
func impatient(names ...string) (services string) {
	for _, name := range names {
		services += "  " + name + ":\n    healthcheck: {interval: 1s}\n"
	}
	return services
}

// lab is what the lab adds to a file under test.
type lab struct {
	uplink   string   // the network that is the way out; now it is internal, and the internet is on it
	nth      int      // of the deployments on the engine, each of which has a subnet of its own there
	services []string // further services and what is to be added to those of the file, YAML
	networks string   // further networks, YAML
	proxied  bool     // the clients get out by HTTP_PROXY alone
}

// internet is the address of the internet.
func (l lab) internet() netip.Addr {
	return netip.AddrFrom4([4]byte{93, 184, 215, byte(64*l.nth + 53)})
}

// yaml is the overlay.
func (l lab) yaml() string {
	mounts := append(machineMounts(), filepath.Join(suite.dir, "internet")+":"+internetDir+":ro")
	return "services:" +
		service("internet", "0:0", mounts, "env", roleVar+"="+roleInternet, "/lab/self", l.internet().String()) +
		fmt.Sprintf("    networks: {%s: {ipv4_address: %s}}\n", l.uplink, l.internet()) +
		strings.Join(l.services, "") +
		fmt.Sprintf(`
networks:
  %s:
    internal: true
    driver_opts: {com.docker.network.bridge.inhibit_ipv4: "true"}
    ipam: {config: [{subnet: %s}]}
`, l.uplink, netip.PrefixFrom(l.internet(), 26).Masked()) + l.networks
}
