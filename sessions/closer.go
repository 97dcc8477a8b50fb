package sessions

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
)

const (
	defaultParallel  = 64
	defaultPerEngine = 8
	// ratePerProcessor is how many calls a second the closer makes for each processor. A call costs some 30 µs
	// of processor time, here and in the log, so closes take a tenth of the machine.
	ratePerProcessor = 3000
	// paceTick is how often calls start while Options.Rate holds them back.
	paceTick = time.Millisecond
)

// Source is where the closer reads what engines must be told.
type Source interface {
	// Work answers as Table.Work does, from the leader's own state. have runs within the call.
	Work(have func(seq, rev uint64) bool) []Work
	// Wake gets a token when there may be new work. It may be nil: the closer polls as well.
	Wake() <-chan struct{}
}

// Reporter makes reports commands.
type Reporter interface {
	// Report returns once the batch is applied. After an error the closer reports the same again: the
	// table ignores what it knows.
	Report(ctx context.Context, batch []Report) error
}

// Engines makes the calls of the closer; see Client.
type Engines interface {
	CloseSession(ctx context.Context, engine, session string) error
	Abort(ctx context.Context, engine, rid string) error
}

// Options configure a closer. The zero value of a field means its default.
type Options struct {
	// Parallel bounds the calls in flight, 64 by default, PerEngine those to one engine, 8.
	Parallel, PerEngine int
	// Rate bounds the calls started in a second, after the first Parallel: many sessions that end at once on
	// engines that answer at once must leave admission its share of the processors. Aborts count, but do not wait.
	// 3,000 a processor by default.
	Rate int
	// CallTimeout bounds one call; 5 s.
	CallTimeout time.Duration
	// Poll is how often the source is asked while there is work; 50 ms, and ten times that while there
	// is none.
	Poll time.Duration
	// Flush is how long acknowledgements are collected before they are reported, and how soon the source
	// is asked after it woke the closer; 20 ms.
	Flush time.Duration
	// FirstRetry and LastRetry are the shortest and the longest pause after a failed call, before
	// jitter; 200 ms and 5 s.
	FirstRetry, LastRetry time.Duration
	// Observe is told of each call that ended, from the closer's goroutine: it must not block.
	Observe func(call Call)
	Log     *slog.Logger
}

// Call is one call that ended.
type Call struct {
	// Path is /close_session or /abort_request.
	Path, Engine string
	Took         time.Duration
	// SinceDue is how long ago the closer first saw that the engine must be told.
	SinceDue time.Duration
	// Err is nil when the engine answered 200.
	Err error
}

func (o *Options) fill() {
	setDefault(&o.Parallel, defaultParallel)
	setDefault(&o.PerEngine, defaultPerEngine)
	setDefault(&o.Rate, ratePerProcessor*runtime.GOMAXPROCS(0))
	setDefault(&o.CallTimeout, 5*time.Second)
	setDefault(&o.Poll, 50*time.Millisecond)
	setDefault(&o.Flush, 20*time.Millisecond)
	setDefault(&o.FirstRetry, 200*time.Millisecond)
	setDefault(&o.LastRetry, 5*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// Closer tells engines what the table says they must hear. It keeps no state that matters: what it knows
// of attempts and errors is its own, what is owed is the table's.
type Closer struct {
	source   Source
	reporter Reporter
	engines  Engines
	opt      Options

	// mu guards desk, which Run changes and Status reads. It is never held across a call.
	mu   sync.Mutex
	desk *desk
}

// NewCloser returns a closer that does nothing until it runs.
func NewCloser(s Source, r Reporter, e Engines, opt Options) *Closer {
	opt.fill()
	return &Closer{source: s, reporter: r, engines: e, opt: opt, desk: newDesk(opt)}
}

// Run works until ctx ends; the leader runs it under the context of its term, and never twice at once.
// All its goroutines have ended when it returns, and what it knew of attempts is forgotten.
func (c *Closer) Run(ctx context.Context) {
	var calls errgroup.Group
	r := &run{
		Closer: c, ctx: ctx, calls: &calls,
		ended: make(chan outcome, c.opt.Parallel), reported: make(chan receipt, 1),
		pace: rate.NewLimiter(rate.Limit(c.opt.Rate), c.opt.Parallel),
	}
	r.loop()
	_ = calls.Wait()
	c.mu.Lock()
	c.desk = newDesk(c.opt)
	c.mu.Unlock()
}

// run is one Run.
type run struct {
	*Closer
	ctx   context.Context
	calls *errgroup.Group
	// ended has room for every call and reported for the one report in flight: nobody waits to send.
	ended    chan outcome
	reported chan receipt
	flush    *time.Timer
	// pace holds calls back that Options.Rate does not allow yet, until resume fires.
	pace   *rate.Limiter
	resume *time.Timer
	// armed: flush will fire. flushing: a report is in flight.
	armed, flushing bool
}

type outcome struct {
	task *task
	err  error
	took time.Duration
}

type receipt struct {
	batch []Report
	err   error
}

func (r *run) loop() {
	poll := time.NewTimer(0)
	defer poll.Stop()
	r.flush = time.NewTimer(time.Hour)
	defer r.flush.Stop()
	r.resume = time.NewTimer(time.Hour)
	defer r.resume.Stop()
	wake, woken := r.source.Wake(), false
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-wake:
			// Every report that is applied wakes, too: look once for many.
			if !woken {
				woken = true
				poll.Reset(r.opt.Flush)
			}
		case <-poll.C:
			woken = false
			poll.Reset(r.look())
		case o := <-r.ended:
			r.end(o)
		case got := <-r.reported:
			r.receive(got)
		case <-r.flush.C:
			r.report()
		case <-r.resume.C:
		}
		r.dispatch()
		r.arm(r.opt.Flush)
	}
}

// look asks the source for work and returns when to ask again.
func (r *run) look() time.Duration {
	work := r.source.Work(r.desk.have)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.desk.take(work, time.Now())
	if len(r.desk.jobs) == 0 {
		return 10 * r.opt.Poll
	}
	return r.opt.Poll
}

// dispatch starts what may be started now.
func (r *run) dispatch() {
	now := time.Now()
	allowed := int(r.pace.TokensAt(now))
	r.mu.Lock()
	ready := r.desk.next(now, allowed)
	r.mu.Unlock()
	r.pace.AllowN(now, min(allowed, len(ready)))
	if len(ready) >= allowed {
		r.resume.Reset(paceTick)
	}
	for _, t := range ready {
		ctx, cancel := context.WithTimeout(r.ctx, r.opt.CallTimeout)
		t.cancel = cancel
		call := r.call(t)
		r.calls.Go(func() error {
			defer cancel()
			begun := time.Now()
			err := call(ctx)
			r.ended <- outcome{t, err, time.Since(begun)}
			return nil
		})
	}
}

// call returns the call that a task makes. It reads the task at once: the call itself runs beside the
// loop, which may change it.
func (r *run) call(t *task) func(context.Context) error {
	engine, session, rid := t.lane.url, t.job.Session, t.abort.RID
	if t.path == pathAbort {
		return func(ctx context.Context) error { return r.engines.Abort(ctx, engine, rid) }
	}
	return func(ctx context.Context) error { return r.engines.CloseSession(ctx, engine, session) }
}

func (r *run) end(o outcome) {
	if r.ctx.Err() != nil {
		return
	}
	now, t := time.Now(), o.task
	r.mu.Lock()
	changed := r.desk.end(t, o.err, now)
	r.mu.Unlock()
	if r.opt.Observe != nil {
		r.opt.Observe(Call{Path: t.path, Engine: t.lane.url, Took: o.took, SinceDue: now.Sub(t.since), Err: o.err})
	}
	switch {
	case !changed:
	case o.err == nil:
		r.opt.Log.Info("engine takes session calls again", slog.String("engine", t.lane.url))
	default:
		r.opt.Log.Warn("engine does not take session calls; retrying", slog.String("engine", t.lane.url),
			slog.String("pool", t.job.Pool), slog.Any("error", o.err))
	}
}

// arm makes a report leave after a pause, when there is something to report.
func (r *run) arm(pause time.Duration) {
	if !r.armed && !r.flushing && len(r.desk.pending) > 0 {
		r.armed = true
		r.flush.Reset(pause)
	}
}

// report reports what there is, in a goroutine that ends with the run.
func (r *run) report() {
	r.armed, r.flushing = false, true
	r.mu.Lock()
	batch := r.desk.reports()
	r.mu.Unlock()
	r.calls.Go(func() error {
		r.reported <- receipt{batch, r.reporter.Report(r.ctx, batch)}
		return nil
	})
}

func (r *run) receive(got receipt) {
	r.flushing = false
	if got.err == nil || r.ctx.Err() != nil {
		return
	}
	r.opt.Log.Warn("report of engine calls was not taken; reporting again", slog.Any("error", got.err))
	r.mu.Lock()
	r.desk.unreported(got.batch)
	r.mu.Unlock()
	r.arm(10 * r.opt.Poll)
}

// Load counts the calls in flight and those that wait for their turn, of all engines.
func (c *Closer) Load() (inFlight, waiting int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.desk.flying, c.desk.queued()
}
