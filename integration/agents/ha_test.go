package agents_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"kvgate/integration/agents"
	"kvgate/integration/procs"
	"kvgate/rpc/client"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const (
	haSpeed = 10
	// haPatience is far above what an election takes on a loaded machine: how long nodes and client look
	// for a leader before they let a ticket through.
	haPatience = 60 * time.Second
)

var haWork = agents.Workload{Agents: 40, Turns: 6, Seed: 11}

// TestAgentsDoNotNoticeThatLeadersDie kills the leader twice, and starts it again in between, while
// agents hold leases and wait.
func TestAgentsDoNotNoticeThatLeadersDie(t *testing.T) {
	fleet := startHAFleet(t)
	c := startHACluster(t, fleet.RouterURL())
	cl := c.newClient(t)
	plan, err := agents.NewPlan(haWork)
	if err != nil {
		t.Fatal(err)
	}
	gate := newHoldingGate(agents.ClientGate(cl, ""), plan.Turns())
	run, err := agents.New(agents.Config{Plan: plan, RouterURL: fleet.RouterURL(), Speed: haSpeed, Gate: gate, Prefix: "ha-"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- run.Do(t.Context()) }()
	c.killLeaderTwice(t, run, gate)
	if err := <-done; err != nil {
		t.Errorf("agents met %v", err)
	}
	if err := cl.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	res, stats := run.Result(), cl.Stats()
	t.Logf("result %+v, client %+v", res, stats)
	if !res.Complete() || res.Retries != 0 || res.Failed != 0 {
		t.Errorf("%d of %d turns, %d calls made again, %d sessions gave up", res.Turns, res.Planned, res.Retries, res.Failed)
	}
	if stats.Bypassed[client.Degraded] != 0 || stats.Errors != 0 || stats.Unsettled != 0 || stats.Lost != 0 {
		t.Errorf("client counted %+v, want nothing degraded, wrong, unsettled or lost", stats)
	}
	c.checkNothingIsLeft(t)
	c.checkJournal(t, stats.Admitted)
}

func startHAFleet(t *testing.T) *agents.Fleet {
	t.Helper()
	fleet, err := agents.StartFleet(agents.FleetConfig{Engines: 2, PoolTokens: 20_000, Speed: haSpeed, Seed: 11})
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

// haCluster is three nodes and a client that watches them.
type haCluster struct {
	nodes []*procs.Process
	urls  []string
	watch *client.Client
}

func startHACluster(t *testing.T, routerURL string) *haCluster {
	t.Helper()
	var addrs, peers []string
	for i := range 3 {
		addrs = append(addrs, procs.FreeAddr(t))
		peers = append(peers, fmt.Sprintf("n%d=%s", i+1, addrs[i]))
	}
	c := &haCluster{}
	for i, addr := range addrs {
		p := procs.StartNode(t, procs.Node{
			ID: fmt.Sprintf("n%d", i+1), DataDir: t.TempDir(), RaftListen: addr,
			Args: []string{"--bootstrap-expect", "3", "--peers", strings.Join(peers, ","), "--router", routerURL,
				"--fail-open-after", haPatience.String()},
		})
		c.nodes = append(c.nodes, p)
		c.urls = append(c.urls, p.URL())
	}
	for _, url := range c.urls {
		procs.WaitReady(t, url)
	}
	c.watch = c.newClient(t)
	t.Cleanup(func() { _ = c.watch.Close(context.Background()) }) // it holds nothing
	c.waitBudget(t, "a capacity", func(b *kvgatev1.GetBudgetResponse) bool { return b.Ceiling > 0 && !b.Degraded })
	return c
}

func (c *haCluster) newClient(t *testing.T, opts ...client.Option) *client.Client {
	t.Helper()
	cl, err := client.New(c.urls, append(opts, client.WithDecisionBudget(2*haPatience))...)
	if err != nil {
		t.Fatal(err)
	}
	return cl
}

func (c *haCluster) waitBudget(t *testing.T, what string, ok func(*kvgatev1.GetBudgetResponse) bool) {
	t.Helper()
	said := ""
	procs.Eventually(t, haPatience, func() bool {
		b, err := c.watch.Budget(t.Context(), "")
		said = fmt.Sprint(b, err)
		return err == nil && ok(b)
	}, func() string { return "no budget with " + what + ": " + said })
}

// killLeaderTwice kills the leader in the middle of a run, starts it again, and kills whoever leads then;
// each time while agents are at the gate or at the engines, and the second time while some hold leases.
func (c *haCluster) killLeaderTwice(t *testing.T, run *agents.Run, gate *holdingGate) {
	t.Helper()
	defer gate.open()
	first := c.killLeader(t, run, run.Result().Planned/6)
	c.leader(t, first)
	first.Restart()
	procs.WaitReady(t, first.URL())
	second := c.killLeader(t, run, run.Result().Planned/3)
	gate.open()
	c.leader(t, second)
	second.Restart()
	procs.WaitReady(t, second.URL())
}

// killLeader waits for so many turns and then kills whoever leads.
func (c *haCluster) killLeader(t *testing.T, run *agents.Run, turns int) *procs.Process {
	t.Helper()
	procs.Eventually(t, haPatience, func() bool { return run.Progress().Turns >= turns },
		func() string { return fmt.Sprintf("want %d turns: %+v", turns, run.Progress()) })
	c.waitBudget(t, "leases and waiters", func(b *kvgatev1.GetBudgetResponse) bool { return b.Leases > 0 && b.Waiting > 0 })
	p := c.leader(t, nil)
	p.Kill9()
	t.Logf("killed %s at %+v", p.Node().ID, run.Progress())
	return p
}

// leader waits until there is one other than dead, and returns it.
func (c *haCluster) leader(t *testing.T, dead *procs.Process) (leader *procs.Process) {
	t.Helper()
	said := ""
	procs.Eventually(t, haPatience, func() bool {
		s, err := c.watch.Cluster().GetStatus(t.Context(), connect.NewRequest(&kvgatev1.GetStatusRequest{}))
		if err != nil {
			said = err.Error()
			return false
		}
		said, leader = "the leader is said to be "+s.Msg.LeaderId, nil
		for _, p := range c.nodes {
			if p != dead && p.Node().ID == s.Msg.LeaderId {
				leader = p
			}
		}
		return leader != nil
	}, func() string { return said })
	return leader
}

func (c *haCluster) checkNothingIsLeft(t *testing.T) {
	t.Helper()
	res, err := c.watch.Observe().ListLeases(t.Context(), connect.NewRequest(&kvgatev1.ListLeasesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Msg.Leases) > 0 {
		t.Errorf("leases are left: %v", res.Msg.Leases)
	}
	c.waitBudget(t, "nothing reserved", func(b *kvgatev1.GetBudgetResponse) bool {
		return b.Reserved == 0 && b.Leases == 0 && b.Waiting == 0
	})
}

// checkJournal wants every ticket admitted at most once while it has a lease, every lease ended, and as
// many tickets admitted as the client was told.
func (c *haCluster) checkJournal(t *testing.T, admitted int64) {
	t.Helper()
	leased, tickets := map[string]uint64{}, map[string]bool{}
	for _, e := range c.journal(t) {
		switch e.Kind {
		case "admitted":
			if grant, ok := leased[e.TicketId]; ok {
				t.Errorf("%s got grant %d while it had %d", e.TicketId, e.Grant, grant)
			}
			leased[e.TicketId], tickets[e.TicketId] = e.Grant, true
		case "released", "lease_expired", "unclaimed", "holder_expired", "cancelled":
			delete(leased, e.TicketId)
		}
	}
	if len(leased) > 0 {
		t.Errorf("leases without an end: %v", leased)
	}
	if int64(len(tickets)) != admitted {
		t.Errorf("%d tickets were admitted, the client knows of %d", len(tickets), admitted)
	}
}

func (c *haCluster) journal(t *testing.T) (out []*kvgatev1.JournalEvent) {
	t.Helper()
	req := &kvgatev1.ReadJournalRequest{PageSize: 1000}
	for {
		res, err := c.watch.Observe().ReadJournal(t.Context(), connect.NewRequest(req))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, res.Msg.Events...)
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			return out
		}
	}
}

// holdingGate lets half of the calls through and then keeps those that got a permit until it is opened, so
// that a run cannot be over before what shall happen in its middle.
type holdingGate struct {
	agents.Gate
	free   int64
	calls  atomic.Int64
	opened chan struct{}
	open   func()
}

func newHoldingGate(inner agents.Gate, turns int) *holdingGate {
	g := &holdingGate{Gate: inner, free: int64(turns / 2), opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	return g
}

// Acquire implements [agents.Gate].
func (g *holdingGate) Acquire(ctx context.Context, call agents.Call) (agents.Permit, error) {
	permit, err := g.Gate.Acquire(ctx, call)
	if err != nil || g.calls.Add(1) <= g.free {
		return permit, err
	}
	select {
	case <-g.opened:
		return permit, nil
	case <-ctx.Done():
		permit.Release(agents.Usage{})
		return nil, ctx.Err()
	}
}
