package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"kvgate/integration/agents"
	"kvgate/ledger"
	rpcclient "kvgate/rpc/client"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const (
	// shiftShare is the share of the second act's agents that are at work at once: the others follow as
	// those end, so that the engines always hold both live and finished sessions.
	shiftShare = 4
	// curveEvery is how often the resident tokens are read, by the clock.
	curveEvery = 100 * time.Millisecond
	// closesBound is how long the closes of the last agents are waited for, by the clock.
	closesBound = 10 * time.Second
)

// act is the second act of the demo: agents end, and their sessions are closed. It runs with lifecycle off,
// when engines hear nothing of that, and on.
type act struct {
	plan     *agents.Plan
	parallel int
	pool     int // tokens of each engine
	off, on  *actResult
}

// actResult is what one run of the second act measured.
type actResult struct {
	lifecycle bool
	run       agents.Result
	fleet     agents.FleetStats
	curve     curve
	// closed sessions, and the engine closes that were acknowledged; owed is what still was at the end.
	closed, acknowledged, owed int
}

// newAct plans the second act: shorter agents than in the first, a share of them at work at once, and pools
// that hold the longest histories of those at work, but not of all that were.
func (d *demo) newAct() (*act, error) {
	plan, err := agents.NewPlan(agents.Workload{Agents: d.agents, Turns: max(1, d.turns/2), Seed: d.seed})
	if err != nil {
		return nil, err
	}
	parallel := max(1, d.agents/shiftShare)
	least := plan.LargestContext() + plan.Workload.MaxNewTokens
	return &act{plan: plan, parallel: parallel, pool: max(plan.AllContexts()*parallel/d.agents/d.engines, least)}, nil
}

// runAct runs the second act with lifecycle off and on. What was measured until ctx ended stays in a.
func (d *demo) runAct(ctx context.Context, a *act) error {
	for _, on := range []bool{false, true} {
		r, err := d.runShift(ctx, a, on)
		if r != nil && on {
			a.on = r
		} else if r != nil {
			a.off = r
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// runShift runs the second act's workload once.
func (d *demo) runShift(ctx context.Context, act *act, lifecycle bool) (_ *actResult, err error) {
	a := &arm{d: d, armConfig: armConfig{
		regime: regime{"sessions", act.pool}, admission: true, lifecycle: lifecycle, label: "closes-" + onOff(lifecycle),
	}}
	defer func() { err = errors.Join(err, a.close()) }()
	a.plan, a.parallel = act.plan, act.parallel
	if err := a.start(ctx); err != nil {
		return nil, err
	}
	r := &actResult{lifecycle: lifecycle}
	stop := r.curve.follow(a)
	_, err = a.watch(ctx)
	if err == nil {
		err = r.awaitCloses(ctx, a)
	}
	stop()
	r.run, r.fleet = a.run.Result(), a.fleet.Stats()
	return r, err
}

// closer returns what closes the sessions of agents that end.
func closer(gate *rpcclient.Client) func(session string) {
	return func(session string) { gate.CloseSession(ledger.DefaultPool, session, rpcclient.Join) }
}

// awaitCloses waits until all sessions of the run are closed, and counts what engines acknowledged.
func (r *actResult) awaitCloses(ctx context.Context, a *arm) error {
	bounded, cancel := context.WithTimeout(ctx, closesBound)
	defer cancel()
	err := a.d.node.until(bounded, func() error {
		open, err := r.count(bounded, a)
		if err == nil && open > 0 {
			err = errSessionsOpen
		}
		return err
	})
	if errors.Is(err, errSessionsOpen) && ctx.Err() == nil {
		return nil // the result says what is owed
	}
	return err
}

var errSessionsOpen = errors.New("sessions are not closed yet")

// count looks at all sessions of the run and returns how many are not closed.
func (r *actResult) count(ctx context.Context, a *arm) (open int, err error) {
	r.closed, r.acknowledged, r.owed = 0, 0, 0
	req := &kvgatev1.ListSessionsRequest{Pool: ledger.DefaultPool}
	for {
		page, err := a.d.node.watch.Sessions().ListSessions(ctx, connect.NewRequest(req))
		if err != nil {
			return 0, err
		}
		for _, s := range page.Msg.Sessions {
			if !strings.HasPrefix(s.SessionId, a.label+"-") {
				continue
			}
			r.acknowledged += int(s.Acknowledged)
			r.owed += len(s.Owed)
			if s.State >= kvgatev1.SessionState_SESSION_STATE_CLOSED {
				r.closed++
			}
		}
		if req.PageToken = page.Msg.NextPageToken; req.PageToken == "" {
			return a.plan.Workload.Agents - r.closed, nil
		}
	}
}

// curve is the resident tokens over the time of a run.
type curve struct {
	mu     sync.Mutex
	points []point
}

// point is one reading; engine time.
type point struct {
	at       time.Duration
	resident int
}

// follow reads the fleet until stop is called.
func (c *curve) follow(a *arm) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(curveEvery)
		defer ticker.Stop()
		for {
			c.add(point{a.run.Elapsed(), a.fleet.Stats().Resident})
			select {
			case <-ticker.C:
			case <-end:
				c.add(point{a.run.Elapsed(), a.fleet.Stats().Resident})
				return
			}
		}
	}()
	return func() { close(end); <-ended }
}

func (c *curve) add(p point) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.points = append(c.points, p)
}

// last returns the newest reading.
func (c *curve) last() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.points[len(c.points)-1].resident
}

// at returns the resident tokens at a time: the newest reading until then.
func (c *curve) at(t time.Duration) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	resident := 0
	for _, p := range c.points {
		if p.at > t {
			break
		}
		resident = p.resident
	}
	return resident
}
