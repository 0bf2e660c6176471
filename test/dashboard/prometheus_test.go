package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// coredns is one that runs with the policy of a gateway.
type coredns struct {
	dns     string // address
	metrics int    // port
}

const corefileText = `.:%d {
	bind 127.0.0.1
	sandboxallow {
		answer      127.0.0.1
		policy_file %s
		poll        100ms
	}
	prometheus 127.0.0.1:%d
	errors
}
`

// startCoreDNS starts one, for the time of a test.
func startCoreDNS(t *testing.T, policy string) coredns {
	t.Helper()
	ports := freePorts(t, 2)
	corefile := filepath.Join(t.TempDir(), "Corefile")
	if err := os.WriteFile(corefile, fmt.Appendf(nil, corefileText, ports[0], policy, ports[1]), 0o644); err != nil {
		t.Fatal(err)
	}
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	c := coredns{dns: fmt.Sprintf("127.0.0.1:%d", ports[0]), metrics: ports[1]}
	run(t, filepath.Join(bin, "coredns"), "-conf", corefile)
	waitFor(t, "CoreDNS", func() error {
		_, err := dns.Exchange(new(dns.Msg).SetQuestion("policy.sandboxallow.", dns.TypeTXT), c.dns)
		return err
	})
	return c
}

// ask asks for the address of a name.
func (c coredns) ask(t *testing.T, name string) {
	t.Helper()
	if _, err := dns.Exchange(new(dns.Msg).SetQuestion(name+".", dns.TypeA), c.dns); err != nil {
		t.Fatal(err)
	}
}

// prometheus is one that scrapes a gateway and its CoreDNS twice a second.
type prometheus struct{ url string }

const prometheusText = `global:
  scrape_interval: 500ms
  evaluation_interval: 500ms
rule_files: [%s]
scrape_configs:
  - job_name: caddy
    static_configs: [{targets: ['127.0.0.1:%d']}]
  - job_name: coredns
    static_configs: [{targets: ['127.0.0.1:%d']}]
`

// startPrometheus starts one with rules, for the time of a test.
func startPrometheus(t *testing.T, rules string, caddy, coredns int) prometheus {
	t.Helper()
	dir := t.TempDir()
	rules, err := filepath.Abs(rules)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, fmt.Appendf(nil, prometheusText, rules, caddy, coredns), 0o644); err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1)[0])
	run(t, "prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	p := prometheus{"http://" + addr}
	waitFor(t, "Prometheus", func() error {
		resp, err := http.Get(p.url + "/-/ready")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("it says %s", resp.Status)
			}
		}
		return err
	})
	return p
}

// get asks the HTTP API, and returns the data of the answer.
func (p prometheus) get(path string, query url.Values) (json.RawMessage, error) {
	resp, err := http.Get(p.url + "/api/v1/" + path + "?" + query.Encode())
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s", resp.Status, answer.Error)
	}
	return answer.Data, nil
}

// sample is a series and its value.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

func (s sample) value() float64 {
	f, err := strconv.ParseFloat(s.Value[1].(string), 64)
	if err != nil {
		panic(err) // Prometheus has formatted it
	}
	return f
}

// query returns the value of an expression now.
func (p prometheus) query(expr string) ([]sample, error) {
	data, err := p.get("query", url.Values{"query": {expr}})
	if err != nil {
		return nil, err
	}
	var v struct{ Result []sample }
	return v.Result, json.Unmarshal(data, &v)
}

// run starts a program for the time of a test. What it has said is shown if the test fails.
func run(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		over := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		over.Stop()
		if t.Failed() {
			t.Logf("the log of %s:\n%s", filepath.Base(args[0]), &log)
		}
	})
}

// waitFor tries until there is no error.
func waitFor(t *testing.T, what string, try func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}
