package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// missing is what a machine without Chromium is told.
const missing = "the browser tests need Chromium, which is not installed: apt-get install chromium (as .ci/run does)"

var chromium string

func TestMain(m *testing.M) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			chromium = path
			break
		}
	}
	if chromium == "" {
		fmt.Fprintln(os.Stderr, missing)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// tab is an open page with what it complained about.
type tab struct {
	t   *testing.T
	ctx context.Context

	// started: the browser runs; its first action must not be bounded.
	started bool

	mu         sync.Mutex
	complaints []string
	requests   []string
}

// open starts a browser that lives until the test ends.
func open(t *testing.T) *tab {
	t.Helper()
	b := &tab{t: t}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("hide-scrollbars", true))
	ctx, stopProcess := chromedp.NewExecAllocator(t.Context(), options...)
	ctx, stopTab := chromedp.NewContext(ctx, chromedp.WithListener(b.listen))
	b.ctx = ctx
	t.Cleanup(func() { stopTab(); stopProcess() })
	b.do(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, network.Enable, network.EnableParams{})
		return chromedp.Void{}, err
	})
	return b
}

func (b *tab) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		b.complaints = append(b.complaints, fmt.Sprintf("console.%s: %v", e.Type, e.Args))
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, fmt.Sprint(e.ExceptionDetails))
	case *log.EventEntryAdded:
		b.complaints = append(b.complaints, fmt.Sprintf("%s: %s", e.Entry.Level, e.Entry.Text))
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

// actionTimeout bounds one action; a page that never gets ready must not hang the tests.
const actionTimeout = time.Minute

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	for _, a := range actions {
		ask(b, a)
	}
}

// ask runs an action and returns its value.
func ask[T any](b *tab, a chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := b.ctx, context.CancelFunc(func() {})
	if b.started {
		ctx, cancel = context.WithTimeout(b.ctx, actionTimeout)
	}
	defer cancel()
	b.started = true
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// show opens a page and waits until its script has drawn.
func (b *tab) show(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url), chromedp.WaitReady(chromedp.CSS("html[data-ready]")))
}

// quiet fails the test when the page complained.
func (b *tab) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.complaints {
		b.t.Errorf("the page complained: %s", c)
	}
}

// shoot leaves a screenshot of the whole page when somebody wants to look at it.
func (b *tab) shoot(name string) {
	dir := os.Getenv("KVGATE_SHOTS")
	if dir == "" {
		return
	}
	png := ask(b, chromedp.FullScreenshot(100))
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name), png, 0o644)); err != nil {
		b.t.Fatal(err)
	}
}
