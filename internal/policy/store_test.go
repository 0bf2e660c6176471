package policy

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// watched is a store with what it told. Its files are in the working directory.
type watched struct {
	*Store
	t       *testing.T
	mu      sync.Mutex
	changes int
	errors  []string
}

// watch makes a store for the document "policy". It does not run: a test that does not call Start polls by
// hand, so that it decides what a poll sees.
func watch(t *testing.T, poll time.Duration, files map[string]string) *watched {
	t.Helper()
	writeFiles(t, files)
	w := &watched{t: t}
	st, err := NewStore(Source{File: "policy"}, Options{
		Poll: poll,
		OnChange: func(s *Set) {
			if s != w.Set() {
				t.Error("OnChange before the set is in force")
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changes++
		},
		OnError: func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.errors = append(w.errors, err.Error())
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Store = st
	t.Cleanup(st.Stop)
	return w
}

// told returns how often OnChange was called, and the errors.
func (w *watched) told() (int, []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changes, slices.Clone(w.errors)
}

func (w *watched) ticks(n int) {
	for range n {
		w.poll(true)
	}
}

// asks polls as Settle has it done.
func (w *watched) asks(n int) {
	for range n {
		w.poll(false)
	}
}

// want checks the rules in force, whether the store is stale, and how many errors there were in all.
func (w *watched) want(when, rules string, stale bool, errors int) {
	w.t.Helper()
	if got := texts(w.Set()); got != rules {
		w.t.Errorf("%s: got %.200q, want %.200q", when, got, rules)
	}
	if w.Stale() != stale {
		w.t.Errorf("%s: Stale() = %t", when, w.Stale())
	}
	if _, got := w.told(); len(got) != errors {
		w.t.Errorf("%s: got %d errors, want %d: %q", when, len(got), errors, got)
	}
}

// write changes a file in place.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// replace puts another file in the place of one.
func replace(t *testing.T, path, text string) {
	t.Helper()
	write(t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// doc is a document that allows names.
func doc(names ...string) string { return "policy p {\n allow " + strings.Join(names, " ") + "\n}\n" }

const (
	allowA = "allow a.example"
	allowB = "allow b.example"
	listed = "policy p {\n allow_list list\n}\n"
)

var fileA = map[string]string{"policy": doc("a.example")}

func TestStoreOptions(t *testing.T) {
	writeFiles(t, fileA)
	st, err := NewStore(Source{File: "policy"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if st.opts.Poll != time.Second {
		t.Errorf("polls each %s, want 1s", st.opts.Poll)
	}
	if _, err := NewStore(Source{File: "policy"}, Options{Poll: -time.Second}); err == nil ||
		err.Error() != "poll interval -1s, accepted are positive durations such as 1s" {
		t.Errorf("got %v", err)
	}
	if _, err := NewStore(Source{}, Options{}); err == nil {
		t.Error("a store of nothing")
	}
}

func TestReloadReplaced(t *testing.T) {
	t.Run("reload-001", func(t *testing.T) {
		w := watch(t, time.Millisecond, fileA)
		for i := range 5 {
			name := fmt.Sprintf("v%d.example", i)
			replace(t, "policy", doc(name))
			w.asks(1) // at once
			w.want("replaced", "allow "+name, false, 0)
		}
		if n, _ := w.told(); n != 5 {
			t.Errorf("%d changes told, want 5", n)
		}
	})
	t.Run("reload-002", func(t *testing.T) {
		for _, name := range []string{"policy", "list"} {
			files := map[string]string{
				"..2024_1/policy": listed, "..2024_1/list": "a.example\n",
				"..2024_2/policy": listed, "..2024_2/list": "a.example\n",
			}
			want := allowB
			if name == "policy" {
				files["..2024_2/policy"], want = listed+"# new\n", allowA
			} else {
				files["..2024_2/list"] = "b.example\n"
			}
			writeFiles(t, files)
			symlink(t, "..2024_1", "..data")
			symlink(t, "..data/policy", "policy")
			symlink(t, "..data/list", "list")
			st, err := NewStore(Source{File: "policy"}, Options{Poll: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			before := st.Set()
			symlink(t, "..2024_2", "..data")
			remove(t, "..2024_1")
			st.poll(false)
			if st.Set() == before || texts(st.Set()) != want || st.Stale() {
				t.Errorf("another %s: got %s, stale %t", name, texts(st.Set()), st.Stale())
			}
		}
	})
	t.Run("two reads must agree", func(t *testing.T) {
		// Each read of this file finds another line, which would do for a rule.
		const restless = "/proc/sys/kernel/random/uuid"
		w := watch(t, time.Millisecond, map[string]string{"policy": listed, "list": "a.example\n"})
		symlink(t, restless, "list")
		w.asks(5)
		w.ticks(5)
		w.want("restless", allowA, false, 0)
		replace(t, "list", "b.example\n")
		w.asks(1)
		w.want("at rest", allowB, false, 0)
	})
	t.Run("while written in place", func(t *testing.T) {
		w := watch(t, time.Millisecond, fileA)
		write(t, "policy", doc("half.example"))
		w.ticks(2)
		replace(t, "policy", doc("b.example"))
		w.asks(1)
		w.want("replaced", allowB, false, 0)
	})
	t.Run("one replaced, one in place", func(t *testing.T) {
		w := watch(t, time.Millisecond, map[string]string{"policy": listed, "list": "a.example\n"})
		replace(t, "policy", listed+"# new\n")
		write(t, "list", "b.example\n")
		w.asks(3)
		w.ticks(2)
		w.want("early", allowA, false, 0)
		w.ticks(1)
		w.want("late", allowB, false, 0)
	})
	t.Run("another file with the same bytes", func(t *testing.T) {
		w := watch(t, time.Millisecond, fileA)
		set := w.Set()
		replace(t, "policy", fileA["policy"])
		w.ticks(5)
		if n, _ := w.told(); n != 0 || w.Set() != set {
			t.Errorf("%d changes told", n)
		}
	})
}

func TestReloadInPlace(t *testing.T) {
	t.Run("three ticks, not earlier", func(t *testing.T) {
		w := watch(t, time.Millisecond, fileA)
		write(t, "policy", doc("b.example"))
		w.asks(20) // whoever is denied may ask often
		w.want("asked", allowA, false, 0)
		for range 2 {
			w.ticks(1)
			w.asks(20)
			w.want("early", allowA, false, 0)
		}
		w.ticks(1)
		w.want("late", allowB, false, 0)
	})
	t.Run("in a row", func(t *testing.T) {
		w := watch(t, time.Millisecond, fileA)
		for i := range 5 {
			write(t, "policy", doc("b.example", fmt.Sprintf("v%d.example", i)))
			w.ticks(2)
			w.asks(2)
			w.want("still growing", allowA, false, 0)
		}
		w.ticks(1)
		w.want("at rest", "allow b.example; allow v4.example", false, 0)
	})
	t.Run("and back", func(t *testing.T) {
		w := watch(t, time.Millisecond, fileA)
		set := w.Set()
		write(t, "policy", doc("b.example"))
		w.ticks(2)
		write(t, "policy", fileA["policy"])
		w.ticks(1)
		write(t, "policy", doc("b.example"))
		w.ticks(2)
		if w.Set() != set {
			t.Error("ticks before a change count for it")
		}
		w.ticks(1)
		w.want("late", allowB, false, 0)
	})
	t.Run("of a file that was replaced before", func(t *testing.T) {
		w := watch(t, time.Millisecond, fileA)
		replace(t, "policy", doc("b.example"))
		w.asks(1)
		write(t, "policy", doc("c.example"))
		w.asks(5)
		w.ticks(2)
		w.want("early", allowB, false, 0)
		w.ticks(1)
		w.want("late", "allow c.example", false, 0)
	})
	// The file that is being written is the one seen last, though its bytes were in force all along.
	t.Run("of a file that took a bad one's place", func(t *testing.T) {
		w := watch(t, time.Millisecond, fileA)
		replace(t, "policy", "bad\n")
		w.asks(1)
		w.want("bad", allowA, true, 1)
		replace(t, "policy", fileA["policy"])
		w.asks(1)
		w.want("good again", allowA, false, 1)
		write(t, "policy", doc("half.example"))
		w.asks(5)
		w.ticks(2)
		w.want("half written", allowA, false, 1)
	})
	t.Run("reload-008", func(t *testing.T) { // written from where no event comes
		w := watch(t, 20*time.Millisecond, fileA)
		w.Start()
		write(t, "policy", doc("b.example"))
		waitFor(t, "b.example allowed", func() bool { return texts(w.Set()) == allowB })
	})
}

func TestReloadTimes(t *testing.T) {
	t.Run("reload-006", func(t *testing.T) {
		var large strings.Builder
		for i := range 80_000 {
			fmt.Fprintf(&large, "r%05d.example\n", i)
		}
		then := time.Now().Add(-time.Hour).Truncate(time.Second)
		for _, tc := range []struct {
			name   string
			before string
			change func(t *testing.T, path, text string)
			mtime  time.Time
			ticks  int
		}{
			{"replaced, same mtime", "a.example\n", replace, then, 1},
			{"replaced, older mtime", "a.example\n", replace, then.Add(-time.Hour), 1},
			{"in place, same mtime", "a.example\n", write, then, 3},
			{"in place, older mtime", "a.example\n", write, then.Add(-time.Hour), 3},
			{"large, replaced, same mtime", large.String(), replace, then, 1},
			{"large, replaced, older mtime", large.String(), replace, then.Add(-time.Hour), 1},
			{"large, in place, same mtime", large.String(), write, then, fullRead + 2},
			{"large, in place, older mtime", large.String(), write, then.Add(-time.Hour), 3},
		} {
			t.Run(tc.name, func(t *testing.T) {
				writeFiles(t, map[string]string{"policy": listed, "list": tc.before})
				if err := os.Chtimes("list", then, then); err != nil {
					t.Fatal(err)
				}
				st, err := NewStore(Source{File: "policy"}, Options{Poll: time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				after := "z" + tc.before[1:]
				tc.change(t, "list", after)
				if err := os.Chtimes("list", tc.mtime, tc.mtime); err != nil {
					t.Fatal(err)
				}
				for range tc.ticks {
					st.poll(true)
				}
				sel := st.Set().Select(netip.MustParseAddr("192.0.2.1"), "")
				name, _, _ := strings.Cut(after, "\n")
				if d := sel.Lookup(mustName(t, name), 443); d.Verdict != Allow {
					t.Errorf("%s: got %s after %d polls", name, outcome(d), tc.ticks)
				}
			})
		}
	})
}

func TestReloadBad(t *testing.T) {
	const cut = " has no line end, is the file complete?"
	for _, tc := range []struct {
		id   string
		text string
		want string
	}{
		{"reload-009", "policy p {\n allow http://x\n}\n", `policy:2: "http://x" is a URL, write the host name alone: "x"`},
		{"policyfile-004", "\xff\xfep\x00o\x00l\x00", "policy:1: byte 0xff is not UTF-8, accepted is UTF-8 text; policy:1" + cut},
		{"policyfile-034", "policy p {\n allow a.example\n allow b.example\n allow c.example\n alow d.example\n}\n",
			`policy:5: unknown word "alow", accepted are mode, preset, allow, deny, allow_list, ports, client and private`},
		{"policyfile-035", "policy p {\n allow b.example\n}", "policy:3: incomplete, the last line has no line end"},
		{"cut in a name", "policy p {\n allow b.exam", `policy:1: policy "p" is not closed, accepted is a last line with } alone; policy:2` + cut},
		{"empty", "", "policy:1: document without a policy, accepted is: policy NAME {"},
		{"list missing", "policy p {\n allow b.example\n allow_list none\n}\n", "policy:3: allow_list: stat none: no such file or directory"},
		{"name of a list cut", "policy p {\n allow b.example\n allow_list no", "policy:3: allow_list: stat no: no such file or directory; policy:3" + cut},
	} {
		for _, how := range []struct {
			name   string
			change func(t *testing.T, path, text string)
			ticks  int
		}{{"replaced", replace, 1}, {"in place", write, 3}} {
			t.Run(tc.id+" "+how.name, func(t *testing.T) {
				w := watch(t, time.Millisecond, fileA)
				set := w.Set()
				how.change(t, "policy", tc.text)
				w.ticks(how.ticks - 1)
				w.want("early", allowA, false, 0)
				w.ticks(1)
				w.want("bad", allowA, true, 1)
				w.asks(3)
				w.ticks(9)
				w.want("bad for long", allowA, true, 1)
				if _, errs := w.told(); errs[0] != tc.want {
					t.Errorf("got  %s\nwant %s", errs[0], tc.want)
				}
				if w.Set() != set {
					t.Error("another set")
				}

				how.change(t, "policy", "policy q {\n") // bad in another way
				w.ticks(how.ticks)
				w.want("bad again", allowA, true, 2)

				how.change(t, "policy", doc("b.example"))
				w.ticks(how.ticks)
				w.want("fixed", allowB, false, 2)

				how.change(t, "policy", tc.text)
				w.ticks(how.ticks)
				w.want("bad once more", allowB, true, 3)
				how.change(t, "policy", doc("b.example")) // what is in force
				w.ticks(1)
				w.want("back", allowB, false, 3)
				if n, _ := w.told(); n != 1 {
					t.Errorf("%d changes told, want 1", n)
				}
			})
		}
	}
}

func TestReloadMissing(t *testing.T) {
	t.Run("reload-007", func(t *testing.T) {
		w := watch(t, time.Millisecond, fileA)
		remove(t, "policy")
		w.ticks(1)
		w.want("removed", allowA, true, 1)
		w.ticks(9)
		w.asks(9)
		w.want("removed for long", allowA, true, 1)
		if _, errs := w.told(); errs[0] != "policy file: stat policy: no such file or directory" {
			t.Errorf("got %q", errs)
		}
		write(t, "policy", doc("b.example"))
		w.ticks(3) // the new file may have the old one's inode
		w.want("made again", allowB, false, 1)
		remove(t, "policy")
		w.ticks(2)
		w.want("removed again", allowB, true, 2)
		write(t, "policy", doc("b.example"))
		w.ticks(1)
		w.want("as before", allowB, false, 2)
	})
	t.Run("a directory in its place", func(t *testing.T) {
		w := watch(t, time.Millisecond, fileA)
		remove(t, "policy")
		if err := os.Mkdir("policy", 0o755); err != nil {
			t.Fatal(err)
		}
		w.ticks(5)
		w.want("directory", allowA, true, 1)
	})
	t.Run("list", func(t *testing.T) {
		w := watch(t, time.Millisecond, map[string]string{"policy": listed, "list": "a.example\n"})
		remove(t, "list")
		w.ticks(9)
		w.want("removed", allowA, true, 1)
		if _, errs := w.told(); errs[0] != "policy:2: allow_list: stat list: no such file or directory" {
			t.Errorf("got %q", errs)
		}
		write(t, "list", "a.example\n")
		w.ticks(1)
		w.want("as before", allowA, false, 1)
		remove(t, "list")
		w.ticks(1)
		write(t, "list", "b.example\n")
		w.ticks(3)
		w.want("made again", allowB, false, 2)
	})
}

func TestReloadLists(t *testing.T) {
	t.Run("reload-019", func(t *testing.T) {
		w := watch(t, time.Millisecond, map[string]string{"policy": listed, "list": "a.example\n"})
		hash := w.Set().Hash()
		replace(t, "list", "b.example\n")
		w.asks(1)
		w.want("replaced", allowB, false, 0)
		if w.Set().Hash() == hash {
			t.Error("the same hash")
		}
		write(t, "list", "a.example\n")
		w.ticks(3)
		w.want("in place", allowA, false, 0)
		if w.Set().Hash() != hash {
			t.Error("another hash")
		}
	})
	t.Run("a bad line", func(t *testing.T) {
		w := watch(t, time.Millisecond, map[string]string{"policy": listed, "list": "a.example\n"})
		replace(t, "list", "b.example\n\n*\n")
		w.ticks(3)
		w.want("bad", allowA, true, 1)
		if _, errs := w.told(); errs[0] != "list:3: \"*\" would be every name, write `mode open` in the policy instead" {
			t.Errorf("got %q", errs)
		}
		replace(t, "list", "b.example")
		w.ticks(3)
		w.want("incomplete", allowA, true, 2)
		replace(t, "list", "b.example\n")
		w.ticks(1)
		w.want("fixed", allowB, false, 2)
	})
	t.Run("one more", func(t *testing.T) {
		w := watch(t, time.Millisecond, map[string]string{"policy": listed, "list": "a.example\n"})
		write(t, "more", "b.example\n")
		replace(t, "policy", "policy p {\n allow_list list more\n}\n")
		w.asks(1)
		w.want("added", allowA+"; "+allowB, false, 0)
		replace(t, "more", "c.example\n")
		w.asks(1)
		w.want("changed", allowA+"; allow c.example", false, 0)
		replace(t, "policy", listed)
		w.asks(1)
		w.want("gone", allowA, false, 0)
		replace(t, "more", "d.example\n")
		w.ticks(3)
		w.want("no longer named", allowA, false, 0)
	})
	t.Run("an empty one", func(t *testing.T) {
		w := watch(t, time.Millisecond, map[string]string{"policy": listed, "list": "a.example\n"})
		replace(t, "list", "")
		w.asks(1)
		w.want("empty", "", false, 0)
	})
	t.Run("inline", func(t *testing.T) {
		dir := writeFiles(t, map[string]string{"list": "a.example\n"})
		st, err := NewStore(Source{Inline: []Line{{filepath.Join(dir, "Corefile"), 3, []string{"allow_list", "list"}}}}, Options{Poll: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		st.Start()
		defer st.Stop()
		replace(t, "list", "b.example\n")
		st.Settle(t.Context())
		if got := texts(st.Set()); got != allowB {
			t.Errorf("got %s, want %s", got, allowB)
		}
	})
}

// settles calls Settle and returns how long it took; a minute is its end.
func settles(t *testing.T, st *Store) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start := time.Now()
	st.Settle(ctx)
	if ctx.Err() != nil {
		t.Fatal("Settle did not return")
	}
	return time.Since(start)
}

// With a poll each hour no tick helps.
func TestSettle(t *testing.T) {
	t.Run("not started", func(t *testing.T) {
		w := watch(t, time.Hour, fileA)
		settles(t, w.Store)
		w.Start()
		w.Stop()
		settles(t, w.Store)
	})
	t.Run("nothing to watch", func(t *testing.T) {
		st, err := NewStore(Source{Inline: []Line{{"Corefile", 1, []string{"allow", "a.example"}}}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		st.Start()
		defer st.Stop()
		settles(t, st)
	})
	t.Run("nothing changes", func(t *testing.T) {
		w := watch(t, time.Hour, fileA)
		w.Start()
		for range 5 {
			settles(t, w.Store)
		}
		w.want("unchanged", allowA, false, 0)
	})
	t.Run("does not look where nothing was written", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("stamps are of Linux")
		}
		w := watch(t, time.Hour, map[string]string{"policy": "policy p {\n allow_list list\n}\n", "list": "a.example\n"})
		w.coarse = 100 * time.Millisecond // enough for the file systems that tests run on
		looks := func() uint {
			w.Store.mu.Lock()
			defer w.Store.mu.Unlock()
			return w.begun
		}
		w.Start()
		write(t, "list", "a.example\n")
		if settles(t, w.Store); w.untouched() {
			t.Error("a file that was just written has a stamp")
		}
		time.Sleep(w.coarse + 50*time.Millisecond)
		settles(t, w.Store)
		for range 100 {
			settles(t, w.Store)
		}
		if got := looks(); got != 2 {
			t.Errorf("looked %d times, want 2", got)
		}
		for name, change := range map[string]func(){
			"replaced": func() { replace(t, "list", "b.example\n") },
			"written":  func() { write(t, "list", "b.example\n") },
			// As many bytes, and the time that it had: cp -p, rsync.
			"disguised": func() {
				info, err := os.Stat("list")
				if err != nil {
					t.Fatal(err)
				}
				write(t, "list", "b.example\n")
				if err := os.Chtimes("list", time.Time{}, info.ModTime()); err != nil {
					t.Fatal(err)
				}
			},
			"removed": func() { remove(t, "list") },
			"linked": func() {
				write(t, "other", "b.example\n")
				remove(t, "list")
				if err := os.Symlink("other", "list"); err != nil {
					t.Fatal(err)
				}
			},
		} {
			if !w.untouched() {
				t.Fatalf("%s: touched before", name)
			}
			change()
			if w.untouched() {
				t.Errorf("%s: not noticed", name)
			}
			remove(t, "list")
			replace(t, "list", "a.example\n")
			time.Sleep(w.coarse + 50*time.Millisecond)
			settles(t, w.Store)
		}
		w.want("all is as before", allowA, false, 0)
	})
	t.Run("finds a replaced file before the next tick", func(t *testing.T) {
		w := watch(t, time.Hour, fileA)
		w.Start()
		for i := range 5 { // one after the other, none too early
			name := fmt.Sprintf("v%d.example", i)
			replace(t, "policy", doc(name))
			settles(t, w.Store)
			w.want("settled", "allow "+name, false, 0)
		}
	})
	t.Run("waits for a change in place", func(t *testing.T) {
		w := watch(t, 20*time.Millisecond, fileA)
		w.Start()
		write(t, "policy", doc("b.example"))
		settles(t, w.Store)
		w.want("settled", allowB, false, 0)
	})
	t.Run("ends with the context", func(t *testing.T) {
		w := watch(t, time.Hour, fileA)
		w.Start()
		write(t, "policy", doc("b.example"))
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			w.Settle(ctx)
		}()
		waitFor(t, "the change is noticed", func() bool {
			w.Store.mu.Lock()
			defer w.Store.mu.Unlock()
			return w.settling
		})
		select {
		case <-returned:
			t.Error("returned before the change has settled")
		default:
		}
		cancel()
		<-returned
		w.want("cancelled", allowA, false, 0)
	})
	t.Run("ends with the store", func(t *testing.T) {
		w := watch(t, time.Hour, fileA)
		w.Start()
		write(t, "policy", doc("b.example"))
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			w.Settle(context.Background())
		}()
		waitFor(t, "the change is noticed", func() bool {
			w.Store.mu.Lock()
			defer w.Store.mu.Unlock()
			return w.settling
		})
		w.Stop()
		<-returned
	})
	t.Run("does not wait for a bad document", func(t *testing.T) {
		for _, text := range []string{"bad\n", "", "policy p {\n}", "policy p {\n allow_list none\n}\n"} {
			w := watch(t, time.Hour, fileA)
			w.Start()
			replace(t, "policy", text)
			for range 3 {
				settles(t, w.Store)
				w.want("settled", allowA, true, 1)
			}
			replace(t, "policy", doc("b.example"))
			settles(t, w.Store)
			w.want("fixed", allowB, false, 1)
			remove(t, "policy")
			for range 3 {
				settles(t, w.Store)
				w.want("removed", allowB, true, 2)
			}
		}
	})
	t.Run("cannot speed up a change in place", func(t *testing.T) {
		w := watch(t, time.Hour, fileA)
		w.Start()
		write(t, "policy", doc("b.example"))
		askFor(t, w.Store, 100*time.Millisecond)
		w.want("asked for long", allowA, false, 0)
	})
	t.Run("cannot have the files read all the time", func(t *testing.T) {
		w := watch(t, time.Hour, fileA)
		w.Start()
		const long = 300 * time.Millisecond
		askFor(t, w.Store, long)
		w.Stop()
		if most := uint(long/askPause) + 2; w.begun > most {
			t.Errorf("%d polls in %s, want %d at most", w.begun, long, most)
		}
	})
	// DNS has told of the name, so the gateway must know it too, however long ago it has polled.
	t.Run("reload-015", func(t *testing.T) {
		dns := watch(t, 20*time.Millisecond, fileA)
		gateway, err := NewStore(Source{File: "policy"}, Options{Poll: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		dns.Start()
		gateway.Start()
		defer gateway.Stop()
		for i := range 5 {
			want := fmt.Sprintf("allow v%d.example", i)
			settles(t, gateway) // a poll that is fresh, and out of date at once
			replace(t, "policy", doc(strings.TrimPrefix(want, "allow ")))
			waitFor(t, want, func() bool { return texts(dns.Set()) == want })
			settles(t, gateway)
			if got := texts(gateway.Set()); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
	})
}

func TestStoreWatches(t *testing.T) {
	t.Run("reload-013", func(t *testing.T) {
		version := func(i int) string { return doc("always.example", fmt.Sprintf("v%d.example", i)) }
		w := watch(t, 10*time.Millisecond, map[string]string{"policy": version(0)})
		w.Start()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var lookups atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				always, latest := mustName(t, "always.example"), 0
				for ctx.Err() == nil {
					set := w.Set()
					sel := set.Select(netip.MustParseAddr("192.0.2.1"), "")
					if d := sel.Lookup(always, 443); d.Verdict != Allow {
						t.Errorf("always.example: got %s", outcome(d))
						return
					}
					var v int
					if _, err := fmt.Sscanf(texts(set), "allow always.example; allow v%d.example", &v); err != nil || v < latest {
						t.Errorf("version %d after %d: %v", v, latest, err)
						return
					}
					latest = v
					lookups.Add(1)
					time.Sleep(time.Millisecond) // 1k a second each
				}
			})
		}
		const changes = 100
		for i := 1; i <= changes; i++ {
			replace(t, "policy", version(i))
			before := lookups.Load()
			waitFor(t, "lookups go on", func() bool { return lookups.Load() > before+4 })
		}
		want := fmt.Sprintf("allow always.example; allow v%d.example", changes)
		waitFor(t, "the last version wins", func() bool { return texts(w.Set()) == want })
		cancel()
		wg.Wait()
		w.want("at the end", want, false, 0)
	})
	// Nobody who looks up waits for who loads.
	t.Run("reload-014", func(t *testing.T) {
		writeFiles(t, fileA)
		blocked, free := make(chan struct{}), make(chan struct{})
		st, err := NewStore(Source{File: "policy"}, Options{Poll: 10 * time.Millisecond, OnChange: func(*Set) {
			close(blocked)
			<-free
		}})
		if err != nil {
			t.Fatal(err)
		}
		st.Start()
		defer st.Stop()
		defer close(free)
		old := st.Set()
		replace(t, "policy", doc("b.example"))
		<-blocked
		for set, want := range map[*Set]string{old: "not_allowed", st.Set(): "allow"} { // the old one stays as it was
			if d := set.Select(netip.MustParseAddr("192.0.2.1"), "").Lookup(mustName(t, "b.example"), 443); verdict(d) != want {
				t.Errorf("got %s, want %s", verdict(d), want)
			}
		}
		if st.Stale() {
			t.Error("stale")
		}
	})
	t.Run("reload-017", func(t *testing.T) {
		writeFiles(t, fileA)
		descriptors := func() int {
			fds, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			return len(fds)
		}
		goroutines, fds := runtime.NumGoroutine(), descriptors()
		for range 50 {
			st, err := NewStore(Source{File: "policy"}, Options{Poll: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			st.Start()
			st.Start() // is no second watcher
			settles(t, st)
			st.Stop()
			st.Stop()
		}
		waitFor(t, "as many goroutines as before", func() bool { return runtime.NumGoroutine() <= goroutines })
		if n := descriptors(); n > fds {
			t.Errorf("%d descriptors, %d before", n, fds)
		}
	})
	t.Run("reload-022", func(t *testing.T) {
		w := watch(t, 10*time.Millisecond, fileA)
		start := time.Now()
		w.Start()
		waitFor(t, "ten polls", func() bool {
			w.Store.mu.Lock()
			defer w.Store.mu.Unlock()
			return w.ended >= 10
		})
		fds, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); strings.Contains(to, "inotify") {
				t.Errorf("%s is %s", fd, to)
			}
		}
		w.Stop()
		if most := uint(time.Since(start)/w.opts.Poll) + 1; w.begun > most {
			t.Errorf("%d polls, want %d at most", w.begun, most)
		}
	})
	t.Run("reload-023", func(t *testing.T) {
		w := watch(t, time.Millisecond, map[string]string{"policy": listed, "list": strings.Repeat("a.example\n", 150_000)})
		set := w.Set()
		w.ticks(50)
		if n, errs := w.told(); n != 0 || len(errs) != 0 || w.Set() != set {
			t.Errorf("%d changes told, errors %q", n, errs)
		}
		// Of a large list that nobody touched the times suffice, most of the time.
		long := time.Now().Add(-time.Hour)
		if err := os.Chtimes("list", long, long); err != nil {
			t.Fatal(err)
		}
		w.ticks(fullRead)
		write(t, "list", strings.Repeat("b.example\n", 150_000))
		if err := os.Chtimes("list", long, long); err != nil {
			t.Fatal(err)
		}
		if !w.unchanged(false) {
			t.Error("a large list is read at each poll")
		}
		if w.unchanged(true) {
			t.Error("a change that the times do not show is never found")
		}
	})
	t.Run("starts again", func(t *testing.T) {
		w := watch(t, time.Hour, fileA)
		w.Start()
		w.Stop()
		replace(t, "policy", doc("b.example"))
		settles(t, w.Store)
		w.want("stopped", allowA, false, 0)
		w.Start()
		settles(t, w.Store)
		w.want("started", allowB, false, 0)
	})
	t.Run("all at once", func(t *testing.T) { // for the race detector
		w := watch(t, time.Millisecond, fileA)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		for _, f := range []func(){w.Start, w.Stop, func() { w.Settle(ctx) }, func() { w.Stale() }, func() { w.Set().Hash() }} {
			wg.Go(func() {
				for ctx.Err() == nil {
					f()
				}
			})
		}
		for i := range 10 {
			replace(t, "policy", doc(fmt.Sprintf("v%d.example", i)))
		}
		wg.Wait()
		w.Start()
		waitFor(t, "the last version wins", func() bool { return texts(w.Set()) == "allow v9.example" })
	})
}

// askFor has eight clients that are denied ask for a look at the files all the time.
func askFor(t *testing.T, st *Store, long time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				st.Settle(ctx)
			}
		})
	}
	wg.Wait()
}
