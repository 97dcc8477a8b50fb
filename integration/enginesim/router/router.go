package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

// Router is one simulated router. All methods are safe for concurrent use.
type Router struct {
	cfg       Config
	handler   http.Handler
	transport *http.Transport
	stop      context.CancelFunc
	wg        sync.WaitGroup

	mu       sync.Mutex
	rng      *rand.Rand
	workers  []*worker
	affinity map[string]*worker // session id to the worker of its first turn
	order    []string           // session ids, oldest first, to bound affinity
	srv      *http.Server
	url      string
}

// worker is a Worker with what the router knows of it. Guarded by Router.mu.
type worker struct {
	Worker
	id      string
	healthy bool
	fails   int
	load    int // calls being proxied
	calls   int // calls proxied so far
}

// New starts a router with the given workers; they count as healthy until a check says otherwise. Close it.
func New(cfg Config, workers ...Worker) (*Router, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &Router{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 1)), affinity: map[string]*worker{},
		transport: &http.Transport{MaxIdleConnsPerHost: 256, Proxy: nil},
	}
	r.handler = r.routes()
	for _, w := range workers {
		if _, err := r.Add(w); err != nil {
			return nil, err
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	if cfg.HealthEvery > 0 {
		r.wg.Go(func() { r.watch(ctx) })
	}
	return r, nil
}

// Add puts a worker into the list and returns its id.
func (r *Router) Add(w Worker) (string, error) {
	w, err := w.withDefaults()
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, known := range r.workers {
		if known.URL == w.URL {
			return "", fmt.Errorf("%w: url %q is listed already", ErrWorker, w.URL)
		}
	}
	added := &worker{Worker: w, id: r.newID(w.URL), healthy: true}
	r.workers = append(r.workers, added)
	return added.id, nil
}

// Remove takes a worker out, by URL or id. Calls being proxied go on.
func (r *Router) Remove(key string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, w := range r.workers {
		if w.URL == key || w.id == key {
			r.workers = append(r.workers[:i:i], r.workers[i+1:]...)
			return nil
		}
	}
	return fmt.Errorf("%w: %q is not listed", ErrWorker, key)
}

// SetHealthy says what /workers says of a worker, until the next health check.
func (r *Router) SetHealthy(url string, healthy bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.workers {
		if w.URL == url {
			w.healthy, w.fails = healthy, 0
			return nil
		}
	}
	return fmt.Errorf("%w: %q is not listed", ErrWorker, url)
}

// Routed is the number of calls proxied to each worker URL.
func (r *Router) Routed() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]int, len(r.workers))
	for _, w := range r.workers {
		out[w.URL] = w.calls
	}
	return out
}

// newID is a URL for the old styles, else a UUID drawn from the seed. It needs the lock.
func (r *Router) newID(url string) string {
	if r.cfg.Style != StyleGateway {
		return url
	}
	a, b := r.rng.Uint64(), r.rng.Uint64()
	return fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x", a>>32, a>>16&0xffff, a&0xfff, b>>48&0xfff, b&0xffffffffffff)
}

// Handler serves the router's endpoints.
func (r *Router) Handler() http.Handler { return r.handler }

// Start listens on addr ("" means a free port of 127.0.0.1) and returns the base URL.
func (r *Router) Start(addr string) (string, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fmt.Errorf("listen on %s: %w", addr, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	srv := &http.Server{Handler: r.handler, ReadHeaderTimeout: 30 * time.Second}
	r.srv, r.url = srv, "http://"+ln.Addr().String()
	r.wg.Go(func() { _ = srv.Serve(ln) })
	return r.url, nil
}

// Close stops serving and health checks and waits for both.
func (r *Router) Close() error {
	r.stop()
	r.mu.Lock()
	srv := r.srv
	r.srv = nil
	r.mu.Unlock()
	var err error
	if srv != nil {
		err = srv.Close()
	}
	r.wg.Wait()
	r.transport.CloseIdleConnections()
	return err
}

// watch checks every worker's /health from time to time until ctx ends.
func (r *Router) watch(ctx context.Context) {
	ticker := time.NewTicker(r.cfg.HealthEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.check(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (r *Router) check(ctx context.Context) {
	r.mu.Lock()
	workers := append([]*worker(nil), r.workers...)
	r.mu.Unlock()
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() { r.note(w, r.alive(ctx, w.URL)) })
	}
	wg.Wait()
}

func (r *Router) alive(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := r.transport.RoundTrip(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (r *Router) note(w *worker, alive bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if alive {
		w.healthy, w.fails = true, 0
		return
	}
	w.fails++
	if w.fails >= r.cfg.HealthFails {
		w.healthy = false
	}
}
