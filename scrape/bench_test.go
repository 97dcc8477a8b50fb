package scrape

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"kvgate/ledger"
)

// bigPage is fixture 01 with histograms up to about 120 KB, as an engine with TP 2 prints.
func bigPage(b *testing.B) []byte {
	b.Helper()
	var s strings.Builder
	s.Write(fixture(b, "01_tp2_qwen3coder_session_radix_20260902.txt"))
	for i := 0; s.Len() < 120_000; i++ {
		if i%40 == 0 {
			fmt.Fprintf(&s, "# HELP sglang:h%d_seconds Histogram.\n# TYPE sglang:h%d_seconds histogram\n", i/40, i/40)
		}
		fmt.Fprintf(&s, "sglang:h%d_seconds_bucket{engine_type=\"unified\",le=\"%d.0\",model_name=\"Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8\",tp_rank=\"0\"} %d.0\n", i/40, i, i)
	}
	return []byte(s.String())
}

func BenchmarkParse(b *testing.B) {
	page := bigPage(b)
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	for b.Loop() {
		if s, err := Read(page, self, Info{}); err != nil || s.Capacity != 2340338 {
			b.Fatal(s, err)
		}
	}
}

// BenchmarkRound256 is one round over 256 engines of 120 KB each, over loopback; the servers' work is
// in the figure.
func BenchmarkRound256(b *testing.B) {
	page := bigPage(b)
	s := ledger.DefaultSettings()
	for range 256 {
		e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(page) }))
		defer e.Close()
		s.EngineURLs = append(s.EngineURLs, e.URL)
	}
	tr := NewTransport()
	defer tr.CloseIdleConnections()
	w := newWorld()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	p := newPoller("pool", network{NewDiscoverer(tr, Keys{}), NewEngines(tr, Keys{})}, w, &slots{semaphore.NewWeighted(64), 250 * time.Millisecond}, log, s)
	ctx, cancel := context.WithCancel(b.Context())
	p.adopt(s)
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		p.begin(ctx)
		p.await(ctx, start.Add(time.Minute), p.complete)
		p.close(ctx, start)
	}
	cancel()
	p.workers.Wait()
	if st := p.Status(); st.Healthy != 256 {
		b.Fatalf("status %+v", st)
	}
}
