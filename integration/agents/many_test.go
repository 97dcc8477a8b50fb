package agents_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvgate/integration/procs"
	"kvgate/rpc/client"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const (
	manyTickets = 500
	manyKills   = 10
	// manyTokens is what each reserves: some fifty of them fit.
	manyTokens = 700
)

// TestManyTicketsThroughLeaderKills: one process has hundreds of tickets at a time, half of them over a
// stream and half over batches, while the leader is killed again and again. Nobody meets an error or a
// decision that the client had to make, nothing is left, and the queue was first come, first served.
func TestManyTicketsThroughLeaderKills(t *testing.T) {
	fleet := startHAFleet(t)
	c := startHACluster(t, fleet.RouterURL())
	http1 := &http.Transport{MaxIdleConnsPerHost: 8}
	defer http1.CloseIdleConnections()
	clients := []*client.Client{c.newClient(t), c.newClient(t, client.WithHTTPClient(&http.Client{Transport: http1}))}
	crowd := &crowd{t: t, clients: clients}
	crowd.start()
	for kill := range manyKills {
		c.waitBudget(t, "a full queue", func(b *kvgatev1.GetBudgetResponse) bool { return b.Leases > 0 && b.Waiting > manyTickets/2 })
		p := c.leader(t, nil)
		p.Kill9()
		before := crowd.done.Load()
		c.leader(t, p)
		p.Restart()
		procs.WaitReady(t, p.URL())
		procs.Eventually(t, haPatience, func() bool { return crowd.done.Load() >= before+manyTickets },
			func() string { return fmt.Sprintf("kill %d: %d turns, were %d", kill, crowd.done.Load(), before) })
	}
	crowd.stop()
	var admitted int64
	for _, cl := range clients {
		if err := cl.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
		s := cl.Stats()
		t.Logf("client counted %+v", s)
		if len(s.Bypassed) != 0 || s.Errors != 0 || s.Unsettled != 0 || s.Lost != 0 {
			t.Errorf("client counted %+v, want nothing let go, wrong, unsettled or lost", s)
		}
		admitted += s.Admitted
	}
	c.checkNothingIsLeft(t)
	c.checkJournal(t, admitted)
	c.checkQueue(t)
}

// crowd is many agents that acquire and release in turn.
type crowd struct {
	t       *testing.T
	clients []*client.Client
	running sync.WaitGroup
	over    atomic.Bool
	done    atomic.Int64
}

func (c *crowd) start() {
	for i := range manyTickets {
		c.running.Go(func() { c.agent(c.clients[i%len(c.clients)], i) })
	}
}

func (c *crowd) stop() {
	c.over.Store(true)
	c.running.Wait()
}

func (c *crowd) agent(cl *client.Client, id int) {
	random := rand.New(rand.NewPCG(uint64(id), 1))
	for turn := 0; !c.over.Load(); turn++ {
		g, err := cl.Acquire(context.WithoutCancel(c.t.Context()), client.Request{
			Ticket: fmt.Sprintf("agent-%d:%d", id, turn), ReservationTokens: manyTokens, MaxWait: 10 * time.Minute,
		})
		if err != nil {
			c.t.Errorf("agent %d, turn %d: %v", id, turn, err)
			return
		}
		time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond) // generates
		g.Release()
		c.done.Add(1)
	}
}

// checkQueue wants every grant after a wait to be that of the ticket that had waited longest.
func (c *haCluster) checkQueue(t *testing.T) {
	t.Helper()
	var queue []string
	granted := 0
	for _, e := range c.journal(t) {
		at := slices.Index(queue, e.TicketId)
		switch e.Kind {
		case "waiting":
			queue = append(queue, e.TicketId)
		case "admitted":
			if at > 0 {
				t.Errorf("%s was granted before %d others that waited longer", e.TicketId, at)
			}
			if at >= 0 {
				granted++
				queue = slices.Delete(queue, at, at+1)
			}
		case "bypassed", "cancelled", "abandoned", "holder_expired":
			if at >= 0 {
				queue = slices.Delete(queue, at, at+1)
			}
		}
	}
	if granted < manyTickets || len(queue) > 0 {
		t.Errorf("%d grants after a wait, %d tickets left in the queue", granted, len(queue))
	}
}
