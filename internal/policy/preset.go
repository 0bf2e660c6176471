package policy

import (
	"embed"
	"path"
	"slices"
	"strings"
)

// The presets are lists that ship with the binaries, one file a topic.
//
//go:embed presets/*.txt
var presetFiles embed.FS

// agentsPreset is the union of all narrow presets: what a coding agent needs to reach its model, its
// repository and its packages. agents-wide is no part of it.
const agentsPreset = "agents"

type presetList struct {
	name string
	text string
}

// Presets returns the names that a preset line accepts, sorted.
func Presets() []string {
	names := append(presetTopics(), agentsPreset, "agents-wide")
	slices.Sort(names)
	return names
}

// presetTopics returns the presets that have a file of their own and are part of agents.
func presetTopics() []string {
	entries, err := presetFiles.ReadDir("presets")
	if err != nil {
		panic(err) // the files are part of the binary
	}
	var names []string
	for _, e := range entries {
		if name := strings.TrimSuffix(e.Name(), ".txt"); name != "agents-wide" {
			names = append(names, name)
		}
	}
	return names
}

// presetLists returns the lists that a preset consists of.
func presetLists(name string) ([]presetList, bool) {
	if !slices.Contains(Presets(), name) {
		return nil, false
	}
	names := []string{name}
	if name == agentsPreset {
		names = presetTopics()
	}
	lists := make([]presetList, len(names))
	for i, n := range names {
		text, err := presetFiles.ReadFile(path.Join("presets", n+".txt"))
		if err != nil {
			panic(err) // the files are part of the binary
		}
		lists[i] = presetList{n, string(text)}
	}
	return lists, true
}

// PresetText returns what a preset consists of, with the comments on what needs each host: one rule a line, as
// an allow_list has them. It reports whether there is such a preset.
func PresetText(name string) (text string, ok bool) {
	lists, ok := presetLists(name)
	texts := make([]string, len(lists))
	for i, l := range lists {
		texts[i] = l.text
	}
	return strings.Join(texts, "\n"), ok
}

// PresetSummary returns a sentence on what a preset is for, "" if there is no such preset.
func PresetSummary(name string) string {
	if name == agentsPreset {
		return "What a coding agent needs: all presets but agents-wide."
	}
	text, _ := PresetText(name)
	var words []string
	for l := range strings.Lines(text) {
		comment, ok := strings.CutPrefix(l, "#")
		if !ok {
			break
		}
		words = append(words, strings.Fields(comment)...)
		if i := slices.IndexFunc(words, func(w string) bool { return strings.HasSuffix(w, ".") }); i >= 0 {
			words = words[:i+1]
			break
		}
	}
	return strings.Join(words, " ")
}
