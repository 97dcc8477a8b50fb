package enginesim

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
)

// Engine is one simulated engine. All methods are safe for concurrent use.
type Engine struct {
	cfg     Config
	handler http.Handler
	turn    atomic.Uint64 // requests routed, for round robin
	ridSeq  atomic.Uint64
	calls   *callLog
	faults  *faultSet
	server  listener

	mu     sync.Mutex // guards swaps of inc and closed
	inc    atomic.Pointer[incarnation]
	closed bool
	ended  chan struct{} // closed by Close
}

// incarnation is what one start of the engine's process owns; Restart replaces it.
type incarnation struct {
	clock     Clock
	ranks     []*rank
	meters    *meters
	startedAt float64 // Unix seconds
	stop      context.CancelFunc
	wg        sync.WaitGroup
}

// New starts the schedulers of an engine. It serves nothing yet: use Handler or Start. Close it.
func New(cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	e := &Engine{
		cfg: cfg, calls: newCallLog(cfg.RecordBodies), faults: newFaultSet(), ended: make(chan struct{}),
	}
	e.handler = e.routes()
	e.inc.Store(e.boot())
	return e, nil
}

// boot starts one goroutine per DP rank; they end when the incarnation halts.
func (e *Engine) boot() *incarnation {
	clock := e.cfg.Clock
	if clock == nil {
		clock = newScaledClock(e.cfg.Speed)
	}
	ctx, stop := context.WithCancel(context.Background())
	inc := &incarnation{clock: clock, meters: newMeters(), startedAt: wallSeconds(), stop: stop}
	for i := range e.cfg.DP {
		k := newRank(&e.cfg, i, clock)
		inc.ranks = append(inc.ranks, k)
		inc.wg.Go(func() { k.run(ctx) })
	}
	return inc
}

func (i *incarnation) halt() {
	i.stop()
	i.wg.Wait()
}

func (e *Engine) current() *incarnation { return e.inc.Load() }

// Config is the configuration with its defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Handler serves the engine's endpoints.
func (e *Engine) Handler() http.Handler { return e.handler }

// Start listens on addr ("" means a free port of 127.0.0.1) and returns the base URL.
func (e *Engine) Start(addr string) (string, error) {
	return e.server.start(addr, e.handler)
}

// URL is the base URL, or "" before Start.
func (e *Engine) URL() string { return e.server.url() }

// Close stops serving, ends the schedulers, fails what is in flight and waits for all of it.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	close(e.ended)
	e.current().halt()
	return e.server.close()
}

// Restart replaces the engine's process at once: requests in flight lose their connection, the
// cache, the counters, opened sessions and tombstones are gone, and the start time is new.
func (e *Engine) Restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	old := e.current()
	e.inc.Store(e.boot())
	old.halt()
}

// Sync waits until every rank has taken in what was sent to it before, such as closes: the engine
// answers those before its schedulers act.
func (e *Engine) Sync(ctx context.Context) error {
	for _, k := range e.current().ranks {
		if err := k.ask(ctx, func() error { return nil }); err != nil {
			return fmt.Errorf("rank %d: %w", k.index, err)
		}
	}
	return nil
}

// askAll runs f on each rank in turn and returns the first error.
func (e *Engine) askAll(ctx context.Context, f func(*rank) error) error {
	for _, k := range e.current().ranks {
		if err := k.ask(ctx, func() error { return f(k) }); err != nil {
			return err
		}
	}
	return nil
}

// postAll sends f to every rank and waits for none.
func (e *Engine) postAll(f func(*rank)) {
	for _, k := range e.current().ranks {
		k.post(func() { f(k) })
	}
}
