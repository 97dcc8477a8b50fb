package scrape

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

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

// emptyRounds is how many rounds in a row a router must list no workers before it is believed: a router
// that just restarted has none for a moment.
const emptyRounds = 2

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
}

// source is what the list of engines depends on.
type source struct{ router, model, static string }

func sourceOf(s *ledger.Settings) source {
	return source{s.RouterURL, s.ModelID, strings.Join(s.EngineURLs, "\n")}
}

// Poller polls the engines of one pool. Run owns all fields but settings and status.
//
// A round starts a discovery and a scrape of every known engine that has none in flight, then waits for
// those, at most until shortly before the next round is due. What did not come back by then is not
// waited for again: the engine keeps its last good sample until its scrape is older than poll_timeout,
// and is unhealthy from then on. So engines that hang delay nobody, and none is ever scraped twice at once.
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
	answered   int // engines that gave an HTTP answer
	settled    int // scrapes that came back at all

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
		p.await(ctx, start.Add(p.set.PollInterval*9/10), func() bool { return p.waiting == 0 && (!p.asking || p.askRound != p.round) })
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
			t.known = &e
		}
		p.engines[e.URL] = t
	}
}

func (p *Poller) begin(ctx context.Context) {
	p.adopt(*p.settings.Load())
	p.round++
	p.waiting = 0
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
	url, info, timeout := t.listed.URL, t.sample.Info, p.set.PollTimeout
	ask := t.askedAt.IsZero() || now.Sub(t.askedAt) >= askAgain
	p.workers.Go(func() {
		r := scrapeResult{url: url}
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
	}
	t.take(r.sample, r.err, r.at)
	if !t.present {
		delete(p.engines, r.url)
		return
	}
	p.settled++
	if !errors.Is(r.err, ErrUnreachable) {
		p.answered++
	}
	if r.err != nil {
		p.mu.Lock()
		p.status.ScrapeErrors++
		p.mu.Unlock()
	}
}

// takeList folds in an answer of the router, or the static list.
func (p *Poller) takeList(ctx context.Context, found Discovery, err error) {
	p.noteListError(err)
	if err != nil {
		p.empty = 0
		p.fallBack(ctx)
		return
	}
	p.routerSaid = p.routerSaid || found.Source != SourceStatic
	p.noteUnsupported(found.Unsupported)
	if len(found.Engines) == 0 {
		p.empty++
		p.emptyWhy = emptyReason(found, p.set.ModelID)
		if p.empty < emptyRounds {
			return
		}
	} else {
		p.empty = 0
	}
	p.listedAt, p.fallback = time.Now(), false
	p.enlist(ctx, found)
}

// fallBack takes the static list in place of a router that never answered or has been silent for too long.
func (p *Poller) fallBack(ctx context.Context) {
	nothing := p.listErr != nil && p.listedAt.IsZero() && len(p.engines) == 0
	if len(p.set.EngineURLs) > 0 && (nothing || p.listTooOld(time.Now())) {
		p.fallback = true
		p.enlist(ctx, Static(p.set.EngineURLs))
	}
}

func emptyReason(d Discovery, model string) string {
	switch {
	case len(d.Unsupported) > 0:
		return fmt.Sprintf("%s lists no workers that can be scraped over HTTP", d.Source)
	case d.Others > 0:
		return fmt.Sprintf("%s lists no workers of model %s", d.Source, model)
	}
	return d.Source + " lists no workers"
}

// listTooOld: the router has been silent for longer than the staleness bound.
func (p *Poller) listTooOld(now time.Time) bool {
	since := p.listedAt
	if since.IsZero() {
		since = p.started
	}
	return p.set.RouterURL != "" && now.Sub(since) > p.set.Staleness
}

// enlist makes the list the known set and scrapes who is new in it.
func (p *Poller) enlist(ctx context.Context, found Discovery) {
	if found.Source != p.listSource {
		p.log.Info("engines are listed by another source", slog.String("source", found.Source), slog.String("before", p.listSource))
		p.listSource = found.Source
	}
	listed := make(map[string]bool, len(found.Engines))
	for _, l := range found.Engines {
		listed[l.URL] = true
		t := p.engines[l.URL]
		if t == nil {
			t = &track{}
			p.engines[l.URL] = t
		}
		if !t.present {
			p.log.Info("engine joined", slog.String("engine", l.URL))
		}
		t.listed, t.present = l, true
	}
	for url, t := range p.engines {
		if !listed[url] {
			p.drop(url, t)
		}
	}
	p.launchAll(ctx)
}

// drop forgets an engine. While a scrape of it is out the entry stays: should the engine come back
// meanwhile, it must not be scraped twice at once.
func (p *Poller) drop(url string, t *track) {
	if t.present {
		p.log.Info("engine left", slog.String("engine", url))
	}
	if t.inFlight {
		t.present = false
	} else {
		delete(p.engines, url)
	}
}

func (p *Poller) noteListError(err error) {
	if (err == nil) != (p.listErr == nil) || err != nil && err.Error() != p.listErr.Error() {
		if err != nil {
			p.log.Warn("router gives no list of engines", slog.String("router", p.set.RouterURL), slog.Any("err", err))
		} else {
			p.log.Info("router lists engines again", slog.String("router", p.set.RouterURL))
		}
	}
	p.listErr = err
}

func (p *Poller) noteUnsupported(urls []string) {
	for _, u := range urls {
		if !p.unsupported[u] && len(p.unsupported) < MaxWorkers {
			p.unsupported[u] = true
			p.log.Warn("worker cannot be scraped: only http and https are supported", slog.String("worker", u))
		}
	}
}

// compose writes down what this round saw.
func (p *Poller) compose(now time.Time) ledger.Round {
	r := ledger.Round{Discovery: p.listSource}
	for _, t := range p.engines {
		if t.present {
			r.Engines = append(r.Engines, t.engine(p.set.PollTimeout, now))
		}
	}
	slices.SortFunc(r.Engines, func(a, b ledger.Engine) int { return strings.Compare(a.URL, b.URL) })
	switch {
	case p.empty >= emptyRounds:
		r.Fresh, r.Degrade, r.Reason, r.Engines = true, true, p.emptyWhy, nil
	case !p.fallback && p.listTooOld(now):
		r.Degrade, r.Reason = true, p.silence()
	default:
		// A router's answer counts only with news of an engine: engines that all hang still rest on
		// samples of before.
		r.Fresh = len(r.Engines) > 0 && (p.answered > 0 || p.routerSaid && p.settled > 0)
		if !r.Fresh {
			r.Reason = p.nothing(len(r.Engines))
		}
	}
	return r
}

func (p *Poller) silence() string {
	why := "no answer yet"
	switch {
	case p.listErr != nil:
		why = p.listErr.Error()
	case p.empty > 0:
		why = p.emptyWhy
	}
	return clip(fmt.Sprintf("the router's list is older than %s: %s", p.set.Staleness, why))
}

func (p *Poller) nothing(engines int) string {
	switch {
	case p.listErr != nil:
		return clip("neither router nor engines answered: " + p.listErr.Error())
	case p.empty > 0 && engines == 0:
		return p.emptyWhy + ", for the first time"
	case engines == 0:
		return "no engines known yet"
	}
	return "no engine answered"
}

// close ends a round: it writes down, logs changes and proposes.
func (p *Poller) close(ctx context.Context, start time.Time) {
	now := time.Now()
	r := p.compose(now)
	p.routerSaid, p.answered, p.settled = false, 0, 0
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

// propose hands a round over unless it says nothing new.
func (p *Poller) propose(ctx context.Context, r ledger.Round, now time.Time) error {
	if !p.worth(&r, now) {
		if r.Fresh {
			p.repeats++
		}
		p.count(func(s *Status) { s.Suppressed++ })
		return nil
	}
	if r.Fresh {
		r.Repeats = p.repeats
	}
	proposing, cancel := context.WithTimeout(ctx, p.set.PollInterval)
	defer cancel()
	err := p.proposer.Reconcile(proposing, p.pool, r)
	p.noteProposal(err)
	if err != nil {
		// Nobody knows whether it was applied: the next round is proposed whatever it says.
		p.last = nil
		return fmt.Errorf("propose round: %w", err)
	}
	p.count(func(s *Status) { s.Proposed++ })
	p.told = r.Engines
	p.last, p.lastAt = &r, now
	if r.Fresh {
		p.repeats = 0
	}
	return nil
}

// worth: a snapshot is worth proposing when it reads otherwise than the last proposed one, or when that
// one has aged a third of the staleness bound. A round without any answer only carries error texts.
func (p *Poller) worth(r *ledger.Round, now time.Time) bool {
	if !r.Fresh && !r.Degrade {
		return !sameErrors(p.told, r.Engines) && len(r.Engines) > 0
	}
	return p.last == nil || !sameRound(p.last, r) || now.Sub(p.lastAt) >= p.set.Staleness/3
}

func (p *Poller) noteProposal(err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	if said != p.lastSaid && err != nil {
		p.log.Warn("round was not taken", slog.Any("err", err))
	}
	p.lastSaid = said
}

func (p *Poller) count(f func(*Status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.status)
}

// slots bounds how many scrapes work at once.
type slots struct {
	sem *semaphore.Weighted
	// hold is how long a scrape that hangs keeps others out.
	hold time.Duration
}

// do runs f in a slot. After hold the slot goes to the next although f still runs: what runs so long is
// waiting for an engine, and takes neither processor nor much memory. The error is ctx's.
func (s *slots) do(ctx context.Context, f func()) error {
	if err := s.sem.Acquire(ctx, 1); err != nil {
		return err
	}
	free := sync.OnceFunc(func() { s.sem.Release(1) })
	timer := time.AfterFunc(s.hold, free)
	defer free()
	defer timer.Stop()
	f()
	return nil
}
