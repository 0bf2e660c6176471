package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestREADME holds that the README says what the results say.
func TestREADME(t *testing.T) {
	results, err := os.ReadFile("RESULTS.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := quotes(results)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), quotesBegin+"\n"+want+"\n"+quotesEnd) {
		t.Errorf("the README does not quote RESULTS.md; make bench writes both. It has to say:\n%s", want)
	}
}

// TestQuotes holds that what is quoted is what a report says, whatever failed.
func TestQuotes(t *testing.T) {
	var all []table
	for _, s := range suites(new(lab)) {
		for _, m := range s.measures {
			tb := table{measure: m}
			for i, p := range s.peers {
				values := make([]float64, len(m.columns))
				for j := range values {
					values[j] = float64(i + 1)
				}
				r := &row{peer: p, rounds: [][]float64{values}}
				if p.name == peerSquid {
					r.err = errNotInstalled
				}
				tb.rows = append(tb.rows, r)
			}
			all = append(all, tb)
		}
	}
	var b bytes.Buffer
	(&report{tables: all, pace: full, began: time.Now()}).print(&b)
	dir := t.TempDir()
	results, readme := filepath.Join(dir, "RESULTS.md"), filepath.Join(dir, "README.md")
	page := "before\n" + quotesBegin + "old\n" + quotesEnd + "after\n"
	for path, text := range map[string]string{results: b.String(), readme: page} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := quoteIn(readme, results); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(got)), " ")
	for _, want := range []string{
		"before", "after",
		"| CPU per DNS question at 1,000,000 rules | 0.500 × CoreDNS whoami |",
		"| new tunnels a second, 16 clients at once | 0.500 × nginx ssl_preread |",
		"| CPU per request of the forward proxy | not measured |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
	if strings.Contains(text, "old") {
		t.Errorf("the old figures are still there:\n%s", got)
	}
	if err := os.WriteFile(readme, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := quoteIn(readme, results); err == nil {
		t.Error("a README without a place for the figures: got no error")
	}
}
