package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxallow/sandboxallow/test/need"
)

const (
	grafanaFile = "../../builds/grafana/sandboxallow.json"
	alertsFile  = "../../builds/grafana/alerts.yaml"
)

// board is a dashboard of Grafana, as far as it matters here.
type board struct {
	Title, UID string
	Templating struct {
		List []struct {
			Name, Type string
			Query      json.RawMessage
		}
	}
	Panels []struct {
		ID                       int
		Title, Type, Description string
		GridPos                  struct{ X, Y, W, H int }
		Datasource               struct{ Type, UID string }
		Targets                  []struct {
			RefID, Expr, LegendFormat string
			Datasource                struct{ Type, UID string }
		}
	}
}

func readBoard(t *testing.T) board {
	t.Helper()
	data, err := os.ReadFile(grafanaFile)
	if err != nil {
		t.Fatal(err)
	}
	var b board
	if err := json.Unmarshal(data, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// inGrafana replaces what Grafana replaces in a query: all policies, and a time that a test has.
var inGrafana = strings.NewReplacer("$__rate_interval", "30s", "$__range", "60s", "$policy", ".*")

// TestGrafana checks what Grafana would not tell of until somebody looks.
func TestGrafana(t *testing.T) {
	b := readBoard(t)
	if b.Title == "" || b.UID == "" || len(b.Panels) == 0 {
		t.Fatalf("got %+v", b)
	}
	ids := make(map[int]bool)
	taken := make(map[[2]int]string)
	for _, p := range b.Panels {
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("%s: the id %d is another's", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d lacks a title, a description or a query", p.ID)
		}
		if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W == 0 || p.GridPos.H == 0 {
			t.Errorf("%s stands at %+v, of 24 columns", p.Title, p.GridPos)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := taken[at]; other != "" {
					t.Fatalf("%s stands on %s", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
		var refs []string
		for _, q := range p.Targets {
			if q.Datasource.UID != "${datasource}" || p.Datasource.UID != "${datasource}" {
				t.Errorf("%s asks another source than the one that is chosen", p.Title)
			}
			if q.RefID == "" || slices.Contains(refs, q.RefID) {
				t.Errorf("%s has two queries %q", p.Title, q.RefID)
			}
			refs = append(refs, q.RefID)
			if strings.Contains(inGrafana.Replace(q.Expr), "$") {
				t.Errorf("%s: %s has a variable that is none of the dashboard's", p.Title, q.Expr)
			}
		}
	}
}

// TestQueries has Prometheus scrape both binaries, and asks it each query of the dashboard.
func TestQueries(t *testing.T) {
	need.All(t, need.Program("prometheus"))
	g := startGateway(t)
	c := startCoreDNS(t, g.policy)
	p := startPrometheus(t, alertsFile, g.metrics, c.metrics)
	scraped := func() {
		t.Helper()
		before := time.Now()
		waitFor(t, "scrapes of both", func() error {
			up, err := p.query("up == 1 and timestamp(up) > " + fmt.Sprint(float64(before.UnixMilli())/1000))
			if err == nil && len(up) != 2 {
				err = fmt.Errorf("got %v", up)
			}
			return err
		})
	}
	// In two rounds: what a series begins with is no increase.
	for range 2 {
		play(t, g)
		g.tunnel(t, "127.0.0.1", "files.example.net", "hello").Close()
		c.ask(t, "api.openai.com")
		c.ask(t, "evil.test")
		scraped()
	}
	waitFor(t, "the ends of tunnels to be counted", func() error {
		got, err := p.query("sum(rate(caddy_sandboxallow_bytes_total[30s])) > 0")
		if err == nil && len(got) == 0 {
			err = errors.New("no increase")
		}
		return err
	})

	b := readBoard(t)
	for _, panel := range b.Panels {
		for _, q := range panel.Targets {
			t.Run(panel.Title+" "+q.RefID, func(t *testing.T) {
				expr := inGrafana.Replace(q.Expr)
				got, err := p.query(expr)
				if err != nil || len(got) == 0 {
					t.Fatalf("%s: got %v, %v", expr, got, err)
				}
				for _, s := range got {
					if v := s.value(); math.IsNaN(v) || math.IsInf(v, 0) {
						t.Errorf("%s: got %v", expr, s)
					}
					for _, label := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(q.LegendFormat, -1) {
						if _, ok := s.Metric[label[1]]; !ok && label[1] != "policy" && label[1] != "reason" { // which may be empty
							t.Errorf("the legend %s lacks a label of %v", q.LegendFormat, s.Metric)
						}
					}
				}
				now := time.Now().Unix()
				if _, err := p.get("query_range", url.Values{"query": {expr}, "start": {fmt.Sprint(now - 30)}, "end": {fmt.Sprint(now)}, "step": {"5"}}); err != nil {
					t.Errorf("over a time: %v", err)
				}
			})
		}
	}
	value := func(title string) float64 {
		t.Helper()
		for _, panel := range b.Panels {
			if panel.Title == title {
				got, err := p.query(inGrafana.Replace(panel.Targets[0].Expr))
				if err != nil || len(got) == 0 {
					t.Fatalf("%s: got %v, %v", title, got, err)
				}
				return got[0].value()
			}
		}
		t.Fatalf("there is no panel %s", title)
		return 0
	}
	for title, ok := range map[string]func(float64) bool{
		"Denied":            func(v float64) bool { return v > 10 },
		"Would be denied":   func(v float64) bool { return v > 0 },
		"Open tunnels":      func(v float64) bool { return v == 6 },
		"Policies":          func(v float64) bool { return v == 0 },
		"Stale":             func(v float64) bool { return v == 0 },
		"Changes not taken": func(v float64) bool { return v == 0 },
	} {
		if v := value(title); !ok(v) {
			t.Errorf("%s: got %v", title, v)
		}
	}

	t.Run("variables", func(t *testing.T) {
		form := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
		for _, v := range b.Templating.List {
			if v.Type != "query" {
				continue
			}
			var q struct{ Query string }
			if err := json.Unmarshal(v.Query, &q); err != nil {
				t.Fatal(err)
			}
			m := form.FindStringSubmatch(q.Query)
			if m == nil {
				t.Fatalf("%s: %s", v.Name, q.Query)
			}
			data, err := p.get("label/"+m[2]+"/values", url.Values{"match[]": {m[1]}})
			if err != nil || !strings.Contains(string(data), `"default","research"`) {
				t.Errorf("%s: got %s, %v", v.Name, data, err)
			}
		}
	})
	alerts := func(state string) (names []string) {
		t.Helper()
		data, err := p.get("rules", nil)
		if err != nil {
			t.Fatal(err)
		}
		var v struct {
			Groups []struct {
				Rules []struct{ Name, State, Health, LastError string }
			}
		}
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatal(err)
		}
		for _, group := range v.Groups {
			for _, r := range group.Rules {
				if r.Health != "ok" && r.Health != "unknown" {
					t.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError)
				}
				if r.State == state {
					names = append(names, r.Name)
				}
			}
		}
		slices.Sort(names)
		return names
	}
	t.Run("alerts", func(t *testing.T) {
		if got := alerts("inactive"); len(got) < 5 || slices.Contains(got, "") {
			t.Errorf("without trouble these are inactive: %v", got)
		}
		for _, name := range []string{"SandboxallowPolicyStale", "SandboxallowPolicyMismatch", "SandboxallowLimit", "SandboxallowPanic"} {
			if !slices.Contains(alerts("inactive"), name) {
				t.Errorf("%s is not inactive without trouble", name)
			}
		}
	})
	t.Run("trouble", func(t *testing.T) {
		g.stop(t)
		g.write(t, "policy default {\n\talow other.example\n}\n") // CoreDNS keeps what it has
		waitFor(t, "a stale CoreDNS", func() error {
			if v := value("Stale"); v != 1 {
				return fmt.Errorf("got %v", v)
			}
			return nil
		})
		g.policy += ".other"
		g.write(t, "policy default {\n\tallow other.example\n}\n")
		text, err := os.ReadFile(g.caddyfile)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(g.caddyfile, []byte(strings.Replace(string(text), "policy_file policy", "policy_file policy.other", 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		g.start(t)
		waitFor(t, "both alerts", func() error {
			pending := alerts("pending") // they fire when it has lasted
			for _, name := range []string{"SandboxallowPolicyMismatch", "SandboxallowPolicyStale"} {
				if !slices.Contains(pending, name) {
					return fmt.Errorf("pending are %v", pending)
				}
			}
			return nil
		})
		if v := value("Policies"); v != 2 {
			t.Errorf("the panel has %v that differ, want both", v)
		}
	})
}

// TestAlerts has promtool run the rules over series that are made for them.
func TestAlerts(t *testing.T) {
	need.All(t, need.Program("promtool"))
	for _, args := range [][]string{
		{"check", "rules", alertsFile},
		{"test", "rules", "testdata/alerts_test.yaml"},
	} {
		if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Each alert is tested by promtool, in a state that makes it fire and in one that does not.
func TestAlertsAreTested(t *testing.T) {
	rules, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("testdata/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	if len(names) == 0 {
		t.Fatal("no alerts")
	}
	for _, name := range names {
		if !strings.Contains(string(tests), "alertname: "+name[1]+"\n        exp_alerts:") {
			t.Errorf("%s is not made to fire", name[1])
		}
		if !strings.Contains(string(tests), "alertname: "+name[1]+"}") {
			t.Errorf("%s is not kept from firing", name[1])
		}
	}
}
