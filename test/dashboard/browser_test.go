package dashboard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// tab is a page in Chromium, and what its console has.
type tab struct {
	t       *testing.T
	ctx     context.Context
	console *console
}

// console has messages, exceptions, and what the browser has logged: violations of the CSP, for one.
type console struct {
	mu   sync.Mutex
	said []string
}

func (c *console) add(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, text)
}

// in returns the tab for a part of the test.
func (b tab) in(t *testing.T) tab {
	b.t = t
	return b
}

// newTab starts a Chromium that resolves no name but localhost, for the time of a test.
func newTab(t *testing.T) tab {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath("chromium"),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1"),
		chromedp.Flag("no-proxy-server", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.WindowSize(1280, 900),
	)
	ctx, cancel = chromedp.NewExecAllocator(ctx, opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := tab{t, ctx, new(console)}
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		t.Fatalf("chromium: %v", err)
	}
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			b.console.add(m.String())
		}
	}()
	return b
}

func (b tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// open loads a page, and waits until it is live.
func (b tab) open(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url))
	b.wait(`document.getElementById("status").textContent === "Live"`)
}

// wait waits until an expression is true, over reloads of the page too.
func (b tab) wait(expression string) {
	b.t.Helper()
	var is bool
	var err error
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if is, err = chromedp.Run(b.ctx, chromedp.Evaluate[bool](expression)); is {
			return
		}
	}
	b.t.Fatalf("%s does not become true: %v", expression, err)
}

// eval returns the value of an expression.
func eval[T any](b tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// texts returns the texts of the elements that a selector finds.
func (b tab) texts(selector string) []string {
	b.t.Helper()
	return eval[[]string](b, fmt.Sprintf(`[...document.querySelectorAll(%q)].map((el) => el.textContent)`, selector))
}

// quiet fails the test if the console has anything.
func (b tab) quiet() {
	b.t.Helper()
	b.console.mu.Lock()
	defer b.console.mu.Unlock()
	for _, m := range b.console.said {
		b.t.Errorf("on the console: %s", m)
	}
	b.console.said = nil
}

// viewport sets the size of what is seen, of a phone or not.
func (b tab) viewport(width, height int64, phone bool) {
	b.t.Helper()
	var opts []chromedp.EmulateViewportOption
	if phone {
		opts = append(opts, chromedp.EmulateMobile, chromedp.EmulateTouch, chromedp.EmulateScale(2))
	}
	b.do(chromedp.EmulateViewport(width, height, opts...))
}

// scheme sets what the user prefers, light or dark.
func (b tab) scheme(name string) {
	b.t.Helper()
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features})
	if err != nil {
		b.t.Fatal(err)
	}
}

// scripts turns JavaScript on or off, for pages that are loaded from now on.
func (b tab) scripts(on bool) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on})
	if err != nil {
		b.t.Fatal(err)
	}
}

// allowClipboard lets pages read what they have copied.
func (b tab) allowClipboard() {
	b.t.Helper()
	for _, name := range []string{"clipboard-read", "clipboard-write"} {
		_, err := chromedp.CallBrowser(b.ctx, browser.SetPermission, browser.SetPermissionParams{
			Permission: &browser.PermissionDescriptor{Name: name}, Setting: browser.PermissionSettingGranted,
		})
		if err != nil {
			b.t.Fatalf("%s: %v", name, err)
		}
	}
}

// shoot takes a screenshot of the whole page.
func (b tab) shoot(name string) {
	b.t.Helper()
	b.keep(name, chromedp.FullScreenshot(100))
}

// shootScreen takes one of what is seen of it.
func (b tab) shootScreen(name string) {
	b.t.Helper()
	b.keep(name, chromedp.CaptureScreenshot())
}

func (b tab) keep(name string, take chromedp.Action[[]byte]) {
	b.t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "sandboxallow-screenshots")
	}
	png, err := chromedp.Run(b.ctx, take)
	path := filepath.Join(dir, name+".png")
	if err = errors.Join(err, os.MkdirAll(dir, 0o755), os.WriteFile(path, png, 0o644)); err != nil {
		b.t.Fatal(err)
	}
	b.t.Logf("screenshot: %s", path)
}
