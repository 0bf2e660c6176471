package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestPresets(t *testing.T) {
	want := strings.Fields("agents agents-wide alpine anthropic crates debian docker-hub github golang google-ai huggingface " +
		"mistral nodejs npm openai openrouter pypi rubygems ubuntu yarn")
	if got := Presets(); !slices.Equal(got, want) {
		t.Errorf("Presets() = %q, want %q", got, want)
	}
	for _, name := range want {
		t.Run(name, func(t *testing.T) {
			set := setOf(t, "policy p {\n preset "+name+"\n}\n")
			if set.Rules() == 0 {
				t.Fatal("no rules")
			}
			p := set.policies[0]
			seen := make(map[string]bool)
			for i := range p.rules {
				r, rule := &p.rules[i], p.ruleName(&p.rules[i])
				if seen[rule] {
					t.Errorf("%s twice", rule)
				}
				seen[rule] = true
				if n := mustName(t, rule); specialUse(n) || MetadataName(n) {
					t.Errorf("%s is no public name", n)
				}
				if name != "agents-wide" && (r.scope != exact || r.ports != 0) {
					t.Errorf("%s is wider than one name on the usual ports", p.ruleAt(uint32(i)).Text())
				}
			}
			if name != "agents-wide" && len(set.Warnings()) != 0 {
				t.Errorf("Warnings() = %q", set.Warnings())
			}
		})
	}
}

// Each host has a comment on what needs it.
func TestPresetText(t *testing.T) {
	for _, name := range Presets() {
		parts, ok := presetLists(name)
		if !ok {
			t.Fatalf("no preset %s", name)
		}
		for _, part := range parts {
			if err := checkText(part.name, part.text); err != nil {
				t.Error(err)
			}
			if !strings.HasPrefix(part.text, "# ") || !strings.HasSuffix(part.text, "\n") {
				t.Errorf("%s: want a comment first and a complete last line", part.name)
			}
			for l := range strings.Lines(part.text) {
				rule, comment, _ := strings.Cut(l, "#")
				if strings.TrimSpace(rule) != "" && len(strings.TrimSpace(comment)) < 10 {
					t.Errorf("%s: no comment: %q", part.name, l)
				}
			}
		}
	}
}

// agents is everything a coding agent needs, so all narrow presets, and is written in no file of its own.
func TestPresetAgents(t *testing.T) {
	var topics []string
	for _, name := range Presets() {
		if !strings.HasPrefix(name, "agents") {
			topics = append(topics, name)
		}
	}
	all := setOf(t, "policy p {\n preset "+strings.Join(topics, " ")+"\n}\n")
	agents := setOf(t, "policy p {\n preset agents\n}\n")
	if texts(all) != texts(agents) || all.Hash() != agents.Hash() {
		t.Errorf("got  %s\nwant %s", texts(agents), texts(all))
	}
	sel := agents.Select(netip.MustParseAddr("192.0.2.1"), "")
	for name, want := range map[string]string{
		"github.com":             "allow",
		"api.anthropic.com":      "allow",
		"registry.npmjs.org":     "allow",
		"gist.github.com":        "not_allowed",
		"uploads.github.com":     "not_allowed",
		"storage.googleapis.com": "not_allowed",
	} {
		if got := verdict(decide(t, sel, mustName(t, name), 443)); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	if d := sel.Lookup(mustName(t, "registry.npmjs.org"), 443); d.Rule.String() != "preset/npm:3" || d.Rule.Text() != "allow registry.npmjs.org" {
		t.Errorf("got %q at %s", d.Rule.Text(), d.Rule)
	}
}

// agents-wide is the list of the set-ups that are replaced, in their order.
func TestPresetAgentsWide(t *testing.T) {
	const inUse = `.github.com .githubusercontent.com .anthropic.com .openai.com .openrouter.ai .npmjs.org .yarnpkg.com
		.nodejs.org .pypi.org .pythonhosted.org .crates.io .golang.org .rubygems.org .alpinelinux.org .debian.org`
	want := "allow " + strings.Join(strings.Fields(inUse), "; allow ")
	if got := texts(setOf(t, "policy p {\n preset agents-wide\n}\n")); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// What is printed of a preset is what is in force, as a list; and says in a sentence what it is for.
func TestPresetForPeople(t *testing.T) {
	for _, name := range Presets() {
		t.Run(name, func(t *testing.T) {
			text, ok := PresetText(name)
			if !ok {
				t.Fatal("no text")
			}
			set, err := compileText("policy p {\n allow_list list\n}\n", text)
			if err != nil {
				t.Fatal(err)
			}
			if want := setOf(t, "policy p {\n preset "+name+"\n}\n"); set.Hash() != want.Hash() {
				t.Errorf("got %s, want %s", texts(set), texts(want))
			}
			s := PresetSummary(name)
			if len(s) < 15 || len(s) > 110 || !strings.HasSuffix(s, ".") || strings.ContainsAny(s, "\n#") {
				t.Errorf("got summary %q", s)
			}
		})
	}
	if text, ok := PresetText("none"); ok || text != "" || PresetSummary("none") != "" {
		t.Errorf("got %q, %t for no preset", text, ok)
	}
}
