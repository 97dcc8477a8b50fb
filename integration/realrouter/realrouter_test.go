package realrouter

import (
	"slices"
	"strings"
	"testing"

	"kvgate/integration/enginesim"
	"kvgate/integration/procs"
	v1 "kvgate/rpc/kvgate/v1"
)

func TestMain(m *testing.M) { procs.Main(m) }

// Pools of the engines, in tokens. No sum of them times the headroom is whole, so that rounding shows.
const poolA, poolB, poolC = 100_003, 50_001, 70_007

func onEach(t *testing.T, f func(t *testing.T, b brand)) {
	for _, b := range brands {
		t.Run(b.name, func(t *testing.T) { f(t, b) })
	}
}

func unhealthy(e *v1.Engine) bool { return e != nil && !e.Healthy && e.Error != "" }
func unknown(e *v1.Engine) bool   { return e == nil }

// TestEnginesComeAndGo: an engine that the router had at the start, one that joins and is removed while
// it lives, and one that joins and dies.
func TestEnginesComeAndGo(t *testing.T) {
	onEach(t, func(t *testing.T, b brand) {
		first := engine(t, poolA, 1)
		r := b.start(t, []string{first.URL()})
		n := startNode(t, r)
		epoch := n.awaitDegraded(false).Epoch
		n.awaitEpoch(epoch, poolA)
		if got := n.engines(); got.Discovery != "router /workers" || len(got.Engines) != 1 || got.Engines[0].CapacityTokens != poolA {
			t.Fatalf("engines are %v, want one of %d tokens from router /workers", got, poolA)
		}
		generateUnderLease(t, n, r)

		removed := engine(t, poolB, 1)
		r.add(removed.URL())
		n.awaitEpoch(epoch+1, poolA+poolB)
		r.remove(removed.URL())
		n.awaitEpoch(epoch+2, poolA)
		n.awaitEngine(removed.URL(), "gone", unknown)

		dies := engine(t, poolC, 1)
		r.add(dies.URL())
		n.awaitEpoch(epoch+3, poolA+poolC)
		kill(t, dies)
		n.awaitEpoch(epoch+4, poolA)
		n.awaitEngine(dies.URL(), "unhealthy with a reason", unhealthy)
		r.remove(dies.URL())
		n.awaitEngine(dies.URL(), "gone", unknown)

		generateUnderLease(t, n, r)
		n.awaitEpoch(epoch+4, poolA)
		if events := n.events("degraded", "recovered"); !slices.Equal(events, []string{"recovered"}) {
			t.Errorf("journal tells of %v, want one recovery at the start and no degradation while an engine lives", events)
		}
	})
}

// TestRanksAreOneEngine: a router that schedules by DP rank lists every rank; kvgate knows one engine.
func TestRanksAreOneEngine(t *testing.T) {
	const ranks = 2
	onEach(t, func(t *testing.T, b brand) {
		e := engine(t, poolB, ranks)
		r := b.start(t, []string{e.URL()}, "--dp-aware")
		procs.Eventually(t, limit, func() bool { return len(r.workers(e.URL())) == ranks }, func() string { return "router does not list the ranks" })
		var listed []string
		for _, w := range r.workers("") {
			listed = append(listed, strings.TrimPrefix(w.URL, e.URL()))
		}
		if slices.Sort(listed); !slices.Equal(listed, []string{"@0", "@1"}) {
			t.Fatalf("router lists %v, want @0 and @1 of %s", listed, e.URL())
		}
		n := startNode(t, r)
		epoch := n.awaitDegraded(false).Epoch
		n.awaitEpoch(epoch, ranks*poolB)
		if got := n.engines().Engines; len(got) != 1 || got[0].Url != e.URL() || got[0].DpRanks != ranks || got[0].CapacityTokens != ranks*poolB {
			t.Fatalf("engines are %v, want %s alone with %d ranks and %d tokens", got, e.URL(), ranks, ranks*poolB)
		}
		generateUnderLease(t, n, r)

		second := engine(t, poolC, 1)
		r.add(second.URL())
		n.awaitEpoch(epoch+1, ranks*poolB+poolC)
		r.remove(e.URL())
		if b.removesRanks {
			n.awaitEpoch(epoch+2, poolC)
			n.awaitEngine(e.URL(), "gone", unknown)
			return
		}
		// The router goes on listing what it was asked to remove, so only the engine's death ends it.
		kill(t, e)
		n.awaitEpoch(epoch+2, poolC)
		if got := r.workers(e.URL()); len(got) != ranks {
			t.Errorf("router lists %v after the removal of all ranks; the package comment says that it keeps them", got)
		}
	})
}

// TestWithoutEngines: a router that has none, then one, then a dead one. Work goes ahead meanwhile.
func TestWithoutEngines(t *testing.T) {
	onEach(t, func(t *testing.T, b brand) {
		r := b.start(t, nil)
		n := startNode(t, r)
		const why = "router /workers lists no workers"
		procs.Eventually(t, limit, func() bool { return n.budget().DegradedReason == why },
			func() string { return "the reason is " + n.budget().DegradedReason + ", want " + why })
		goesAhead(t, n, "before")

		e := engine(t, poolA, 1)
		r.add(e.URL())
		n.awaitEpoch(n.awaitDegraded(false).Epoch, poolA)
		generateUnderLease(t, n, r)

		kill(t, e)
		n.awaitDegraded(true)
		procs.Eventually(t, limit, func() bool { return n.budget().Ceiling == 0 },
			func() string { return "there is a ceiling without a healthy engine" })
		n.awaitEngine(e.URL(), "unhealthy with a reason", unhealthy)
		goesAhead(t, n, "after")
	})
}

func kill(t *testing.T, e *enginesim.Engine) {
	t.Helper()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

func goesAhead(t *testing.T, n *node, ticket string) {
	t.Helper()
	if got := n.acquire(ticket, 1000); got.Action != v1.Action_ACTION_BYPASS || got.Reason != v1.Reason_REASON_DEGRADED {
		t.Errorf("acquire answers %v, want to bypass as degraded", got)
	}
}

// TestACloseReachesEachEngineOnce although the router lists every DP rank: an engine passes a close on to
// its ranks by itself.
func TestACloseReachesEachEngineOnce(t *testing.T) {
	const ranks = 2
	onEach(t, func(t *testing.T, b brand) {
		engines := []*enginesim.Engine{engine(t, poolA, ranks), engine(t, poolB, ranks)}
		r := b.start(t, []string{engines[0].URL(), engines[1].URL()}, "--dp-aware")
		procs.Eventually(t, limit, func() bool { return len(r.workers("")) == len(engines)*ranks }, func() string { return "router does not list the ranks" })
		n := startNode(t, r)
		n.awaitEpoch(n.awaitDegraded(false).Epoch, ranks*(poolA+poolB))
		for _, session := range []string{"s1", "s2"} {
			lease := must(t, n.admission.Acquire, &v1.AcquireRequest{TicketId: session + ":0", SessionId: session, PromptTokens: 100})
			must(t, n.admission.Release, &v1.ReleaseRequest{TicketId: session + ":0", Grant: lease.Grant})
			got := must(t, n.sessions.CloseSession, &v1.CloseSessionRequest{SessionId: session, Wait: true}).Session
			if got.State != v1.SessionState_SESSION_STATE_CLOSED || got.Acknowledged != int64(len(engines)) {
				t.Errorf("session is %v, want closed and acknowledged by %d engines", got, len(engines))
			}
		}
		for _, e := range engines {
			if got := e.ClosedSessions(); !slices.Equal(got, []string{"s1", "s2"}) {
				t.Errorf("%s heard closes of %v, want s1 and s2 once each", e.URL(), got)
			}
		}
	})
}
