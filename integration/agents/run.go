package agents

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"
)

// Config is one run of a plan.
type Config struct {
	Plan      *Plan
	RouterURL string
	Speed     float64 // of the engines behind the router
	Gate      Gate    // nil: calls go out at once
	Prefix    string  // of session ids; keeps runs against one coordinator apart
	Parallel  int     // sessions at work at once, the others follow as they end; 0 means all
	// End is told of each session that is over, after its last release; nil for nobody.
	End func(session string)
}

// Run is a run of a workload. Progress and Result may be called at any time, from any goroutine.
type Run struct {
	plan   *Plan
	gate   Gate
	speed  float64
	prefix string
	end    func(session string)
	slots  chan struct{} // one for each session at work
	caller *caller
	rec    recorder

	mu      sync.Mutex
	started time.Time
	ended   time.Time
}

// New checks cfg and prepares a run. Nothing runs before [Run.Do].
func New(cfg Config) (*Run, error) {
	if cfg.Plan == nil {
		return nil, fmt.Errorf("%w: Plan is missing", ErrConfig)
	}
	if !(cfg.Speed > 0) {
		return nil, fmt.Errorf("%w: Speed %v, want more than 0", ErrConfig, cfg.Speed)
	}
	if u, err := url.Parse(cfg.RouterURL); err != nil || u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("%w: RouterURL %q, want http:// with a host", ErrConfig, cfg.RouterURL)
	}
	gate, end, parallel := cfg.Gate, cfg.End, cfg.Parallel
	if gate == nil {
		gate = open{}
	}
	if end == nil {
		end = func(string) {}
	}
	if parallel == 0 {
		parallel = len(cfg.Plan.sessions)
	}
	if parallel < 0 {
		return nil, fmt.Errorf("%w: Parallel %d, want 0 or more", ErrConfig, parallel)
	}
	return &Run{
		plan: cfg.Plan, gate: gate, speed: cfg.Speed, prefix: cfg.Prefix, end: end, slots: make(chan struct{}, parallel),
		caller: newCaller(cfg.RouterURL, cfg.Plan.Workload.Agents),
	}, nil
}

// Do runs all sessions until every one has made all of its turns or given up, or ctx ends. It returns
// the errors of the sessions that gave up, and ctx's error when that ended first. Call it once.
func (r *Run) Do(ctx context.Context) error {
	defer r.caller.close()
	r.mark(&r.started)
	defer r.mark(&r.ended)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for i := range r.plan.sessions {
		s := &session{run: r, name: sessionName(r.prefix, i), script: &r.plan.sessions[i], phase: outside}
		wg.Go(func() {
			err := r.atWork(ctx, s)
			gaveUp := err != nil && ctx.Err() == nil
			r.rec.end(s.tokens, gaveUp)
			if gaveUp {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		errs = append(errs, ctx.Err())
	}
	return errors.Join(errs...)
}

// atWork plays a session once there is a slot for it, and tells that it is over.
func (r *Run) atWork(ctx context.Context, s *session) error {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	err := s.play(ctx)
	s.enter(outside)
	r.end(s.name)
	return err
}

func (r *Run) mark(at *time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*at = time.Now()
}

// Progress is where the run stands.
func (r *Run) Progress() Progress { return r.rec.progress() }

// Elapsed is the time since Do began, or the whole of it once it is over; engine time.
func (r *Run) Elapsed() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.started.IsZero():
		return 0
	case r.ended.IsZero():
		return r.engineTime(time.Since(r.started))
	default:
		return r.engineTime(r.ended.Sub(r.started))
	}
}

func (r *Run) engineTime(real time.Duration) time.Duration {
	return time.Duration(float64(real) * r.speed)
}

// sleep waits for d of engine time or the end of ctx.
func (r *Run) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(time.Duration(float64(d) / r.speed))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// open is the gate of a run without admission.
type open struct{}

// Acquire implements [Gate].
func (open) Acquire(context.Context, Call) (Permit, error) { return open{}, nil }

// Release implements [Permit].
func (open) Release(Usage) {}

// Waited implements [Permit].
func (open) Waited() time.Duration { return 0 }
