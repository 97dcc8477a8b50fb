package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"kvgate/ledger"
)

var errDown = fmt.Errorf("%w: dial: connection refused", ErrUnreachable)

// world is a router and its engines without a network. Time in these tests is synctest's: Sleep moves the
// bubble's clock, it does not wait.
type world struct {
	mu      sync.Mutex
	router  func(ctx context.Context) (Discovery, error)
	engine  map[string]func(ctx context.Context) (Sample, error)
	active  map[string]int
	twice   string // an engine that was scraped twice at once
	scrapes map[string]int
	asks    []time.Duration // when a scrape could ask the info endpoints
	started time.Time

	refuse error
	apply  func(ledger.Round) // may be nil
	rounds []ledger.Round
	at     []time.Duration
}

func newWorld() *world {
	return &world{engine: map[string]func(context.Context) (Sample, error){}, active: map[string]int{}, scrapes: map[string]int{}}
}

func (w *world) Router(ctx context.Context, _, _ string) (Discovery, error) {
	w.mu.Lock()
	f := w.router
	w.mu.Unlock()
	return f(ctx)
}

func (w *world) Scrape(ctx context.Context, url string, _ Info, ask bool) (Sample, error) {
	w.mu.Lock()
	if ask {
		w.asks = append(w.asks, time.Since(w.started))
	}
	w.active[url]++
	w.scrapes[url]++
	if w.active[url] > 1 {
		w.twice = url
	}
	f := w.engine[url]
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.active[url]--
		w.mu.Unlock()
	}()
	if f == nil {
		return Sample{}, errDown
	}
	return f(ctx)
}

func (w *world) Reconcile(_ context.Context, _ string, r ledger.Round) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return w.refuse
	}
	if w.apply != nil {
		w.apply(r)
	}
	w.rounds = append(w.rounds, r)
	w.at = append(w.at, time.Since(w.started))
	return nil
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.rounds)
}

func (w *world) all() []ledger.Round {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.rounds)
}

func (w *world) scraped(url string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.scrapes[url]
}

func (w *world) last(t *testing.T) ledger.Round {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rounds) == 0 {
		t.Fatal("no round was proposed")
	}
	return w.rounds[len(w.rounds)-1]
}

func lists(urls ...string) func(context.Context) (Discovery, error) {
	return func(context.Context) (Discovery, error) {
		d := list(SourceWorkers, urls)
		return d, nil
	}
}

func routerDown(context.Context) (Discovery, error) { return Discovery{}, errDown }

func full(usage float64) func(context.Context) (Sample, error) {
	return func(context.Context) (Sample, error) {
		return Sample{Capacity: 1000, Used: tokens(1000 * usage), Usage: usage, Pressure: usage, DPRanks: 1}, nil
	}
}

func hangs(ctx context.Context) (Sample, error) {
	<-ctx.Done()
	return Sample{}, unreachable(ctx.Err())
}

func routed() ledger.Settings {
	s := ledger.DefaultSettings()
	s.RouterURL = "http://router:1"
	return s
}

// poll runs one poller against w while test runs, in a bubble. The log is returned through logs.
func poll(t *testing.T, w *world, s ledger.Settings, known []ledger.Engine, test func(p *Poller, logs *logbook)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var logs logbook
		log := slog.New(slog.NewTextHandler(&logs, nil))
		p := newPoller("pool", w, w, &slots{semaphore.NewWeighted(64), 250 * time.Millisecond}, log, s)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		w.started = time.Now()
		go func() {
			defer close(done)
			p.Run(ctx, known)
		}()
		test(p, &logs)
		cancel()
		<-done
		if w.twice != "" {
			t.Errorf("%s was scraped twice at once", w.twice)
		}
	})
}

// logbook is a log that a test reads while the poller writes.
type logbook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logbook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// pass lets d go by, and what is due by then happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func row(t *testing.T, r ledger.Round, url string) ledger.Engine {
	t.Helper()
	for _, e := range r.Engines {
		if e.URL == url {
			return e
		}
	}
	t.Fatalf("%s is not in the round %+v", url, r)
	return ledger.Engine{}
}

var errRefused = errors.New("not the leader")
