package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/Masterminds/semver/v3"
)

// dockerSocket is where Docker's API is by default.
const dockerSocket = "/var/run/docker.sock"

const (
	doDockerVersion = "run `docker version -f '{{.Server.Version}}'` on the host and give --docker-version"
	doUpgrade       = "upgrade Docker Engine to 26.1.3 or later (23.0.11, 25.0.5)"
)

// checkDocker looks for a Docker Engine whose own name server is at fault for containers on an internal
// network:
//
//   - CVE-2024-29018: it asks the host's resolver, in the network of the host, so that data leave in the names
//     that are asked for. Fixed in 23.0.11, 25.0.5 and 26.0.0-rc3, never in 24.
//   - moby/moby#47822: those fixes went too far, and it asks nobody, not even a --dns in that very network.
//     Fixed in 26.1.3.
func checkDocker(ctx context.Context, s *surroundings) []Finding {
	if s.DockerVersion != "" {
		return judgeDocker(s.DockerVersion)
	}
	if s.FromSandbox && s.Docker == "" {
		return ok("its DNS is what the check nameserver has asked; the version is looked at from the gateway")
	}
	at, known, err := s.dockerAPI()
	switch {
	case err != nil:
		return warning(doDockerVersion, "the version of Docker is not known: %s", err)
	case !known && !s.inDocker():
		return ok("not a container of Docker, and no %s", dockerSocket)
	case !known:
		return warning(doDockerVersion, "the version of Docker is not known: no %s here", dockerSocket)
	}
	engine, version, err := s.askDocker(ctx, at)
	switch {
	case err != nil:
		return warning(doDockerVersion, "the version of Docker is not known: %s: %s", at.Address, why(err))
	case engine != "":
		return ok("%s %s is not Docker Engine", engine, version)
	}
	return judgeDocker(version)
}

// inDocker reports whether this is a container of Docker's.
func (s *surroundings) inDocker() bool { return s.has(".dockerenv") || s.stub.docker() }

// dockerAPI returns where the API is, and whether one is known of.
func (s *surroundings) dockerAPI() (at Endpoint, known bool, err error) {
	if s.Docker == "" {
		return Endpoint{"unix", dockerSocket}, s.has(strings.TrimPrefix(dockerSocket, "/")), nil
	}
	if strings.HasPrefix(s.Docker, "/") {
		return Endpoint{"unix", s.Docker}, true, nil
	}
	u, err := url.Parse(s.Docker)
	switch {
	case err == nil && u.Scheme == "unix":
		return Endpoint{"unix", u.Path}, true, nil
	case err == nil && u.Scheme == "tcp":
		return Endpoint{"tcp", u.Host}, true, nil
	}
	return at, false, fmt.Errorf("%q is none of a path, unix:///path and tcp://host:port", s.Docker)
}

// askDocker asks the API for the version. engine is what else answers by the same API, such as "Podman
// Engine".
func (s *surroundings) askDocker(ctx context.Context, at Endpoint) (engine, version string, err error) {
	body, err := s.getOK(ctx, "http://docker/version", &at)
	if err != nil {
		return "", "", err
	}
	var v struct {
		Version    string
		Components []struct{ Name string }
	}
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		return "", "", err
	}
	for _, c := range v.Components {
		if strings.HasPrefix(c.Name, "Podman") {
			return c.Name, v.Version, nil
		}
	}
	return "", v.Version, nil
}

// What is wrong with which versions. A release candidate is before its release.
var (
	leaks   = versions("< 23.0.11", ">= 24.0.0-0 < 25.0.5", ">= 26.0.0-0 < 26.0.0-rc3")
	asksNot = versions("= 25.0.5", ">= 26.0.0-rc3 < 26.1.3")
)

func versions(ranges ...string) *semver.Constraints {
	c, err := semver.NewConstraint(strings.Join(ranges, " || "))
	if err != nil {
		panic(err) // the ranges are part of the program
	}
	c.IncludePrerelease = true
	return c
}

// judgeDocker is the finding on a version such as "28.2.2" or "20.10.24+dfsg1".
func judgeDocker(version string) []Finding {
	v, err := semver.NewVersion(version)
	switch {
	case err != nil:
		return warning(doDockerVersion, "the version of Docker is not known: %q is none", version)
	case leaks.Check(v) && v.Metadata() != "":
		return warning(doUpgrade+"; until then start every sandbox with --dns",
			"Docker %s has CVE-2024-29018, unless your distribution has put the fix in: DNS leaves internal networks", version)
	case leaks.Check(v):
		return failure(doUpgrade+"; until then start every sandbox with --dns",
			"Docker %s has CVE-2024-29018: DNS leaves internal networks", version)
	case asksNot.Check(v):
		return warning(doUpgrade+", or mount an /etc/resolv.conf into the sandbox",
			"Docker %s does not forward DNS within internal networks (moby/moby#47822): no name resolves", version)
	}
	return ok("Docker %s has no known leak of DNS from internal networks", version)
}
