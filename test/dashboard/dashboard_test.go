package dashboard

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/sandboxallow/sandboxallow/test/need"
)

// What a sandbox may send as a server name to be shown to the operator.
var hostile = []struct{ name, sent, shown string }{
	{"script", `<script>document.title='pwned'</script>`, ""},
	{"image", `"><img src=x onerror="document.title='pwned'">`, ""},
	{"template", "{{.Cursor}}${document.title='pwned'}", ""},
	{"end of an element", "</td></table></template><h1 id=pwned>", ""},
	{"turned around", "moc.elpmaxe\u202egpj.example", `moc.elpmaxe\u202egpj.example`},
	{"control bytes", "a\x1b[31m\nb\x00.example", `a\x1b[31m\nb\x00.example`},
	{"not UTF-8", "\xff\xfe.example", `\xff\xfe.example`},
	{"looks like Latin", "ex\u0430mple.com", `ex\u0430mple.com`},
	{"long", strings.Repeat("x", 255), ""},
	{"too long", strings.Repeat("y", 300), strings.Repeat("y", 255)},
	{"long labels", strings.Repeat("label<b>.", 28) + "end", ""},
}

func TestHostileNames(t *testing.T) {
	need.All(t, need.Program("chromium"))
	g := startGateway(t)
	b := newTab(t)
	for _, tc := range hostile {
		g.ask(t, "127.0.0.1", tc.sent)
	}
	check := func(where string) {
		t.Helper()
		shown := b.texts("#clients tr td.name bdi")
		listed := b.texts("#decisions tr td.name bdi")
		for _, tc := range hostile {
			want := tc.shown
			if want == "" {
				want = tc.sent
			}
			if !slices.Contains(shown, want) || !slices.Contains(listed, want) {
				t.Errorf("%s, %s: %q is missing in %q and %q", where, tc.name, want, shown, listed)
			}
		}
		for _, made := range []string{"main script", "main img", "#pwned", "bdi *"} {
			if n := eval[int](b, fmt.Sprintf("document.querySelectorAll(%q).length", made)); n != 0 {
				t.Errorf("%s: %d elements are %s", where, n, made)
			}
		}
		if title := eval[string](b, "document.title"); title != "sandboxallow" {
			t.Errorf("%s: the title is %q", where, title)
		}
	}
	b.open(g.page) // by the template
	check("page")
	b.do(chromedp.Navigate("about:blank"))
	g.stop(t)
	g.start(t)
	b.open(g.page)
	for _, tc := range hostile { // by an event
		g.ask(t, "127.0.0.1", tc.sent)
	}
	b.wait(fmt.Sprintf(`document.querySelectorAll("#decisions tr").length === %d`, len(hostile)))
	check("event")
	b.quiet()

	b.viewport(360, 740, true)
	if w := eval[int](b, "document.documentElement.scrollWidth"); w > 360 {
		t.Errorf("the page is %d pixels wide on a phone that has 360", w)
	}
	b.shoot("hostile-phone")
}

// play has the clients of a gateway do what clients do.
func play(t *testing.T, g *gateway) {
	t.Helper()
	for range 3 {
		for _, name := range []string{"registry.yarnpkg.com", "telemetry.example.org"} {
			g.ask(t, "127.0.0.1", name)
		}
	}
	g.ask(t, "127.0.0.1", "gist.github.com")
	g.ask(t, "127.0.0.1", "moc.elpmaxe\u202egpj.example")
	g.connect(t, "127.0.0.1", "db.internal.example:5432")
	g.connect(t, "127.0.0.7", "169.254.169.254:80")
	g.connect(t, "127.0.0.7", "pypi.org:443")
	g.connect(t, "127.0.0.7", "files.pythonhosted.org:443")
	g.ask(t, "127.0.0.7", "a-rather-long-name-of-a-bucket-that-somebody-made.s3.eu-central-1.amazonaws.example")
	g.tunnel(t, "127.0.0.9", "huggingface.example", strings.Repeat("tokens ", 40000))
	g.tunnel(t, "127.0.0.1", "api.openai.com", strings.Repeat("tokens ", 2000))
	g.tunnel(t, "127.0.0.1", "api.anthropic.com", "hello")
}

func TestPage(t *testing.T) {
	need.All(t, need.Program("chromium"))
	g := startGateway(t)
	play(t, g)
	b := newTab(t)
	b.open(g.page)
	b.quiet()

	if got := b.texts("#clients summary > b"); !slices.Equal(got, []string{"127.0.0.1", "127.0.0.9", "127.0.0.7"}) {
		t.Errorf("clients are %q, want the latest first", got)
	}
	row := func(client, name string) string {
		t.Helper()
		return eval[string](b, fmt.Sprintf(`[...document.querySelectorAll("details[data-key='%s'] tbody tr")]
			.filter((row) => row.querySelector("bdi").textContent === %q).map((row) =>
			[...row.querySelectorAll("td")].filter((td) => !td.matches(".last")).map((td) => td.textContent.trim().replace(/\s+/g, " ")).join(" | ")).join()`, client, name))
	}
	for _, tc := range []struct{ client, name, want string }{
		{"127.0.0.1", "registry.yarnpkg.com", "registry.yarnpkg.com443 | not_allowed | 3 | allow registry.yarnpkg.com Copy"},
		{"127.0.0.1", "gist.github.com", `gist.github.com443 | denied | 1 | narrow or remove "deny gist.github.com" at policy:5 Copy`},
		{"127.0.0.1", "db.internal.example", "db.internal.example5432 | not_allowed | 1 | allow db.internal.example:5432 Copy"},
		{"127.0.0.7", "169.254.169.254:80", "169.254.169.254:8080 | bad_name | 1 | Copy"},
	} {
		if got := row(tc.client, tc.name); got != tc.want {
			t.Errorf("%s: got  %s\nwant %s", tc.name, got, tc.want)
		}
	}
	if got := row("127.0.0.9", "huggingface.example"); !strings.Contains(got, "| not_allowed | 1 | allow huggingface.example:") {
		t.Errorf("what would be denied is %q", got)
	}
	if got := strings.Join(b.texts("#policies td"), " "); got != fmt.Sprintf("default strict %s 80 443 %s all others research learn 0 80 443 %s 127.0.0.9 172.30.0.64/26",
		b.texts("#policies td.number")[0], port(b), port(b)) {
		t.Errorf("policies are %s", got)
	}
	if got := b.texts("#hash")[0]; len(got) != 64 {
		t.Errorf("hash is %q", got)
	}
	open := b.texts("#tunnels tr")
	if len(open) != 3 || !strings.Contains(open[0], "api.anthropic.com") || !strings.Contains(open[2], "huggingface.example") {
		t.Errorf("tunnels are %q, want the latest first", open)
	}
	if got := b.texts("#tunnels td.out")[2]; got != "282 kB" { // 280000 octets and a ClientHello
		t.Errorf("the echo of 280 kB counts as %s", got)
	}

	b.shoot("wide-light")
	b.checkContrast("light")
	b.scheme("dark")
	b.shoot("wide-dark")
	b.checkContrast("dark")
	if got := eval[string](b, `getComputedStyle(document.body).backgroundColor`); !dark(t, got) {
		t.Errorf("the ground is %s for who prefers the dark", got)
	}
	b.viewport(360, 740, true)
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		if w := eval[int](b, "document.documentElement.scrollWidth"); w > 360 {
			t.Errorf("the page is %d pixels wide on a phone that has 360", w)
		}
		b.shootScreen("phone-" + scheme)
	}
	b.do(chromedp.ScrollIntoView(chromedp.CSS("#decided")))
	b.shootScreen("phone-decisions")
	eval[any](b, "window.scrollTo(0, 0)")
	b.viewport(760, 900, false)
	if w := eval[int](b, "document.documentElement.scrollWidth"); w > 760 {
		t.Errorf("the page is %d pixels wide in a window of 760", w)
	}
	b.shoot("tablet-dark")
	b.quiet()
}

// port returns the port of the upstream, which the policies name too.
func port(b tab) string {
	_, port, _ := strings.Cut(b.texts("#tunnels .upstream")[0], ":")
	return port
}

func dark(t *testing.T, color string) bool {
	t.Helper()
	var r, g, b int
	if _, err := fmt.Sscanf(color, "rgb(%d, %d, %d)", &r, &g, &b); err != nil {
		t.Fatalf("colour %q: %v", color, err)
	}
	return r+g+b < 3*64
}

// checkContrast wants text to stand out from its ground by 4.5 to 1 at least (WCAG 2.2, 1.4.3).
func (b tab) checkContrast(scheme string) {
	b.t.Helper()
	weak := eval[[]string](b, `(() => {
		const probe = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
		const rgba = (color) => {
			probe.clearRect(0, 0, 1, 1);
			probe.fillStyle = color;
			probe.fillRect(0, 0, 1, 1);
			return [...probe.getImageData(0, 0, 1, 1).data];
		};
		const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
			.reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
		const ground = (el) => {
			for (; el; el = el.parentElement) {
				const c = rgba(getComputedStyle(el).backgroundColor);
				if (c[3] === 255) return c;
			}
			return [255, 255, 255];
		};
		const weak = [];
		for (const el of document.querySelectorAll("body *")) {
			const own = [...el.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
			if (!own || !el.checkVisibility()) continue;
			const a = light(rgba(getComputedStyle(el).color)), b = light(ground(el));
			const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
			if (ratio < 4.5) weak.push(el.localName + "." + el.className + " " + el.textContent.trim().slice(0, 30) + " " + ratio.toFixed(2));
		}
		return weak;
	})()`)
	for _, w := range weak {
		b.t.Errorf("%s: hard to read: %s", scheme, w)
	}
}

func TestLive(t *testing.T) {
	need.All(t, need.Program("chromium"))
	g := startGateway(t)
	b := newTab(t)
	b.open(g.page)
	if got := b.texts("#denied > .empty"); len(got) != 1 || !eval[bool](b, `document.querySelector("#denied > .empty").checkVisibility()`) {
		t.Errorf("without a client the page says %q", got)
	}
	count := func(name string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#clients tr")].find((row) => row.querySelector("bdi")?.textContent === %q)?.querySelector(".count").textContent`, name)
	}

	t.Run("a new name", func(t *testing.T) {
		b := b.in(t)
		g.ask(t, "127.0.0.1", "new.example.org")
		b.wait(count("new.example.org") + ` === "1"`)
		b.wait(`document.getElementById("said").textContent === "Denied: 127.0.0.1 new.example.org"`)
		b.wait(`document.querySelector("#totals [data-field=denied]").textContent === "1"`)
		g.ask(t, "127.0.0.1", "new.example.org")
		b.wait(count("new.example.org") + ` === "2"`)
		if n := len(b.texts("#decisions tr")); n != 2 {
			t.Errorf("%d decisions are listed, want 2", n)
		}
	})
	t.Run("a tunnel", func(t *testing.T) {
		b := b.in(t)
		c := g.tunnel(t, "127.0.0.1", "api.openai.com", "hello")
		b.wait(`document.querySelector("#tunnels bdi")?.textContent === "api.openai.com"`)
		more := strings.Repeat("x", 100_000)
		go io.WriteString(c, more)
		if _, err := io.ReadFull(c, make([]byte, len(more))); err != nil {
			t.Fatal(err)
		}
		b.wait(`document.querySelector("#tunnels td.in")?.textContent.endsWith("kB")`)
		c.Close()
		b.wait(`document.querySelectorAll("#tunnels tr").length === 0`)
		b.wait(`document.querySelector("#totals [data-field=in]").textContent.endsWith("kB")`)
	})
	t.Run("a change of the policy", func(t *testing.T) {
		b := b.in(t)
		hash := b.texts("#hash")[0]
		open := g.tunnel(t, "127.0.0.1", "api.openai.com", "hello")
		defer open.Close()
		g.write(t, "policy default {\n\tallow new.example.org\n}\n")
		b.wait(fmt.Sprintf(`document.getElementById("hash").textContent !== %q`, hash))
		b.wait(`document.querySelector("#decisions .verdict").textContent === "closed: not_allowed"`)
		g.ask(t, "127.0.0.1", "other.example.org")
		b.wait(count("other.example.org") + ` === "1"`)
		// What was denied before is judged anew.
		b.wait(`document.querySelector("[data-key='new.example.org:443'] .remedy code").textContent === "allowed by now"`)
	})
	t.Run("a policy that is none", func(t *testing.T) {
		b := b.in(t)
		if eval[bool](b, `document.getElementById("stale").checkVisibility()`) {
			t.Error("a good policy is said to be none")
		}
		g.write(t, "policy default {\n\talow x\n}\n")
		b.wait(`document.getElementById("stale").checkVisibility()`)
		b.shoot("stale")
		g.write(t, "policy default {\n\tallow new.example.org\n}\n")
		b.wait(`!document.getElementById("stale").checkVisibility()`)
	})
	t.Run("a pause", func(t *testing.T) {
		b := b.in(t)
		b.do(chromedp.Click(chromedp.CSS("#pause")))
		b.wait(`document.getElementById("status").textContent === "Paused"`)
		g.ask(t, "127.0.0.1", "paused.example.org")
		time.Sleep(2500 * time.Millisecond) // two events would have come
		if got := b.texts("#clients bdi"); slices.Contains(got, "paused.example.org") {
			t.Errorf("a paused page has changed: %q", got)
		}
		b.do(chromedp.Click(chromedp.CSS("#pause")))
		b.wait(count("paused.example.org") + ` === "1"`)
		b.wait(`document.getElementById("status").textContent === "Live"`)
	})
	t.Run("the filter", func(t *testing.T) {
		b := b.in(t)
		shown := func() int {
			return eval[int](b, `[...document.querySelectorAll("#decisions tr")].filter((row) => row.checkVisibility()).length`)
		}
		all := shown()
		b.do(chromedp.Click(chromedp.CSS("#only-denied")))
		if n := shown(); n == 0 || n >= all {
			t.Errorf("%d of %d are shown without the allowed", n, all)
		}
		b.do(chromedp.SendKeys(chromedp.CSS("#with"), "PAUSED.example"))
		if n := shown(); n != 1 {
			t.Errorf("%d are shown with a name, want 1", n)
		}
		g.ask(t, "127.0.0.1", "unwanted.example.org")
		b.wait(count("unwanted.example.org") + ` === "1"`)
		if n := shown(); n != 1 {
			t.Errorf("%d are shown after a new one, want 1", n)
		}
	})
	b.quiet()
	t.Run("another process", func(t *testing.T) {
		b := b.in(t)
		g.stop(t)
		b.wait(`document.getElementById("status").textContent.startsWith("Connection lost")`)
		g.start(t)
		b.wait(`document.getElementById("status").textContent === "Live" && document.querySelectorAll("#clients bdi").length === 0`)
		g.ask(t, "127.0.0.1", "after.example.org")
		b.wait(count("after.example.org") + ` === "1"`)
	})
}

func TestCopy(t *testing.T) {
	need.All(t, need.Program("chromium"))
	g := startGateway(t)
	g.ask(t, "127.0.0.1", "one.example.org")
	g.connect(t, "127.0.0.1", "one.example.org:80")
	g.ask(t, "127.0.0.1", "gist.github.com")
	g.connect(t, "127.0.0.1", "two.example.org:5432")
	b := newTab(t)
	b.allowClipboard()
	b.open(g.page)
	clipboard := func(b tab) string { return eval[string](b, "navigator.clipboard.readText()") }

	t.Run("a line", func(t *testing.T) {
		b := b.in(t)
		b.do(chromedp.Click(chromedp.CSS("[data-key='two.example.org:5432'] .copy")))
		b.wait(`document.getElementById("said").textContent === "Copied: allow two.example.org:5432"`)
		if got := clipboard(b); got != "allow two.example.org:5432" {
			t.Errorf("copied %q", got)
		}
	})
	t.Run("ops-029", func(t *testing.T) { // all that a client needs, to be added in one go
		b := b.in(t)
		b.do(chromedp.Click(chromedp.CSS(".copy-all")))
		b.wait(`document.getElementById("said").textContent.startsWith("Copied: allow two.example.org:5432\nallow one")`)
		if got, want := clipboard(b), "allow two.example.org:5432\nallow one.example.org"; got != want {
			t.Errorf("copied %q, want %q", got, want)
		}
	})
	t.Run("nothing to copy", func(t *testing.T) {
		b := b.in(t)
		if eval[bool](b, `document.querySelector("[data-key='gist.github.com:443'] .copy").checkVisibility()`) {
			t.Error("what is no line of a policy has a button")
		}
	})
	t.Run("by keyboard", func(t *testing.T) {
		b := b.in(t)
		b.do(chromedp.Navigate("about:blank"))
		b.open(g.page)
		var order []string
		for range 9 {
			b.do(chromedp.KeyEvent(kb.Tab))
			order = append(order, eval[string](b, `(document.activeElement.id || document.activeElement.className || document.activeElement.localName) +
				(getComputedStyle(document.activeElement).outlineStyle === "solid" || document.activeElement.matches(".skip") ? "" : " without an outline")`))
		}
		want := []string{"skip", "pause", "summary", "copy live", "copy live", "copy live", "copy-all", "only-denied", "with"}
		if !slices.Equal(order, want) {
			t.Fatalf("Tab leads to  %q\nwant %q", order, want)
		}
		b.do(chromedp.Focus(chromedp.CSS("[data-key='one.example.org:443'] .copy")), chromedp.KeyEvent(kb.Enter))
		b.wait(`document.getElementById("said").textContent === "Copied: allow one.example.org"`)
		b.do(chromedp.Focus(chromedp.CSS("#pause")), chromedp.KeyEvent(" "))
		b.wait(`document.getElementById("status").textContent === "Paused"`)
		b.do(chromedp.Focus(chromedp.CSS("summary")), chromedp.KeyEvent(kb.Enter))
		b.wait(`!document.querySelector("details").open`)
	})
	t.Run("every control has a name", func(t *testing.T) {
		b := b.in(t)
		if n := eval[int](b, `[...document.querySelectorAll("button, input, summary, section, table")].filter((el) =>
			!(el.textContent.trim() || el.labels?.[0]?.textContent.trim() || el.getAttribute("aria-label"))).length`); n != 0 {
			t.Errorf("%d have none", n)
		}
	})
	b.quiet()
}

func TestWithoutScript(t *testing.T) {
	need.All(t, need.Program("chromium"))
	g := startGateway(t)
	play(t, g)
	b := newTab(t)
	b.scripts(false)
	b.do(chromedp.Navigate(g.page))
	b.shoot("without-script")
	b.scripts(true) // so that the test can look; the page has been loaded without
	if got := b.texts("#clients bdi"); !slices.Contains(got, "registry.yarnpkg.com") {
		t.Errorf("names are %q", got)
	}
	if got := b.texts("#status")[0]; !strings.HasSuffix(got, "UTC. Reload for what is new.") {
		t.Errorf("status is %q", got)
	}
	if n := eval[int](b, `[...document.querySelectorAll("button, input")].filter((el) => el.checkVisibility()).length`); n != 0 {
		t.Errorf("%d controls are shown that do nothing", n)
	}
}

// A page of another site, whose name leads here by now, must not read the dashboard; nor one that frames it.
func TestOtherSites(t *testing.T) {
	need.All(t, need.Program("chromium"))
	g := startGateway(t)
	g.ask(t, "127.0.0.1", "secret.example.org")
	req, err := http.NewRequest(http.MethodGet, g.page, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "rebound.example"
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusForbidden || strings.Contains(string(body), "secret") {
		t.Errorf("got %s %s", resp.Status, body)
	}

	b := newTab(t)
	other := serveOther(t, fmt.Sprintf(`<!DOCTYPE html><title>other</title><iframe src=%q></iframe><img src="%sicon.svg">`, g.page, g.page))
	b.do(chromedp.Navigate(other))
	if got := eval[string](b, fmt.Sprintf(`fetch(%q).then(() => "read", () => "refused")`, g.page)); got != "refused" {
		t.Errorf("fetch is %s", got)
	}
	got := eval[string](b, fmt.Sprintf(`new Promise((done) => {
		const events = new EventSource(%q + "events");
		events.onopen = events.onmessage = () => done("read");
		events.onerror = () => done("refused");
	})`, g.page))
	if got != "refused" {
		t.Errorf("events are %s", got)
	}
	if got := eval[string](b, `(() => { try { return frames[0].document.body.textContent } catch (e) { return "refused" } })()`); got != "refused" {
		t.Errorf("the frame is %q", got)
	}
	if n := eval[int](b, `document.querySelector("img").naturalWidth`); n != 0 {
		t.Errorf("the image is %d wide", n)
	}
}

// serveOther serves a page of another site.
func serveOther(t *testing.T, text string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, text)
	})
	return serve(t, mux)
}
