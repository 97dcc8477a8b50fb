package scrape

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"kvgate/ledger"
)

// SettingsSource lists the pools and their settings. Pools is called about once a second and must not
// block for long.
type SettingsSource interface {
	Pools(ctx context.Context) (map[string]ledger.Settings, error)
}

// Options tune a Manager. The zero value is usable.
type Options struct {
	Keys Keys
	// Transport carries the traffic to routers and engines; nil means [NewTransport].
	Transport http.RoundTripper
	// Parallel is how many scrapes work at once over all pools; 0 means 64. Scrapes that wait for an
	// engine for longer than SlotHold do not count.
	Parallel int
	// SlotHold is 250 ms if 0.
	SlotHold time.Duration
	// SettingsEvery is how often settings are read; 0 means one second.
	SettingsEvery time.Duration
	// Known returns a pool's engines as the ledger has them. With it a new leader polls them at once, also
	// while the router is down, and goes on with their incarnations. May be nil.
	Known func(ctx context.Context, pool string) []ledger.Engine
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// Manager runs one poller per pool that names a router or engines.
type Manager struct {
	settings SettingsSource
	proposer Proposer
	fetch    fetcher
	slots    *slots
	opt      Options

	mu      sync.Mutex
	pollers map[string]*job
}

type job struct {
	*Poller
	cancel context.CancelFunc
	done   chan struct{}
}

type network struct {
	*Discoverer
	*Engines
}

// NewManager returns a Manager; nothing runs before Run.
func NewManager(s SettingsSource, p Proposer, opt Options) *Manager {
	if opt.Transport == nil {
		opt.Transport = NewTransport()
	}
	return newManager(s, p, opt, network{NewDiscoverer(opt.Transport, opt.Keys), NewEngines(opt.Transport, opt.Keys)})
}

func newManager(s SettingsSource, p Proposer, opt Options, f fetcher) *Manager {
	opt.Parallel = cmp.Or(max(opt.Parallel, 0), 64)
	opt.SlotHold = cmp.Or(max(opt.SlotHold, 0), 250*time.Millisecond)
	opt.SettingsEvery = cmp.Or(max(opt.SettingsEvery, 0), time.Second)
	if opt.Logger == nil {
		opt.Logger = slog.Default()
	}
	sl := &slots{sem: semaphore.NewWeighted(int64(opt.Parallel)), hold: opt.SlotHold}
	return &Manager{settings: s, proposer: p, fetch: f, slots: sl, opt: opt, pollers: map[string]*job{}}
}

// Run polls until ctx ends, which is when this node stops leading, and returns when every poller has
// stopped. It may be called again afterwards, not meanwhile.
func (m *Manager) Run(ctx context.Context) {
	defer m.stopAll()
	ticker := time.NewTicker(m.opt.SettingsEvery)
	defer ticker.Stop()
	said := ""
	for {
		pools, err := m.settings.Pools(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			said = ""
			m.follow(ctx, pools)
		case err.Error() != said:
			said = err.Error()
			m.opt.Logger.Warn("settings cannot be read: polling goes on with the last ones", slog.Any("err", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// follow starts, updates and stops pollers.
func (m *Manager) follow(ctx context.Context, pools map[string]ledger.Settings) {
	for pool, s := range pools {
		if !polled(s) {
			continue
		}
		if r := m.poller(pool); r != nil {
			r.Update(s)
		} else {
			m.start(ctx, pool, s)
		}
	}
	for _, r := range m.jobs() {
		if s, ok := pools[r.pool]; !ok || !polled(s) {
			m.stop(r)
		}
	}
}

// polled reports whether a pool has engines to ask, and may ask them.
func polled(s ledger.Settings) bool {
	return !s.Quarantine && (s.RouterURL != "" || len(s.EngineURLs) > 0)
}

func (m *Manager) poller(pool string) *job {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pollers[pool]
}

func (m *Manager) jobs() []*job {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*job
	for _, r := range m.pollers {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *job) int { return strings.Compare(a.pool, b.pool) })
	return all
}

func (m *Manager) start(ctx context.Context, pool string, s ledger.Settings) {
	ctx, cancel := context.WithCancel(ctx)
	r := &job{newPoller(pool, m.fetch, m.proposer, m.slots, m.opt.Logger, s), cancel, make(chan struct{})}
	m.mu.Lock()
	m.pollers[pool] = r
	m.mu.Unlock()
	go func() {
		defer close(r.done)
		var known []ledger.Engine
		if m.opt.Known != nil {
			known = m.opt.Known(ctx, pool)
		}
		r.Run(ctx, known)
	}()
}

func (m *Manager) stop(r *job) {
	r.cancel()
	<-r.done
	m.mu.Lock()
	delete(m.pollers, r.pool)
	m.mu.Unlock()
}

func (m *Manager) stopAll() {
	all := m.jobs()
	for _, r := range all {
		r.cancel()
	}
	for _, r := range all {
		m.stop(r)
	}
}

// Status returns the pollers' status, sorted by pool. It is empty while Run does not run.
func (m *Manager) Status() []Status {
	var all []Status
	for _, r := range m.jobs() {
		all = append(all, r.Poller.Status())
	}
	return all
}
