package agents

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// small is a workload that a test gets through in a moment.
var small = Workload{Agents: 12, Turns: 3, Seed: 5, SystemTokens: 50, TaskTokens: 100, ToolTokens: 80, MaxNewTokens: 64}

// testSpeed makes a turn of a small workload take milliseconds.
const testSpeed = 200

// runSmall runs the small workload on fresh engines with pools of the given size.
func runSmall(t *testing.T, pool int, gate Gate) (Result, FleetStats) {
	t.Helper()
	fleet := startTestFleet(t, pool)
	r := newTestRun(t, fleet.RouterURL(), gate)
	if err := r.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r.Result(), fleet.Stats()
}

func startTestFleet(t *testing.T, pool int) *Fleet {
	t.Helper()
	fleet, err := StartFleet(FleetConfig{Engines: 2, PoolTokens: pool, Speed: testSpeed, Seed: 5, AnswerMin: 8, AnswerMax: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fleet.Close(); err != nil {
			t.Error(err)
		}
	})
	return fleet
}

func newTestRun(t *testing.T, routerURL string, gate Gate) *Run {
	t.Helper()
	r, err := New(Config{Plan: newTestPlan(t, small), RouterURL: routerURL, Speed: testSpeed, Gate: gate, Prefix: "test-"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEveryTurnIsMadeOnce(t *testing.T) {
	res, stats := runSmall(t, 50_000, nil)
	if res.Turns != 36 || res.Planned != 36 || !res.Complete() || res.Retries != 0 || res.Failed != 0 {
		t.Errorf("result %+v, want 36 turns and no failures", res)
	}
	if stats.Decoded != res.Completion || stats.PrefillCached+stats.PrefillComputed != res.Prompt || stats.PrefillCached != res.Cached {
		t.Errorf("engines say %+v, sessions say %+v", stats, res)
	}
	if stats.Recomputed != 0 || stats.Evicted != 0 {
		t.Errorf("a pool that is large enough recomputed %d and evicted %d tokens", stats.Recomputed, stats.Evicted)
	}
	if res.MeanLatency <= 0 || res.P95Latency < res.MeanLatency/10 || res.Elapsed < res.MeanLatency || res.MeanQueued != 0 {
		t.Errorf("times %+v", res)
	}
}

// TestTheWorkDependsOnTheSeedAlone also with pools that thrash, and with a gate that slows things down.
func TestTheWorkDependsOnTheSeedAlone(t *testing.T) {
	roomy, _ := runSmall(t, 50_000, nil)
	tight, stats := runSmall(t, 1_500, nil)
	gated, _ := runSmall(t, 50_000, newTestGate(1))
	for name, other := range map[string]Result{"tight": tight, "gated": gated} {
		if other.Turns != roomy.Turns || other.Prompt != roomy.Prompt || other.Completion != roomy.Completion || other.Contexts != roomy.Contexts {
			t.Errorf("%s: %+v, want the work of %+v", name, other, roomy)
		}
	}
	if stats.Evicted == 0 || stats.Recomputed == 0 {
		t.Errorf("the tight pool did not thrash: %+v", stats)
	}
}

func TestContextsStayWithinTheirBounds(t *testing.T) {
	res, stats := runSmall(t, 50_000, nil)
	plan := newTestPlan(t, small)
	if res.Contexts > plan.AllContexts() || res.Contexts < plan.AllContexts()/4 || plan.LargestContext() > plan.AllContexts() {
		t.Errorf("contexts %d, bounds %d and %d", res.Contexts, plan.AllContexts(), plan.LargestContext())
	}
	// What stays cached is each history but for its last token, whose KV was never written; the system
	// prompt is cached once per engine.
	if most := res.Contexts + small.SystemTokens; stats.Resident > most || stats.Resident < res.Contexts-small.Agents {
		t.Errorf("%d tokens resident, histories have %d", stats.Resident, res.Contexts)
	}
}

// testGate lets limit calls through at a time and notes what it hears.
type testGate struct {
	slots chan struct{}
	on    func(released int) // called under the lock

	mu             sync.Mutex
	calls          map[string]Call
	released       map[string][]Usage
	inside, widest int
	total          int
}

func newTestGate(limit int) *testGate {
	return &testGate{slots: make(chan struct{}, limit), calls: map[string]Call{}, released: map[string][]Usage{}}
}

func (g *testGate) Acquire(ctx context.Context, call Call) (Permit, error) {
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls[call.Ticket] = call
	g.inside++
	g.widest = max(g.widest, g.inside)
	return &testPermit{g, call.Ticket}, nil
}

type testPermit struct {
	g      *testGate
	ticket string
}

func (p *testPermit) Release(used Usage) {
	p.g.mu.Lock()
	p.g.released[p.ticket] = append(p.g.released[p.ticket], used)
	p.g.inside--
	p.g.total++
	if p.g.on != nil {
		p.g.on(p.g.total)
	}
	p.g.mu.Unlock()
	<-p.g.slots
}

func (p *testPermit) Waited() time.Duration { return time.Millisecond }

func TestEveryCallIsAdmittedAndReleasedOnceWithWhatItUsed(t *testing.T) {
	gate := newTestGate(2)
	res, _ := runSmall(t, 50_000, gate)
	if len(gate.calls) != 36 || gate.widest > 2 || gate.inside != 0 {
		t.Errorf("%d tickets, %d inside at once, %d left", len(gate.calls), gate.widest, gate.inside)
	}
	prompt, completion := 0, 0
	for ticket, call := range gate.calls {
		used := gate.released[ticket]
		if len(used) != 1 || used[0].PromptTokens != call.PromptTokens || used[0].CompletionTokens > call.MaxNewTokens ||
			call.MaxNewTokens != 64 || (used[0].Outcome != "stop" && used[0].Outcome != "length") {
			t.Fatalf("%+v was released with %+v", call, used)
		}
		prompt += used[0].PromptTokens
		completion += used[0].CompletionTokens
	}
	if prompt != res.Prompt || completion != res.Completion {
		t.Errorf("released %d + %d tokens, sessions used %d + %d", prompt, completion, res.Prompt, res.Completion)
	}
	if res.MeanQueued != time.Millisecond*testSpeed {
		t.Errorf("mean time queued %v, want the gate's millisecond in engine time", res.MeanQueued)
	}
}

func TestAnEndOfTheContextEndsAllSessionsAndLeavesNoPermit(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	gate := newTestGate(3)
	gate.on = func(released int) {
		if released == 5 {
			cancel()
		}
	}
	r := newTestRun(t, startTestFleet(t, 50_000).RouterURL(), gate)
	if err := r.Do(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Do: %v, want context.Canceled", err)
	}
	res := r.Result()
	if res.Complete() || res.Turns < 4 || res.Failed != 0 || gate.inside != 0 {
		t.Errorf("%d permits left, result %+v", gate.inside, res)
	}
	if p := r.Progress(); p.AtEngine+p.AtGate+p.Tools != 0 {
		t.Errorf("sessions still at work: %+v", p)
	}
	if again := r.Result(); again.Elapsed != res.Elapsed {
		t.Error("time goes on after the end")
	}
}

var errGate = errors.New("gate is broken")

type brokenGate struct{}

func (brokenGate) Acquire(context.Context, Call) (Permit, error) { return nil, errGate }

func TestAGateThatFailsEndsTheSessions(t *testing.T) {
	r := newTestRun(t, startTestFleet(t, 50_000).RouterURL(), brokenGate{})
	if err := r.Do(t.Context()); !errors.Is(err, errGate) {
		t.Errorf("Do: %v, want the gate's error", err)
	}
	if res := r.Result(); res.Failed != 12 || res.Turns != 0 {
		t.Errorf("result %+v", res)
	}
}

// TestSessionsFollowEachOther: no more are at work than there are slots, and each tells of its end, once.
func TestSessionsFollowEachOther(t *testing.T) {
	const parallel = 3
	fleet := startTestFleet(t, 50_000)
	var (
		mu    sync.Mutex
		r     *Run
		ended = map[string]int{}
	)
	end := func(session string) {
		p := r.Progress()
		mu.Lock()
		defer mu.Unlock()
		ended[session]++
		if n := p.Tools + p.AtGate + p.AtEngine; n >= parallel {
			t.Errorf("%d others are at work when %s ends", n, session)
		}
	}
	var err error
	r, err = New(Config{Plan: newTestPlan(t, small), RouterURL: fleet.RouterURL(), Speed: testSpeed, Prefix: "test-", Parallel: parallel, End: end})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if res := r.Result(); len(ended) != small.Agents || !res.Complete() {
		t.Errorf("%d sessions told of their ends, want %d; %+v", len(ended), small.Agents, res)
	}
	for session, n := range ended {
		if n != 1 {
			t.Errorf("%s ended %d times", session, n)
		}
	}
}
