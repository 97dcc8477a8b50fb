package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kvgate/integration/agents"
)

const demoHelp = `Runs everything in this one process: a real node with a temporary data directory, a simulated
SGLang router with simulated engines behind it, and agents that generate, run tools and generate again.
It makes the same workload with admission off and with admission on, on fresh engines each, first with
a KV pool that is large enough and then with one that is not, and compares what was measured. In a
second act agents end, their sessions are closed, and others follow: with lifecycle off, when engines
hear nothing of that, and on, when they free the KV.

Engines and tools run --speed times as fast as the clock on the wall; durations and rates are engine
time. The pool has its default settings; those that are times (max wait, poll interval) are divided by
the speed, so that they are the defaults in engine time.

Ctrl-C ends it at any time.`

const demoExample = `  kvgate demo
  kvgate demo --agents 400 --engines 8 --keep
  kvgate demo --pool-tokens 150000 --output json`

// demoOptions are the flags of `kvgate demo`.
type demoOptions struct {
	agents     int
	engines    int
	turns      int
	poolTokens int64
	speed      float64
	seed       uint64
	duration   time.Duration
	listen     string
	compare    bool
	keep       bool
	output     string

	listenGiven bool
}

func newDemoCommand(m *Main) *cobra.Command {
	o := &demoOptions{}
	cmd := &cobra.Command{
		Use: "demo", GroupID: groupServer, Short: "Run a node with a simulated fleet and agents, and compare admission off and on",
		Long: demoHelp, Example: demoExample, Args: maxArgs(0, "flags only"),
	}
	cmd.Flags().AddFlagSet(o.flags())
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
		o.listenGiven = cmd.Flags().Changed("listen")
		if err := o.validate(); err != nil {
			return err
		}
		return runDemo(ctx, m, *o)
	})
	return cmd
}

func (o *demoOptions) flags() *pflag.FlagSet {
	fs := pflag.NewFlagSet("demo", pflag.ContinueOnError)
	fs.IntVar(&o.agents, "agents", 200, "agent sessions, all at work at once")
	fs.IntVar(&o.engines, "engines", 4, "simulated engines")
	fs.IntVar(&o.turns, "turns", 10, "generate calls of each session")
	countVar(fs, &o.poolTokens, "pool-tokens", 0, "KV pool of each engine; 0 compares one that is large enough with one that is not")
	fs.Float64Var(&o.speed, "speed", 15, "seconds of engine time per second")
	fs.Uint64Var(&o.seed, "seed", 1, "of the workload and the answers")
	fs.DurationVar(&o.duration, "duration", 5*time.Minute, "longest time for the comparison")
	fs.StringVar(&o.listen, "listen", "127.0.0.1:7070", "HOST:PORT of the API and the web page; a free port when this one is taken")
	fs.BoolVar(&o.compare, "compare", true, "run the workload without admission too, and compare")
	fs.BoolVar(&o.keep, "keep", false, "go on with agents at work until Ctrl-C; only on a terminal")
	choiceVar(fs, &o.output, "output", outputTable, "form of the result; json leaves the progress to stderr", outputTable, outputJSON)
	allow(fs, "speed", "a number from 0.1 to 1000")
	return fs
}

func (o *demoOptions) validate() error {
	for _, f := range []struct {
		name       string
		value, max int
	}{{"agents", o.agents, 10_000}, {"engines", o.engines, 64}, {"turns", o.turns, 1000}} {
		if f.value < 1 || f.value > f.max {
			return badValue(f.name, fmt.Sprint(f.value), fmt.Sprintf("a whole number from 1 to %d", f.max))
		}
	}
	switch {
	case !(o.speed >= 0.1 && o.speed <= 1000):
		return badValue("speed", fmt.Sprint(o.speed), "a number from 0.1 to 1000")
	case o.duration <= 0:
		return badValue("duration", o.duration.String(), "a duration above 0s such as 5m")
	case !validAddress(o.listen) || !loopback(o.listen):
		return badValue("listen", o.listen, "a loopback HOST:PORT such as 127.0.0.1:7070: a demo asks nobody for a token")
	}
	return nil
}

// demo is one run of the command.
type demo struct {
	demoOptions
	m    *Main
	out  io.Writer // progress
	plan *agents.Plan
	node *demoNode
}

// runDemo starts the node, runs the regimes and prints the comparison. An interrupt is no failure.
func runDemo(ctx context.Context, m *Main, o demoOptions) (err error) {
	plan, err := agents.NewPlan(agents.Workload{Agents: o.agents, Turns: o.turns, Seed: o.seed})
	if err != nil {
		return err
	}
	d := &demo{demoOptions: o, m: m, out: m.stdout, plan: plan}
	if o.output == outputJSON {
		d.out = m.stderr
	}
	regimes, err := d.regimes()
	if err != nil {
		return err
	}
	if d.node, err = startDemoNode(ctx, m, o); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.node.close()) }()
	d.printIntro(regimes)
	results, err := d.runAll(ctx, regimes)
	if err != nil {
		return err
	}
	if err := d.printResults(results); err != nil {
		return err
	}
	if results.partial != "" && ctx.Err() == nil {
		return errDemoTooLong
	}
	return d.keepGoing(ctx, regimes[len(regimes)-1])
}

// runAll runs the regimes in order within --duration. Running out of time and an interrupt are no
// errors here: they leave results that are partial.
func (d *demo) runAll(ctx context.Context, regimes []regime) (*demoResults, error) {
	bounded, cancel := context.WithTimeout(ctx, d.duration)
	defer cancel()
	all := &demoResults{options: d.demoOptions, compare: d.compare}
	for _, r := range regimes {
		pair := &pairResult{regime: r}
		all.pairs = append(all.pairs, pair)
		for _, on := range d.arms() {
			arm, err := d.runArm(bounded, armConfig{regime: r, admission: on, label: r.name + "-" + onOff(on)})
			if arm != nil {
				pair.add(arm)
			}
			if bounded.Err() != nil {
				all.partial = partialReason(ctx, d.duration)
				return all, nil
			}
			if err != nil {
				return all, err
			}
		}
	}
	return all, d.secondAct(ctx, bounded, all)
}

// secondAct adds what the second act measured, as far as there is time for it.
func (d *demo) secondAct(ctx, bounded context.Context, all *demoResults) (err error) {
	if !d.compare {
		return nil
	}
	if all.act, err = d.newAct(); err != nil {
		return err
	}
	d.printActIntro(all.act)
	err = d.runAct(bounded, all.act)
	if bounded.Err() != nil {
		all.partial = partialReason(ctx, d.duration)
		return nil
	}
	return err
}

func partialReason(ctx context.Context, bound time.Duration) string {
	if ctx.Err() != nil {
		return "interrupted"
	}
	return "not finished within --duration " + bound.String()
}

// arms are the values of admission that a regime runs with, in order.
func (d *demo) arms() []bool {
	if d.compare {
		return []bool{false, true}
	}
	return []bool{true}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// regime is one size of the engines' KV pools.
type regime struct {
	name string
	pool int // tokens of each engine
}

// tightShare is the tight pools' share of the bound on all histories, which is what the roomy pools have.
// The bound takes every answer for as long as it may get; real histories add up to some 0.6 of it, so
// they need two to three times the tight pools.
const tightShare = 0.25

// errDemoTooLong ends a demo whose comparison needs more than --duration.
var errDemoTooLong = errors.New("the comparison did not finish within --duration; raise it, or --speed")

// regimes are the pool sizes to run, in order.
func (d *demo) regimes() ([]regime, error) {
	bound := d.plan.AllContexts()
	least := d.plan.LargestContext() + d.plan.Workload.MaxNewTokens
	if d.poolTokens > 0 {
		if d.poolTokens < int64(least) || d.poolTokens > 1<<40 {
			return nil, badValue("pool-tokens", fmt.Sprint(d.poolTokens),
				fmt.Sprintf("0, or at least %d, which the longest history needs, and at most 2^40", least))
		}
		return []regime{{"given", int(d.poolTokens)}}, nil
	}
	tight := regime{"tight", max(int(float64(bound)*tightShare)/d.engines, least)}
	if !d.compare {
		return []regime{tight}, nil
	}
	return []regime{{"roomy", max(bound/d.engines, least)}, tight}, nil
}

// keepGoing runs agents on one fleet again and again until ctx ends, so that others can send requests to
// its router too. It does nothing without a terminal: nobody could end it.
func (d *demo) keepGoing(ctx context.Context, r regime) (err error) {
	if !d.keep || ctx.Err() != nil || !isTerminal(d.m.stdout) {
		return nil
	}
	fleet, err := d.startFleet(r, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.Close()) }()
	fmt.Fprintf(d.out, "\nAgents stay at work with admission on. Web page: %s   Router: %s   Ctrl-C ends it.\n",
		d.node.url(), fleet.RouterURL())
	for round := 1; ctx.Err() == nil; round++ {
		label := fmt.Sprintf("keep-%d", round)
		cfg := armConfig{regime: r, admission: true, lifecycle: true, label: label, engines: fleet}
		if _, err := d.runArm(ctx, cfg); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
