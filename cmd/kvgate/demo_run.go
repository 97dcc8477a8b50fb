package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"kvgate/integration/agents"
	"kvgate/ledger"
	rpcclient "kvgate/rpc/client"
)

// armConfig is one run of the workload.
type armConfig struct {
	regime    regime
	admission bool
	// lifecycle: engines are told of sessions that are closed.
	lifecycle bool
	label     string // also keeps the session ids of runs apart
	// engines are those of an earlier run, which keep their caches and counters; nil means fresh ones.
	engines *agents.Fleet
}

// armResult is what one run measured.
type armResult struct {
	admission bool
	run       agents.Result
	fleet     agents.FleetStats
	gate      rpcclient.Stats // zero with admission off
}

// arm is a run in progress.
type arm struct {
	armConfig
	d     *demo
	fleet *agents.Fleet
	run   *agents.Run
	gate  *rpcclient.Client // nil with admission off
	live  live

	plan     *agents.Plan
	parallel int // agents at work at once; 0 means all, and that none closes its session
}

// runArm runs the workload once. When ctx ends it returns what was measured until
// then, with the error of ctx; the result is nil when nothing ran.
func (d *demo) runArm(ctx context.Context, cfg armConfig) (_ *armResult, err error) {
	a := &arm{armConfig: cfg, d: d, plan: d.plan}
	defer func() { err = errors.Join(err, a.close()) }()
	if err := a.start(ctx); err != nil {
		return nil, err
	}
	return a.watch(ctx)
}

func (a *arm) start(ctx context.Context) (err error) {
	a.fleet = a.engines
	if a.fleet == nil {
		a.fleet, err = a.d.startFleet(a.regime, a.parallel > 0)
	}
	if err != nil {
		return err
	}
	if err := a.d.node.point(ctx, a.fleet, a.armConfig, a.d.speed); err != nil {
		return err
	}
	var gate agents.Gate
	if a.admission {
		a.gate, err = rpcclient.New([]string{a.d.node.url()},
			rpcclient.WithDefaultMaxWait(demoMaxWait(a.d.speed)), rpcclient.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			return err
		}
		gate = agents.ClientGate(a.gate, ledger.DefaultPool)
	}
	cfg := agents.Config{
		Plan: a.plan, RouterURL: a.fleet.RouterURL(), Speed: a.d.speed, Gate: gate, Prefix: a.label + "-", Parallel: a.parallel,
	}
	if a.parallel > 0 {
		cfg.End = closer(a.gate)
	}
	a.run, err = agents.New(cfg)
	return err
}

func (d *demo) startFleet(r regime, tagSessions bool) (*agents.Fleet, error) {
	return agents.StartFleet(agents.FleetConfig{
		Engines: d.engines, PoolTokens: r.pool, Speed: d.speed, Seed: d.seed, TagSessions: tagSessions,
	})
}

// watch runs the workload and prints a line every second.
func (a *arm) watch(ctx context.Context) (*armResult, error) {
	finished := make(chan error, 1)
	go func() { finished <- a.run.Do(ctx) }()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	a.live.begin(a)
	for {
		select {
		case <-ticker.C:
			a.live.line(ctx, a)
		case err := <-finished:
			a.live.line(context.WithoutCancel(ctx), a)
			return a.result(), err
		}
	}
}

func (a *arm) result() *armResult {
	r := &armResult{admission: a.admission, run: a.run.Result(), fleet: a.fleet.Stats()}
	if a.gate != nil {
		r.gate = a.gate.Stats()
	}
	return r
}

// close ends what start made. Releases that are under way are waited for.
func (a *arm) close() error {
	var errs []error
	if a.gate != nil {
		ctx, cancel := context.WithTimeout(context.Background(), demoCall)
		defer cancel()
		errs = append(errs, a.gate.Close(ctx))
	}
	if a.fleet != nil && a.engines == nil {
		errs = append(errs, a.fleet.Close())
	}
	return errors.Join(errs...)
}

// bypasses words why calls went ahead without a lease: "12 aged, 1 degraded".
func bypasses(s rpcclient.Stats) string {
	var words []string
	for _, reason := range slices.Sorted(maps.Keys(s.Bypassed)) {
		words = append(words, fmt.Sprintf("%d %s", s.Bypassed[reason], word(reason)))
	}
	return joinOr(words, "none")
}
