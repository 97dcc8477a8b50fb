package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvgate/ledger"
)

// pools is a SettingsSource.
type pools struct {
	mu  sync.Mutex
	all map[string]ledger.Settings
	err error
}

func (p *pools) Pools(context.Context) (map[string]ledger.Settings, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all, p.err
}

func (p *pools) set(all map[string]ledger.Settings, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all, p.err = all, err
}

func static(urls ...string) ledger.Settings {
	s := ledger.DefaultSettings()
	s.EngineURLs = urls
	return s
}

func names(m *Manager) string {
	var all []string
	for _, s := range m.Status() {
		all = append(all, s.Pool)
	}
	return strings.Join(all, " ")
}

func TestManagerFollowsSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.engine[a], w.engine[b] = full(0.5), full(0.5)
		var logs logbook
		src := &pools{all: map[string]ledger.Settings{"x": static(a), "none": ledger.DefaultSettings()}}
		asked := make(chan string, 9)
		m := newManager(src, w, Options{
			Logger: slog.New(slog.NewTextHandler(&logs, nil)),
			Known:  func(_ context.Context, pool string) []ledger.Engine { asked <- pool; return nil },
		}, w)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		pass(500 * time.Millisecond)
		if got := names(m); got != "x" || len(asked) != 1 || <-asked != "x" {
			t.Errorf("pollers %q; want x alone, known engines asked for: the pool without router and engines has none", got)
		}
		src.set(map[string]ledger.Settings{"x": static(b), "y": static(a)}, nil)
		pass(4 * time.Second)
		if got := names(m); got != "x y" || w.scraped(b) == 0 {
			t.Errorf("pollers %q, %d scrapes of x's new engine", got, w.scraped(b))
		}
		src.set(nil, errors.New("no leader"))
		pass(4 * time.Second)
		if got := names(m); got != "x y" || strings.Count(logs.String(), "no leader") != 1 {
			t.Errorf("pollers %q while settings cannot be read; logged %d times", got, strings.Count(logs.String(), "no leader"))
		}
		src.set(map[string]ledger.Settings{"x": ledger.DefaultSettings()}, nil)
		pass(2 * time.Second)
		if got := names(m); got != "" {
			t.Errorf("pollers %q after their pools were deleted or lost their engines", got)
		}
		quarantine := static(a)
		quarantine.Quarantine = true
		src.set(map[string]ledger.Settings{"x": quarantine}, nil)
		before := w.scraped(a)
		pass(10 * time.Second)
		if got := names(m); got != "" || w.scraped(a) != before {
			t.Errorf("pollers %q, %d scrapes of a pool in quarantine", got, w.scraped(a)-before)
		}
		src.set(map[string]ledger.Settings{"x": static(a)}, nil)
		pass(2 * time.Second)
		src.set(map[string]ledger.Settings{"x": quarantine}, nil)
		pass(2 * time.Second)
		if got := names(m); got != "" {
			t.Errorf("pollers %q of a pool that went into quarantine", got)
		}
		src.set(map[string]ledger.Settings{"x": static(a)}, nil)
		pass(2 * time.Second)
		cancel()
		<-done
		if got := names(m); got != "" {
			t.Errorf("pollers %q after Run", got)
		}
	})
}

// collector is a Proposer that hands rounds to a test.
type collector chan ledger.Round

func (c collector) Reconcile(ctx context.Context, _ string, r ledger.Round) error {
	select {
	case c <- r:
	case <-ctx.Done():
	}
	return nil
}

// The whole way over HTTP: a router with ranks and a grpc worker, an engine with keys, one that hangs and
// one without the capacity gauge.
func TestOverHTTP(t *testing.T) {
	good := httptest.NewServer(wants("ek", string(fixture(t, "01_tp2_qwen3coder_session_radix_20260902.txt"))))
	defer good.Close()
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hanging.Close()
	old := answers(t, map[string]string{
		"/metrics":     string(fixture(t, "06_v0.5.1_qwen32b_issue13485.txt")),
		"/server_info": `{"max_total_num_tokens":500000}`,
	})
	router := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer rk" || r.URL.Path != "/list_workers" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = fmt.Fprintf(w, `{"urls":["%s@0","%s@1","%s","%s/","grpc://127.0.0.1:1"]}`, good.URL, good.URL, hanging.URL, old.URL)
	}))
	defer router.Close()

	s := ledger.DefaultSettings()
	s.RouterURL, s.PollInterval, s.PollTimeout = router.URL, 100*time.Millisecond, 300*time.Millisecond
	rounds := make(collector)
	m := NewManager(&pools{all: map[string]ledger.Settings{"p": s}}, rounds, Options{
		Keys: Keys{Router: "rk", Engine: "ek"}, Transport: transport(t), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	defer func() { cancel(); <-done }()

	// Which round first has all three verdicts depends on the machine's speed; that one must come.
	for r := range rounds {
		if len(r.Engines) != 3 {
			continue
		}
		g, h, o := row(t, r, good.URL), row(t, r, hanging.URL), row(t, r, old.URL)
		if !g.Healthy || !o.Healthy || h.Error != "no answer within 300ms" {
			continue
		}
		if g.Capacity != 2340338 || g.Evictable != 2338107 || o.Capacity != 500000 || r.Discovery != SourceListWorkers || !r.Fresh {
			t.Errorf("round %+v", r)
		}
		return
	}
}
