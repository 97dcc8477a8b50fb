package agents

import (
	"errors"
	"fmt"

	"kvgate/integration/enginesim"
	"kvgate/integration/enginesim/router"
)

// FleetConfig describes equal engines behind one router. Zero fields take their defaults.
type FleetConfig struct {
	Engines    int     // default 4
	PoolTokens int     // KV pool of each engine, tokens; default 320000
	Speed      float64 // seconds of engine time per second of real time; default 1
	Seed       uint64  // of the answers

	// AnswerMin and AnswerMax bound the tokens at which an engine ends an answer by itself; short ones
	// are more frequent. Default 64 and 1024.
	AnswerMin, AnswerMax int

	// TagSessions starts the engines with --enable-session-radix-cache: a close frees a session's KV.
	TagSessions bool
}

// Fleet is a running fleet. Its engines share one seed, so an answer depends on the prompt alone and
// not on where the router sent it: that is what makes two runs of a workload do the same work.
type Fleet struct {
	engines   []*enginesim.Engine
	router    *router.Router
	routerURL string
}

// StartFleet starts engines and router on free ports of 127.0.0.1, or nothing.
func StartFleet(cfg FleetConfig) (*Fleet, error) {
	setDefault(&cfg.Engines, 4)
	setDefault(&cfg.Speed, 1)
	setDefault(&cfg.AnswerMin, 64)
	setDefault(&cfg.AnswerMax, 1024)
	if cfg.Engines < 1 || cfg.Engines > 256 {
		return nil, fmt.Errorf("%w: Engines %d, want 1 to 256", ErrConfig, cfg.Engines)
	}
	f := &Fleet{}
	if err := f.start(cfg); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Fleet) start(cfg FleetConfig) error {
	var workers []router.Worker
	for i := range cfg.Engines {
		e, err := enginesim.New(enginesim.Config{
			Name: fmt.Sprintf("engine-%d", i), Seed: cfg.Seed, PoolTokens: cfg.PoolTokens, Speed: cfg.Speed,
			OutputMin: cfg.AnswerMin, OutputMax: cfg.AnswerMax, EnableMetrics: true,
			SessionRadix: cfg.TagSessions,
		})
		if err != nil {
			return err
		}
		f.engines = append(f.engines, e)
		url, err := e.Start("")
		if err != nil {
			return err
		}
		workers = append(workers, router.Worker{URL: url, ModelID: e.Config().ModelName})
	}
	var err error
	if f.router, err = router.New(router.Config{Seed: cfg.Seed, HealthEvery: -1}, workers...); err != nil {
		return err
	}
	f.routerURL, err = f.router.Start("")
	return err
}

// RouterURL is the base URL of the router.
func (f *Fleet) RouterURL() string { return f.routerURL }

// URLs are the base URLs of the engines.
func (f *Fleet) URLs() []string {
	urls := make([]string, len(f.engines))
	for i, e := range f.engines {
		urls[i] = e.URL()
	}
	return urls
}

// Close ends router and engines. What is in flight fails.
func (f *Fleet) Close() error {
	var errs []error
	if f.router != nil {
		errs = append(errs, f.router.Close())
	}
	for _, e := range f.engines {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

// FleetStats sums what the engines know of themselves. Tokens unless said otherwise.
type FleetStats struct {
	Capacity        int `json:"capacity"`
	Used            int `json:"used"`     // by running requests
	Resident        int `json:"resident"` // used and cached
	Running         int `json:"running"`  // requests
	Queued          int `json:"queued"`   // requests, in the engines' own queues
	Evicted         int `json:"evicted"`
	Released        int `json:"released"`   // freed by closes of sessions
	Recomputed      int `json:"recomputed"` // computed again after having been computed before
	Retractions     int `json:"retractions"`
	PrefillComputed int `json:"prefillComputed"`
	PrefillCached   int `json:"prefillCached"`
	Decoded         int `json:"decoded"`
}

// Stats is the state of the fleet now; the counters run since its start.
func (f *Fleet) Stats() FleetStats {
	var sum FleetStats
	for _, e := range f.engines {
		s := e.Stats()
		sum.Capacity += s.Capacity
		sum.Used += s.Used
		sum.Resident += s.Resident
		sum.Running += s.Running
		sum.Queued += s.Queued
		sum.Evicted += s.Evicted
		sum.Released += s.Released
		sum.Recomputed += s.Recomputed
		sum.Retractions += s.Retracted
		sum.PrefillComputed += s.PrefillComputed
		sum.PrefillCached += s.PrefillCached
		sum.Decoded += s.Decoded
	}
	return sum
}

// HitRate is the share of prompt tokens that came from the prefix cache, 0 to 1; 0 before the first.
func (s FleetStats) HitRate() float64 {
	if total := s.PrefillCached + s.PrefillComputed; total > 0 {
		return float64(s.PrefillCached) / float64(total)
	}
	return 0
}
