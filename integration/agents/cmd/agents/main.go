// Command agents runs the demo's workload of agentic rollouts against a kvgate cluster and a router that
// run already, and says at the end what the agents and the client have seen. It ends with an error when a
// turn failed. Interrupting it ends the run early.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"kvgate/integration/agents"
	"kvgate/rpc/client"
)

// closeLimit bounds how long the last releases may take.
const closeLimit = 15 * time.Second

// errTurns: not every turn of the plan was made, or one of them only at a second attempt.
var errTurns = errors.New("turns failed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if code := exitCode(run(ctx, os.Args[1:], os.Stdout), os.Stderr); code != 0 {
		stop()
		os.Exit(code)
	}
}

// exitCode says on stderr what went wrong. A call for help is no failure; the flag set has answered it.
func exitCode(err error, stderr io.Writer) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(stderr, "agents:", err)
	return 1
}

// options are the flags.
type options struct {
	servers, router, pool string
	agents, turns         int
	seed                  uint64
	speed                 float64
}

func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("agents", flag.ContinueOnError)
	fs.StringVar(&o.servers, "servers", "http://127.0.0.1:7070", "URLs of the kvgate nodes, separated by commas")
	fs.StringVar(&o.router, "router", "", "URL of the router to generate with (required)")
	fs.StringVar(&o.pool, "pool", "", "pool to ask for leases; empty means default")
	fs.IntVar(&o.agents, "agents", 40, "sessions, all at work at once")
	fs.IntVar(&o.turns, "turns", 10, "generate calls of each session")
	fs.Uint64Var(&o.seed, "seed", 1, "what the sessions say and how long their tools take depends on it")
	fs.Float64Var(&o.speed, "speed", 10, "seconds of engine time per second; the engines' --speed")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("argument %q: there are only flags", fs.Arg(0))
	case o.router == "":
		return o, errors.New("--router is missing, want the URL of a router, http://HOST:PORT")
	case o.agents < 1 || o.turns < 1:
		return o, fmt.Errorf("--agents %d, --turns %d: want 1 or more", o.agents, o.turns)
	}
	return o, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	plan, err := agents.NewPlan(agents.Workload{Agents: o.agents, Turns: o.turns, Seed: o.seed})
	if err != nil {
		return err
	}
	c, err := client.New(strings.Split(o.servers, ","))
	if err != nil {
		return err
	}
	// Runs of one seed ask for the same tickets; the holder's name is of this process alone.
	r, err := agents.New(agents.Config{
		Plan: plan, RouterURL: o.router, Speed: o.speed, Gate: agents.ClientGate(c, o.pool), Prefix: c.Holder() + "-",
	})
	if err == nil {
		err = r.Do(ctx)
	}
	err = errors.Join(err, closeClient(c))
	if r == nil {
		return err
	}
	return errors.Join(err, report(out, r.Result(), c.Stats()))
}

// closeClient waits for the last releases, also when the run was interrupted.
func closeClient(c *client.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	return c.Close(ctx)
}

// report prints the sums of a run, and returns an error when a turn failed.
func report(out io.Writer, res agents.Result, s client.Stats) error {
	p := func(name, format string, args ...any) {
		fmt.Fprintf(out, "%-16s"+format+"\n", append([]any{name}, args...)...)
	}
	p("turns", "%d of %d", res.Turns, res.Planned)
	p("errors", "%d sessions gave up, %d calls made again", res.Failed, res.Retries)
	p("engine time", "%v, %.2f turns/s", res.Elapsed.Round(time.Millisecond), res.TurnsPerSecond())
	p("turn", "mean %v, p95 %v, of it queued %v, asking %v", res.MeanLatency.Round(time.Millisecond),
		res.P95Latency.Round(time.Millisecond), res.MeanQueued.Round(time.Millisecond), res.MeanAsking.Round(time.Millisecond))
	p("admitted", "%d", s.Admitted)
	p("waited", "%d", s.Waited)
	p("bypassed", "%s", reasons(s.Bypassed))
	p("degraded", "%d by the client itself", s.Degraded)
	p("retries", "%d, of releases %d", s.Retries, s.ReleaseRetries)
	p("released", "%d", s.Released)
	p("cancelled", "%d", s.Cancelled)
	p("unsettled", "%d", s.Unsettled)
	p("lost", "%d", s.Lost)
	p("heartbeats", "%d", s.Heartbeats)
	p("client errors", "%d", s.Errors)
	if !res.Complete() || res.Failed > 0 || res.Retries > 0 || s.Errors > 0 {
		return fmt.Errorf("%w: %d of %d made, %d sessions gave up, %d calls made again, %d client errors",
			errTurns, res.Turns, res.Planned, res.Failed, res.Retries, s.Errors)
	}
	return nil
}

// reasons lists bypasses by reason, e.g. "aged 3, degraded 1".
func reasons(counts map[client.Reason]int64) string {
	var list []string
	for reason, n := range counts {
		name := strings.ToLower(strings.TrimPrefix(reason.String(), "REASON_"))
		list = append(list, fmt.Sprintf("%s %d", name, n))
	}
	if len(list) == 0 {
		return "0"
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
