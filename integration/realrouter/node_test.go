package realrouter

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/integration/enginesim"
	"kvgate/integration/procs"
	v1 "kvgate/rpc/kvgate/v1"
	"kvgate/rpc/kvgate/v1/kvgatev1connect"
)

// headroom is the share of the capacity that may be reserved, the default.
const headroom = 0.9

// pollInterval lets kvgate look more often than by default, so that the tests wait less.
const pollInterval = 250 * time.Millisecond

// node is a kvgate process that was told of a router.
type node struct {
	t         *testing.T
	admission kvgatev1connect.AdmissionServiceClient
	cluster   kvgatev1connect.ClusterServiceClient
	observe   kvgatev1connect.ObserveServiceClient
	sessions  kvgatev1connect.SessionServiceClient
}

// startNode starts a cluster of one node on the router and waits until it decides.
func startNode(t *testing.T, r *router) *node {
	t.Helper()
	p := procs.StartNode(t, procs.Node{ID: "n1", DataDir: t.TempDir(), Args: []string{"--bootstrap", "--router", r.url}})
	procs.WaitReady(t, p.URL())
	client := &http.Client{Timeout: limit, Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	n := &node{
		t:         t,
		admission: kvgatev1connect.NewAdmissionServiceClient(client, p.URL()),
		cluster:   kvgatev1connect.NewClusterServiceClient(client, p.URL()),
		observe:   kvgatev1connect.NewObserveServiceClient(client, p.URL()),
		sessions:  kvgatev1connect.NewSessionServiceClient(client, p.URL()),
	}
	must(t, n.cluster.UpdateSettings, &v1.UpdateSettingsRequest{
		Settings: &v1.Settings{PollInterval: durationpb.New(pollInterval)},
	})
	return n
}

// engine starts a simulated engine whose DP ranks have a pool of so many tokens each.
func engine(t *testing.T, pool, dp int) *enginesim.Engine {
	t.Helper()
	e, err := enginesim.New(enginesim.Config{PoolTokens: pool, DP: dp, EnableMetrics: true, Speed: 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	if _, err := e.Start(""); err != nil {
		t.Fatal(err)
	}
	return e
}

// must makes a call that may not fail.
func must[Req, Res any](t *testing.T, call func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error), req *Req) *Res {
	t.Helper()
	res, err := call(t.Context(), connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	return res.Msg
}

func (n *node) budget() *v1.GetBudgetResponse {
	n.t.Helper()
	return must(n.t, n.observe.GetBudget, &v1.GetBudgetRequest{})
}

func (n *node) engines() *v1.ListEnginesResponse {
	n.t.Helper()
	return must(n.t, n.observe.ListEngines, &v1.ListEnginesRequest{})
}

// engine returns what kvgate knows of an engine, nil when it knows none of that URL.
func (n *node) engine(url string) *v1.Engine {
	n.t.Helper()
	for _, e := range n.engines().Engines {
		if e.Url == url {
			return e
		}
	}
	return nil
}

// awaitEpoch waits for the next epoch, which must come with the ceiling of healthy engines that have
// so many tokens together.
func (n *node) awaitEpoch(epoch int64, capacity int) {
	n.t.Helper()
	var b *v1.GetBudgetResponse
	procs.Eventually(n.t, limit, func() bool {
		b = n.budget()
		return b.Epoch >= epoch
	}, func() string {
		return fmt.Sprintf("epoch is %d, want %d: %v; engines %v", b.Epoch, epoch, b, n.engines())
	})
	if want := int64(float64(capacity) * headroom); b.Epoch != epoch || b.Ceiling != want {
		n.t.Fatalf("epoch %d with a ceiling of %d tokens, want epoch %d and %d: engines %v", b.Epoch, b.Ceiling, epoch, want, n.engines())
	}
}

// awaitEngine waits until what kvgate knows of an engine is as ok wants it.
func (n *node) awaitEngine(url, what string, ok func(*v1.Engine) bool) *v1.Engine {
	n.t.Helper()
	var e *v1.Engine
	procs.Eventually(n.t, limit, func() bool {
		e = n.engine(url)
		return ok(e)
	}, func() string { return fmt.Sprintf("engine %s is not %s: %v", url, what, e) })
	return e
}

// awaitDegraded waits until the pool is degraded, or is not.
func (n *node) awaitDegraded(want bool) *v1.GetBudgetResponse {
	n.t.Helper()
	var b *v1.GetBudgetResponse
	procs.Eventually(n.t, limit, func() bool {
		b = n.budget()
		return b.Degraded == want
	}, func() string { return fmt.Sprintf("degraded is %v, want %v: %v", b.Degraded, want, b) })
	return b
}

// acquire asks for a lease of so many tokens.
func (n *node) acquire(ticket string, tokens int64) *v1.AcquireResponse {
	n.t.Helper()
	return must(n.t, n.admission.Acquire, &v1.AcquireRequest{TicketId: ticket, ReservationTokens: &tokens})
}

// events returns the kinds of the pool's journal, oldest first, of those named.
func (n *node) events(kinds ...string) (found []string) {
	n.t.Helper()
	for _, e := range must(n.t, n.observe.ReadJournal, &v1.ReadJournalRequest{Pool: "default", Kinds: kinds}).Events {
		found = append(found, e.Kind)
	}
	return found
}

// generateUnderLease sends one generation through the router while a lease for it is held.
func generateUnderLease(t *testing.T, n *node, r *router) {
	t.Helper()
	const tokens, reserve = 32, 1000
	lease := n.acquire(t.Name(), reserve)
	if lease.Action != v1.Action_ACTION_ADMIT || lease.LeaseId == "" {
		t.Fatalf("acquire answers %v, want a lease", lease)
	}
	got := r.generate(tokens)
	if b := n.budget(); got != tokens || b.Reserved != reserve || b.Leases != 1 {
		t.Errorf("%d tokens generated under %d leases of %d tokens, want %d under one of %d", got, b.Leases, b.Reserved, tokens, reserve)
	}
	released := must(t, n.admission.Release, &v1.ReleaseRequest{TicketId: t.Name(), Grant: lease.Grant})
	if b := n.budget(); !released.Released || b.Reserved != 0 {
		t.Errorf("released is %v and %d tokens stay reserved, want true and 0", released.Released, b.Reserved)
	}
}
