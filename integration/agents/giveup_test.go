package agents_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"kvgate/integration/procs"
	"kvgate/rpc/client"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const (
	leavers     = 150
	leaverKills = 4
	// leaverTurns is how many turns are made before each kill, and leaverTokens what one reserves: some
	// thirty fit, so that most wait.
	leaverTurns  = 2 * leavers
	leaverTokens = 1000
)

// TestCallersThatGiveUpLeaveNothing: callers whose contexts end at random moments, by every way to carry
// tickets, while the leader is killed again and again. Once the clients say that all is settled, no lease and
// no waiter is left, and no copy of what they gave up on arrives later.
func TestCallersThatGiveUpLeaveNothing(t *testing.T) {
	fleet := startHAFleet(t)
	c := startHACluster(t, fleet.RouterURL())
	http1 := &http.Transport{MaxIdleConnsPerHost: 8}
	defer http1.CloseIdleConnections()
	ways := []*client.Client{
		c.newClient(t),
		c.newClient(t, client.WithHTTPClient(&http.Client{Transport: http1})),
		c.newClient(t, client.WithMultiplex(false)),
	}
	all := &hasty{t: t, ways: ways}
	all.start()
	for range leaverKills {
		all.turnsPass(leaverTurns)
		p := c.leader(t, nil)
		p.Kill9()
		all.turnsPass(leavers / 2) // they give up while nobody leads
		c.leader(t, p)
		p.Restart()
		procs.WaitReady(t, p.URL())
	}
	all.stop()
	for _, cl := range ways {
		if err := cl.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
		s := cl.Stats()
		t.Logf("client counted %+v", s)
		if s.Errors != 0 || s.Unsettled != 0 || s.Admitted == 0 || s.Cancelled == 0 {
			t.Errorf("client counted %+v, want some admitted and cancelled, nothing wrong or unsettled", s)
		}
	}
	c.checkTicketsAreGone(t, "all is settled")
	c.leader(t, nil).Kill9()
	c.leader(t, nil)
	c.checkTicketsAreGone(t, "the last leader died")
	c.checkEnds(t)
}

// hasty is many agents that give up on most of their tickets.
type hasty struct {
	t         *testing.T
	ways      []*client.Client
	running   sync.WaitGroup
	over      atomic.Bool
	turns     atomic.Int64
	had, left atomic.Int64
}

func (h *hasty) start() {
	for i := range leavers {
		h.running.Go(func() { h.agent(h.ways[i%len(h.ways)], i) })
	}
}

func (h *hasty) stop() {
	h.over.Store(true)
	h.running.Wait()
	if h.had.Load() == 0 || h.left.Load() == 0 {
		h.t.Errorf("%d grants, %d callers that gave up: want both", h.had.Load(), h.left.Load())
	}
}

func (h *hasty) turnsPass(n int64) {
	h.t.Helper()
	before := h.turns.Load()
	procs.Eventually(h.t, haPatience, func() bool { return h.turns.Load() >= before+n },
		func() string { return fmt.Sprintf("%d turns, were %d", h.turns.Load(), before) })
}

// agent makes turns; every ticket is asked for twice, whatever became of it the first time.
func (h *hasty) agent(cl *client.Client, id int) {
	random := rand.New(rand.NewPCG(uint64(id), 2))
	for turn := 0; !h.over.Load(); turn++ {
		patience := time.Duration(random.IntN(400)) * time.Millisecond
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.t.Context()), patience)
		g, err := cl.Acquire(ctx, client.Request{
			Ticket: fmt.Sprintf("hasty-%d:%d", id, turn/2), ReservationTokens: leaverTokens, MaxWait: 10 * time.Minute,
		})
		cancel()
		switch {
		case err == nil:
			h.had.Add(1)
			time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond) // generates
			g.Release()
		case errors.Is(err, context.DeadlineExceeded):
			h.left.Add(1)
		default:
			h.t.Errorf("agent %d, turn %d: %v", id, turn, err)
		}
		h.turns.Add(1)
	}
}

// checkTicketsAreGone looks once: nothing needs the detach grace to be over.
func (c *haCluster) checkTicketsAreGone(t *testing.T, when string) {
	t.Helper()
	leases, err := c.watch.Observe().ListLeases(t.Context(), connect.NewRequest(&kvgatev1.ListLeasesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	waiters, err := c.watch.Observe().ListWaiters(t.Context(), connect.NewRequest(&kvgatev1.ListWaitersRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range leases.Msg.GetLeases() {
		t.Errorf("%s: lease %s of grant %d is left", when, x.GetLeaseId(), x.GetGrant())
	}
	for _, x := range waiters.Msg.GetWaiters() {
		t.Errorf("%s: waiter %s is left", when, x.GetTicketId())
	}
}

// checkEnds wants no ticket to have ended by a time limit: its caller, or the settlement of one that gave
// up, ended it.
func (c *haCluster) checkEnds(t *testing.T) {
	t.Helper()
	for _, e := range c.journal(t) {
		switch e.Kind {
		case "unclaimed", "abandoned", "lease_expired", "holder_expired":
			t.Errorf("%s of grant %d ended as %s", e.TicketId, e.Grant, e.Kind)
		}
	}
}
