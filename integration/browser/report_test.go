package browser

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"kvgate/integration/recording"
	"kvgate/ledger"
	"kvgate/rpc/report"
	"kvgate/rpc/story"
)

// writeReport writes a report to a file and returns its URL.
func writeReport(t *testing.T, r *recording.Recorder) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.html")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := report.Build(report.Input{
		Journal: story.Slice(r.Events), Pool: ledger.DefaultPool, Zone: time.UTC, Source: "a recorded night", Kept: "index 1, 2026-11-30 03:00:00.000", Made: "Made by a test.",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Write(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return "file://" + path
}

// charts are the ids of the charts on a report.
var charts = []string{"c-budget", "c-queue", "c-decisions", "c-pressure", "c-eviction"}

// drawn returns how many pixels of each chart are not blank, and how many colours it has.
const drawn = `Object.fromEntries([...document.querySelectorAll(".chart")].map((at) => {
  const c = at.querySelector("canvas");
  if (!c) return [at.id, [0, 0, 0]];
  const copy = Object.assign(document.createElement("canvas"), { width: c.width, height: c.height }).getContext("2d", { willReadFrequently: true });
  copy.drawImage(c, 0, 0);
  const d = copy.getImageData(0, 0, c.width, c.height).data;
  const colours = new Set();
  let n = 0;
  for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 0) { n++; colours.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); }
  return [at.id, [n, colours.size, c.getBoundingClientRect().width]];
}))`

func (b *tab) expectCharts() {
	b.t.Helper()
	got := ask(b, chromedp.Evaluate[map[string][]float64](drawn))
	for _, id := range charts {
		if c := got[id]; len(c) != 3 || c[0] < 2000 || c[1] < 3 {
			b.t.Errorf("chart %s is blank: pixels, colours, width: %v", id, c)
		}
	}
}

// expectNoOverflow: nothing makes the page wider than the window.
func (b *tab) expectNoOverflow() {
	b.t.Helper()
	wide := ask(b, chromedp.Evaluate[[]string](`[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".uplot") && !e.closest(".hidden")).slice(0, 5).map((e) => e.tagName + "." + e.className)`))
	if len(wide) > 0 {
		b.t.Errorf("wider than the window: %v", wide)
	}
}

// colours has the page see a colour scheme and a medium.
func colours(scheme, media string) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Media: media, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return chromedp.Void{}, err
	}
}

func TestReportIsDrawnInEveryForm(t *testing.T) {
	url := writeReport(t, recording.Night(1))
	b := open(t)
	b.do(chromedp.EmulateViewport(1280, 900))
	b.show(url)
	b.expectCharts()
	b.expectNoOverflow()
	b.shoot("report-light.png")
	b.do(colours("dark", ""))
	b.expectCharts()
	b.shoot("report-dark.png")
	b.do(colours("light", ""), chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	if !ask(b, chromedp.Poll[bool](`document.querySelector("#c-budget canvas").getBoundingClientRect().width < 390`)) {
		t.Error("the charts do not shrink with the window")
	}
	b.expectCharts()
	b.expectNoOverflow()
	b.shoot("report-narrow.png")
	b.quiet()
	for _, r := range b.requests {
		if r != url && !strings.HasPrefix(r, "data:") {
			t.Errorf("the report asked for %s", r)
		}
	}
}

func TestReportOnPaper(t *testing.T) {
	b := open(t)
	b.do(colours("dark", ""))
	b.show(writeReport(t, recording.Night(1)))
	// Charts wider than the paper have all of the page shrunk.
	for _, event := range []string{"beforeprint", "afterprint"} {
		ask(b, chromedp.Evaluate[bool](`dispatchEvent(new Event("`+event+`"))`))
		if w := ask(b, chromedp.Evaluate[int](`document.querySelector(".u-wrap").clientWidth`)); w <= 600 || w <= 680 != (event == "beforeprint") {
			t.Errorf("after %s charts are %d wide", event, w)
		}
	}
	b.do(colours("dark", "print"))
	if c := ask(b, chromedp.Evaluate[string](`getComputedStyle(document.documentElement).backgroundColor`)); c != "rgb(255, 255, 255)" {
		t.Errorf("paper is %s", c)
	}
	b.expectCharts()
	if n := ask(b, chromedp.Evaluate[int](`document.querySelectorAll("details.worst:not([open])").length`)); n > 0 {
		t.Errorf("%d explanations stay closed on paper", n)
	}
	b.do(colours("light", ""))
	b.print()
	b.quiet()
}

// print makes a PDF, as a person who prints does, and leaves it when somebody wants to look at it.
func (b *tab) print() {
	b.t.Helper()
	pdf := ask(b, chromedp.PrintToPDF(chromedp.PDFPaper(chromedp.PaperA4), chromedp.PDFPrintBackground(), chromedp.PDFPreferCSSPageSize()))
	if !bytes.HasPrefix(pdf, []byte("%PDF-")) || len(pdf) < 50_000 {
		b.t.Errorf("the PDF has %d bytes", len(pdf))
	}
	if dir := os.Getenv("KVGATE_SHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, "report.pdf"), pdf, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
}

// hostile is an id that would run in a page that does not escape.
const hostile = `</script><script>window.owned=1</script><img src=x onerror="window.owned=1">'"&{{.}}`

func TestHostileIdsStayText(t *testing.T) {
	r := recording.New(recording.NightStart)
	r.Set(0, ledger.Settings{ModelID: hostile, Headroom: 1}, "modelId", "headroom")
	e := recording.Engine("e", 100)
	r.Engines(0, e)
	acquire := func(at time.Duration, i int) {
		r.Acquire(at, ledger.Acquire{Ticket: fmt.Sprint(i, hostile), Session: hostile, Holder: hostile, Group: hostile, ReservationTokens: 60, MaxWait: -1})
	}
	acquire(time.Second, 1)
	acquire(2*time.Second, 2)
	acquire(3*time.Second, 3)
	r.Expire(5*time.Second, hostile)
	e.URL, e.Healthy, e.Error = "http://x/"+strings.ReplaceAll(hostile, " ", "+"), true, hostile
	r.Engines(6*time.Second, e)
	r.Do(7*time.Second, func(l *ledger.Ledger) { l.NewTerm(2, hostile) })
	r.Do(8*time.Second, func(l *ledger.Ledger) {
		l.Reconcile(ledger.DefaultPool, ledger.Round{Degrade: true, Reason: hostile})
	})
	b := open(t)
	b.show(writeReport(t, r))
	text := ask(b, chromedp.Text(chromedp.CSS("main")))
	if ask(b, chromedp.Evaluate[bool](`window.owned === 1`)) {
		t.Error("an id ran as code")
	}
	if n := strings.Count(text, hostile); n < 5 {
		t.Errorf("the ids are shown as they are %d times", n)
	}
	b.quiet()
	if slices.ContainsFunc(b.requests, func(r string) bool { return strings.HasSuffix(r, "/x") }) {
		t.Error("an id made the page load something")
	}
}

func TestAnEmptyReportSaysSo(t *testing.T) {
	b := open(t)
	b.show(writeReport(t, &recording.Recorder{}))
	text := ask(b, chromedp.Text(chromedp.CSS("main")))
	if !strings.Contains(text, "Nothing happened in this pool and window") || !strings.Contains(text, "Nobody waited") {
		t.Errorf("an empty report says %q", text)
	}
	b.quiet()
}
