package scrape

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kvgate/ledger"
)

// Proposer takes the rounds. Reconcile is called from the poller's goroutine, one call at a time, with a
// context that ends after a poll interval.
type Proposer interface {
	Reconcile(ctx context.Context, pool string, round ledger.Round) error
}

// fetcher is the network as the poller sees it. Both methods honour their context.
type fetcher interface {
	Router(ctx context.Context, router, model string) (Discovery, error)
	Scrape(ctx context.Context, url string, info Info, ask bool) (Sample, error)
}

// Status is what a poller knows of itself, for this node's metrics.
type Status struct {
	Pool string
	// Rounds, Proposed and Suppressed count since the poller was started.
	Rounds, Proposed, Suppressed int64
	// ScrapeErrors counts scrapes that failed.
	ScrapeErrors int64
	LastRound    time.Time
	LastDuration time.Duration
	// LastError is of the router or the proposer; engines' errors are in the pool's capacity view.
	LastError        string
	Discovery        string
	Engines, Healthy int
	InFlight         int
}

type discoveryResult struct {
	found Discovery
	err   error
	of    source
}

type scrapeResult struct {
	url    string
	sample Sample
	err    error
	at     time.Time
	asked  bool
}

// source is what the list of engines depends on.
type source struct{ router, model, static string }

func sourceOf(s *ledger.Settings) source {
	return source{s.RouterURL, s.ModelID, strings.Join(s.EngineURLs, "\n")}
}

// Poller polls the engines of one pool. Run owns all fields but settings and status.
//
// A round starts a discovery and a scrape of every known engine that has none in flight, then waits for
// those, at most until shortly before the next round is due; for what did not answer the last time, only
// a quarter of the poll interval. What did not come back by then is not waited for again: the engine
// keeps its last good sample until its scrape is older than poll_timeout, and is unhealthy from then on.
// So engines that hang delay nobody for long, and none is ever scraped twice at once.
type Poller struct {
	pool     string
	fetch    fetcher
	proposer Proposer
	slots    *slots
	log      *slog.Logger
	settings atomic.Pointer[ledger.Settings]

	mu     sync.Mutex
	status Status

	set      ledger.Settings
	src      source
	round    uint64
	started  time.Time // of the current source
	engines  map[string]*track
	results  chan scrapeResult
	lists    chan discoveryResult
	workers  sync.WaitGroup
	waiting  int  // scrapes of this round still out
	suspects int  // those of them whose engine did not answer the last time
	asking   bool // a discovery is out
	askRound uint64

	listSource  string
	listedAt    time.Time // of the last list that counted
	fallback    bool      // the static list stands in for an unreachable router
	listErr     error
	empty       int    // empty lists in a row
	emptyWhy    string // what the last one said
	unsupported map[string]bool

	// Since the last round was closed:
	routerSaid bool
	settled    int // scrapes that came back at all

	// held: the ledger may count an engine as healthy. It errs on the side of yes.
	held bool
	// newsAt is when a round last was a snapshot; zero before the first round.
	newsAt time.Time

	last     *ledger.Round
	lastAt   time.Time
	told     []ledger.Engine // as last proposed
	repeats  int64
	lastSaid string
}

func newPoller(pool string, f fetcher, p Proposer, sl *slots, log *slog.Logger, s ledger.Settings) *Poller {
	poller := &Poller{
		pool: pool, fetch: f, proposer: p, slots: sl, log: log.With(slog.String("pool", pool)),
		engines: map[string]*track{}, unsupported: map[string]bool{},
		results: make(chan scrapeResult), lists: make(chan discoveryResult),
	}
	poller.status.Pool = pool
	poller.Update(s)
	return poller
}

// Update sets the settings that the next round works by. Safe for concurrent use.
func (p *Poller) Update(s ledger.Settings) { p.settings.Store(&s) }

// Status may be called from any goroutine.
func (p *Poller) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// Run polls until ctx ends, and returns when every goroutine it started has. known are the engines as a
// previous leader left them; they are polled until the router says otherwise.
func (p *Poller) Run(ctx context.Context, known []ledger.Engine) {
	ctx, cancel := context.WithCancel(ctx)
	defer p.workers.Wait()
	defer cancel()
	p.adopt(*p.settings.Load())
	p.remember(known)
	for ctx.Err() == nil {
		start := time.Now()
		p.begin(ctx)
		p.await(ctx, start.Add(p.set.PollInterval/4), p.complete)
		p.await(ctx, start.Add(p.set.PollInterval*9/10), p.goodEnough)
		if ctx.Err() != nil {
			return
		}
		p.close(ctx, start)
		p.await(ctx, start.Add(p.set.PollInterval), func() bool { return false })
	}
}

// await folds in what comes back until done says so, the deadline or the end of ctx.
func (p *Poller) await(ctx context.Context, deadline time.Time, done func() bool) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case r := <-p.results:
			p.takeSample(r)
		case r := <-p.lists:
			p.asking = false
			if r.of == p.src {
				p.takeList(ctx, r.found, r.err)
			}
		}
	}
}

// complete: everything that this round started came back.
func (p *Poller) complete() bool {
	return p.waiting == 0 && (!p.asking || p.askRound != p.round)
}

// goodEnough: everything did that may be expected to.
func (p *Poller) goodEnough() bool {
	return p.waiting == p.suspects && (!p.asking || p.askRound != p.round || p.listErr != nil)
}

// adopt takes over settings. Other routers or engines mean a new start; what is known of an engine that
// stays is kept.
func (p *Poller) adopt(s ledger.Settings) {
	p.set = s
	if src := sourceOf(&s); src != p.src || p.started.IsZero() {
		p.src, p.started = src, time.Now()
		p.listedAt, p.listErr, p.fallback, p.empty = time.Time{}, nil, false, 0
		p.last = nil
	}
}

func (p *Poller) remember(known []ledger.Engine) {
	for _, e := range known {
		t := &track{listed: Listed{URL: e.URL, Role: e.Role}, present: true, incarnation: e.Incarnation, logged: e.Healthy}
		if e.Healthy {
			t.known, p.held = &e, true
		}
		p.engines[e.URL] = t
	}
}

func (p *Poller) begin(ctx context.Context) {
	p.adopt(*p.settings.Load())
	p.round++
	p.waiting, p.suspects = 0, 0
	if p.set.RouterURL == "" {
		p.takeList(ctx, Static(p.set.EngineURLs), nil)
	} else {
		p.fallBack(ctx)
		p.ask(ctx)
	}
	p.launchAll(ctx)
}

// ask starts a discovery, unless one is out still.
func (p *Poller) ask(ctx context.Context) {
	if p.asking {
		return
	}
	p.asking, p.askRound = true, p.round
	router, model, src, timeout := p.set.RouterURL, p.set.ModelID, p.src, p.set.PollTimeout
	p.workers.Go(func() {
		asking, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		found, err := p.fetch.Router(asking, router, model)
		select {
		case p.lists <- discoveryResult{found, err, src}:
		case <-ctx.Done():
		}
	})
}

func (p *Poller) launchAll(ctx context.Context) {
	for _, t := range p.engines {
		if t.present && !t.inFlight && t.round != p.round {
			p.launch(ctx, t)
		}
	}
}

// launch scrapes one engine. The time out starts when the scrape has its slot.
func (p *Poller) launch(ctx context.Context, t *track) {
	now := time.Now()
	t.inFlight, t.round, t.launched = true, p.round, now
	p.waiting++
	if t.suspect = errors.Is(t.err, ErrUnreachable); t.suspect {
		p.suspects++
	}
	url, info, timeout := t.listed.URL, t.sample.Info, p.set.PollTimeout
	ask := t.askedAt.IsZero() || now.Sub(t.askedAt) >= askAgain
	p.workers.Go(func() {
		r := scrapeResult{url: url, asked: ask}
		ended := p.slots.do(ctx, func() {
			scraping, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			r.sample, r.err = p.fetch.Scrape(scraping, url, info, ask)
			r.at = time.Now()
		})
		if ended != nil {
			return
		}
		select {
		case p.results <- r:
		case <-ctx.Done():
		}
	})
}

func (p *Poller) takeSample(r scrapeResult) {
	t := p.engines[r.url]
	if t == nil {
		return
	}
	if t.round == p.round {
		p.waiting--
		if t.suspect {
			p.suspects--
		}
	}
	t.take(r.sample, r.err, r.at)
	if r.asked && errors.Is(r.err, ErrNoCapacity) {
		t.askedAt = r.at
	}
	if !t.present {
		delete(p.engines, r.url)
		return
	}
	p.settled++
	t.news = t.news || r.err == nil
	if r.err != nil {
		p.mu.Lock()
		p.status.ScrapeErrors++
		p.mu.Unlock()
	}
}

// close ends a round: it writes down, logs changes and proposes.
func (p *Poller) close(ctx context.Context, start time.Time) {
	now := time.Now()
	r := p.compose(now)
	p.routerSaid, p.settled = false, 0
	for _, t := range p.engines {
		t.news = false
	}
	healthy := p.logHealth(r.Engines)
	err := p.propose(ctx, r, now)
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.status
	s.Rounds++
	s.LastRound, s.LastDuration = now, now.Sub(start)
	s.Discovery, s.Engines, s.Healthy, s.InFlight = p.listSource, len(r.Engines), healthy, p.inFlight()
	s.LastError = ""
	for _, e := range []error{p.listErr, err} {
		if e != nil {
			s.LastError = clip(e.Error())
		}
	}
}

func (p *Poller) inFlight() int {
	n := 0
	for _, t := range p.engines {
		if t.inFlight {
			n++
		}
	}
	return n
}

// logHealth writes a line for each engine whose health changed, and counts the healthy.
func (p *Poller) logHealth(engines []ledger.Engine) int {
	n := 0
	for _, e := range engines {
		t := p.engines[e.URL]
		if e.Healthy {
			n++
		}
		if e.Healthy == t.logged {
			continue
		}
		t.logged = e.Healthy
		if e.Healthy {
			p.log.Info("engine is healthy", slog.String("engine", e.URL), slog.Int64("capacity", int64(e.Capacity)), slog.Int("dp_ranks", e.DPRanks))
		} else {
			p.log.Warn("engine is unhealthy", slog.String("engine", e.URL), slog.String("err", e.Error))
		}
	}
	return n
}

func (p *Poller) count(f func(*Status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.status)
}
