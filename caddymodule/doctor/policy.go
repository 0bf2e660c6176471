package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// inForce is what the metrics of a binary say of its policies.
type inForce struct {
	hashes []string // sorted; CoreDNS has one for each document
	stale  bool
}

const doPolicyFile = "have both binaries read the same document"

// checkPolicy compares what both binaries have in force: CoreDNS steers by one policy, Caddy decides by the
// other.
func checkPolicy(ctx context.Context, s *surroundings) (fs []Finding) {
	dnsSide, err := s.scrape(ctx, "coredns", s.Gateway.CoreDNSMetrics, nil)
	if err != nil {
		fs = append(fs, warning("give --coredns-metrics and the URL of the plugin prometheus",
			"CoreDNS's policy is not known: %s", err)...)
	}
	gateway, err := s.scrapeCaddy(ctx)
	if err != nil {
		fs = append(fs, warning("give --caddy-metrics and a URL, or --config and the configuration that Caddy runs",
			"Caddy's policy is not known: %s", err)...)
	}
	for _, side := range []struct {
		name string
		in   inForce
	}{{"CoreDNS", dnsSide}, {"Caddy", gateway}} {
		if side.in.stale {
			fs = append(fs, warning("look for the error in its log and mend the document",
				"%s holds an older policy: the document is missing or broken", side.name)...)
		}
	}
	a, b := strings.Join(dnsSide.hashes, " "), strings.Join(gateway.hashes, " ")
	switch {
	case a == "" || b == "":
	case a == b:
		fs = append(fs, ok("both binaries hold policy %s", a)...)
	default:
		fs = append(fs, failure(doPolicyFile+", and look again after its poll (1s)",
			"CoreDNS holds policy %s, Caddy %s", a, b)...)
	}
	return fs
}

// scrapeCaddy reads the metrics at their URL, or else at the admin endpoint.
func (s *surroundings) scrapeCaddy(ctx context.Context) (inForce, error) {
	if s.Gateway.CaddyMetrics != "" {
		return s.scrape(ctx, "caddy", s.Gateway.CaddyMetrics, nil)
	}
	admin := s.Gateway.Admin
	switch {
	case admin == nil:
		return inForce{}, errors.New("its admin endpoint is not known")
	case *admin == Endpoint{}:
		return inForce{}, errors.New("its admin endpoint is off")
	case admin.Network == "unix":
		return s.scrape(ctx, "caddy", "http://localhost/metrics", admin)
	}
	return s.scrape(ctx, "caddy", "http://"+admin.Address+"/metrics", nil)
}

// scrape reads the metrics of a binary.
func (s *surroundings) scrape(ctx context.Context, binary, url string, via *Endpoint) (in inForce, err error) {
	body, err := s.getOK(ctx, url, via)
	if err != nil {
		return in, fmt.Errorf("%s: %s", url, why(err))
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		return in, fmt.Errorf("%s: %w", url, err)
	}
	info, stale := binary+"_sandboxallow_policy_info", binary+"_sandboxallow_policy_stale"
	for _, m := range families[info].GetMetric() {
		in.hashes = append(in.hashes, labelOf(m, "hash"))
	}
	if len(in.hashes) == 0 {
		return in, fmt.Errorf("no %s at %s", info, url)
	}
	slices.Sort(in.hashes)
	for _, m := range families[stale].GetMetric() {
		in.stale = in.stale || m.GetGauge().GetValue() != 0
	}
	return in, nil
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
