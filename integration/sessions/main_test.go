package sessions

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/integration/enginesim"
	"kvgate/integration/enginesim/router"
	"kvgate/integration/procs"
	"kvgate/rpc/client"
	v1 "kvgate/rpc/kvgate/v1"
)

func TestMain(m *testing.M) { procs.Main(m) }

// limit bounds every wait for something that nodes or engines are to do; far above what it takes.
const limit = 90 * time.Second

// fleet starts simulated engines that tag KV by session, and a router.
func fleet(t *testing.T, engines int, cfg enginesim.Config) *enginesim.Fleet {
	t.Helper()
	cfg.SessionRadix, cfg.EnableMetrics = true, true
	f, err := enginesim.StartFleet(enginesim.FleetConfig{
		Count: engines, RouterListen: "127.0.0.1:0", Engine: cfg, Router: router.Config{HealthEvery: -1},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // faults may have closed listeners already
	return f
}

// cluster is the nodes of a test and a client that finds its way among them.
type cluster struct {
	t     testing.TB
	nodes []*procs.Process
	*client.Client
}

// start starts so many nodes that use a router, and waits until they decide and know its engines.
func start(t testing.TB, nodes int, routerURL string, engines int, settings *v1.Settings) *cluster {
	t.Helper()
	c := &cluster{t: t}
	c.launch(nodes, routerURL)
	urls := make([]string, len(c.nodes))
	for i, p := range c.nodes {
		urls[i] = p.URL()
		procs.WaitReady(t, p.URL())
	}
	var err error
	if c.Client, err = client.New(urls, client.WithDecisionBudget(limit)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Client.Close(context.Background()) }) // nodes may be gone
	settings.PollInterval = durationpb.New(250 * time.Millisecond)
	eventually(c, "settings", c.Cluster().UpdateSettings, &v1.UpdateSettingsRequest{Settings: settings}, func(*v1.UpdateSettingsResponse) bool { return true })
	eventually(c, "all engines", c.Observe().ListEngines, &v1.ListEnginesRequest{}, func(r *v1.ListEnginesResponse) bool { return len(r.Engines) == engines })
	return c
}

func (c *cluster) launch(nodes int, routerURL string) {
	c.t.Helper()
	args := []string{"--bootstrap"}
	addrs, peers := make([]string, nodes), make([]string, nodes)
	for i := range nodes {
		addrs[i] = procs.FreeAddr(c.t)
		peers[i] = fmt.Sprintf("n%d=%s", i+1, addrs[i])
	}
	if nodes > 1 {
		args = []string{"--bootstrap-expect", fmt.Sprint(nodes), "--peers", strings.Join(peers, ",")}
	}
	if routerURL != "" {
		args = append(args, "--router", routerURL)
	}
	for i := range nodes {
		c.nodes = append(c.nodes, procs.StartNode(c.t, procs.Node{
			ID: fmt.Sprintf("n%d", i+1), DataDir: c.t.TempDir(), RaftListen: addrs[i], Args: args,
		}))
	}
}

// leader waits until the nodes name one that is alive.
func (c *cluster) leader(dead *procs.Process) *procs.Process {
	c.t.Helper()
	var found *procs.Process
	eventually(c, "a leader", c.Cluster().GetStatus, &v1.GetStatusRequest{}, func(s *v1.GetStatusResponse) bool {
		for _, p := range c.nodes {
			if p != dead && p.Node().ID == s.LeaderId {
				found = p
			}
		}
		return found != nil
	})
	return found
}

// killLeader kills whoever leads.
func (c *cluster) killLeader() *procs.Process {
	c.t.Helper()
	p := c.leader(nil)
	p.Kill9()
	return p
}

// back restarts a node that was killed.
func (c *cluster) back(p *procs.Process) {
	c.t.Helper()
	c.leader(p)
	p.Restart()
	procs.WaitReady(c.t, p.URL())
}

// call is a method of one of the API's clients.
type call[Req, Res any] func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error)

// eventually repeats a call until its answer is as ok wants it.
func eventually[Req, Res any](c *cluster, what string, fn call[Req, Res], req *Req, ok func(*Res) bool) *Res {
	c.t.Helper()
	var last *Res
	said := ""
	procs.Eventually(c.t, limit, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		res, err := fn(ctx, connect.NewRequest(req))
		if err != nil {
			said = err.Error()
			return false
		}
		last, said = res.Msg, fmt.Sprint(res.Msg)
		return ok(last)
	}, func() string { return "waited for " + what + ": " + said })
	return last
}

// must makes a call that may not fail.
func must[Req, Res any](c *cluster, fn call[Req, Res], req *Req) *Res {
	c.t.Helper()
	res, err := fn(c.t.Context(), connect.NewRequest(req))
	if err != nil {
		c.t.Fatal(err)
	}
	return res.Msg
}

// acquire lets a ticket of a session through.
func (c *cluster) acquire(session, ticket string) *client.Grant {
	c.t.Helper()
	g, err := c.Acquire(c.t.Context(), client.Request{Ticket: ticket, Session: session, PromptTokens: 10})
	if err != nil {
		c.t.Fatal(err)
	}
	if g.Cause != nil {
		c.t.Fatalf("nobody decided about %s: %v", ticket, g.Cause)
	}
	return g
}

// state waits until a session is in a state, and returns it.
func (c *cluster) state(id string, want v1.SessionState) *v1.Session {
	c.t.Helper()
	return c.session(id, want.String(), func(s *v1.Session) bool { return s.State == want })
}

// session waits until a session is as ok wants it.
func (c *cluster) session(id, what string, ok func(*v1.Session) bool) *v1.Session {
	c.t.Helper()
	return eventually(c, id+" "+what, c.Sessions().GetSession, &v1.GetSessionRequest{SessionId: id},
		func(r *v1.GetSessionResponse) bool { return ok(r.Session) }).Session
}

const (
	closed   = v1.SessionState_SESSION_STATE_CLOSED
	failures = v1.SessionState_SESSION_STATE_CLOSED_WITH_FAILURES
)

// heard reports how often an engine heard of a session's close.
func heard(e *enginesim.Engine, session string) (n int) {
	for _, id := range e.ClosedSessions() {
		if id == session {
			n++
		}
	}
	return n
}

// engineKinds returns the kinds of the journal's events about a session and an engine, in order.
func (c *cluster) engineKinds(session, engine string) (kinds []string) {
	c.t.Helper()
	for _, e := range must(c, c.Observe().ReadJournal, &v1.ReadJournalRequest{SessionId: session}).Events {
		if slices.Contains(e.Engines, engine) {
			kinds = append(kinds, e.Kind)
		}
	}
	return kinds
}
