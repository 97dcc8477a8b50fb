package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Load is clients at work. Each loops over tickets of its own until Stop, and then ends its last one: it
// retries every operation on one node after another until it knows the outcome.
type Load struct {
	History *History

	cluster *Cluster
	stop    context.CancelFunc
	// work ends at Stop; finish a while later, for operations whose outcome is still unknown.
	work, finish context.Context
	abort        context.CancelFunc
	done         sync.WaitGroup
}

// finishLimit bounds how long a client may take to learn the outcome of its last operation after Stop.
const finishLimit = 30 * time.Second

// clientSlack is how much longer than the node's own bound a client waits for an answer.
const clientSlack = 2500 * time.Millisecond

// StartLoad starts clients whose choices follow from seed.
func (c *Cluster) StartLoad(seed uint64, clients int) *Load {
	l := &Load{History: &History{}, cluster: c}
	l.work, l.stop = context.WithCancel(context.Background())
	l.finish, l.abort = context.WithCancel(context.Background())
	for i := range clients {
		cl := &client{load: l, id: i, rng: rand.New(rand.NewPCG(seed, uint64(i)))}
		if i%3 == 0 {
			cl.holder = fmt.Sprintf("holder-%d", i)
			l.done.Go(cl.beat)
		}
		l.done.Go(cl.run)
	}
	c.t.Cleanup(l.kill)
	return l
}

// Stop lets the clients end what they are at and waits for them. The cluster must be healed before.
func (l *Load) Stop() *History {
	l.stop()
	timer := time.AfterFunc(finishLimit, l.abort)
	l.done.Wait()
	timer.Stop()
	l.abort()
	return l.History
}

func (l *Load) kill() {
	l.stop()
	l.abort()
	l.done.Wait()
}

// client is one caller with one ticket at a time.
type client struct {
	load   *Load
	id     int
	rng    *rand.Rand
	holder string
	count  int
}

// beat sends heartbeats for the holder until Stop.
func (c *client) beat() {
	ticker := time.NewTicker(holderTTL / 6)
	defer ticker.Stop()
	rng := rand.New(rand.NewPCG(uint64(c.id), 2))
	for {
		select {
		case <-c.load.work.Done():
			return
		case <-ticker.C:
		}
		n := c.load.cluster.nodes[rng.IntN(3)]
		ctx, cancel := context.WithTimeout(c.load.work, holderTTL/4)
		_, _ = n.admission.Heartbeat(ctx, connect.NewRequest(&kvgatev1.HeartbeatRequest{HolderId: c.holder}))
		cancel()
	}
}

func (c *client) run() {
	for c.load.work.Err() == nil {
		c.count++
		c.ticket(fmt.Sprintf("c%d-%d", c.id, c.count))
	}
}

// ticket plays one life of one ticket.
func (c *client) ticket(name string) {
	ask := acquire{
		ticket: name, tokens: 100 + c.rng.Int64N(1500), maxWait: time.Duration(c.rng.IntN(1200)) * time.Millisecond,
		priority: int32(c.rng.IntN(3)), holder: c.holder,
	}
	switch p := c.rng.IntN(100); {
	case p < 66:
		c.useAndRelease(ask)
	case p < 76:
		c.cancelMeanwhile(ask)
	case p < 81:
		c.cancel(name)
		c.untilKnown(OpAcquire, ask)
	case p < 87:
		c.leaveAndReturn(ask)
	case p < 92: // forgotten: the deadline ends the lease
		ask.ttl = 500*time.Millisecond + time.Duration(c.rng.IntN(1000))*time.Millisecond
		c.untilKnown(OpAcquire, ask)
	default:
		c.attempt(c.load.work, c.load.History.newChain(), OpBudget, acquire{ticket: name})
	}
}

func (c *client) useAndRelease(ask acquire) {
	got := c.untilKnown(OpAcquire, ask)
	if got == nil || !got.Known {
		c.giveBack(ask.ticket)
		return
	}
	if got.Action != kvgatev1.Action_ACTION_ADMIT {
		return
	}
	c.pause(30 * time.Millisecond)
	ask.grant, ask.lease = got.Grant, got.Lease
	switch c.rng.IntN(6) {
	case 0:
		c.untilKnown(OpRenew, ask)
	case 1:
		c.untilKnown(OpTicket, ask)
	case 2: // a retry of what was granted
		c.untilKnown(OpAcquire, ask)
	}
	c.untilKnown(OpRelease, ask)
	if c.rng.IntN(8) == 0 { // again: it must do nothing
		c.untilKnown(OpRelease, ask)
	}
}

// giveBack cancels a ticket of which the client does not know whether it holds a lease. Some forget to.
func (c *client) giveBack(ticket string) {
	if c.rng.IntN(3) > 0 {
		c.cancel(ticket)
	}
}

func (c *client) cancel(ticket string) { c.untilKnown(OpCancel, acquire{ticket: ticket}) }

// cancelMeanwhile cancels the ticket while another call waits for it.
func (c *client) cancelMeanwhile(ask acquire) {
	other := &client{load: c.load, id: c.id, rng: rand.New(rand.NewPCG(c.rng.Uint64(), 3)), holder: c.holder}
	var wg sync.WaitGroup
	wg.Go(func() { other.untilKnown(OpAcquire, ask) })
	c.pause(200 * time.Millisecond)
	c.cancel(ask.ticket)
	wg.Wait()
	c.cancel(ask.ticket)
}

// leaveAndReturn hangs up in the middle, and mostly asks again.
func (c *client) leaveAndReturn(ask acquire) {
	ctx, cancel := context.WithTimeout(c.load.work, time.Duration(c.rng.IntN(150))*time.Millisecond)
	got := c.attempt(ctx, c.load.History.newChain(), OpAcquire, ask)
	cancel()
	if got.Known || c.rng.IntN(3) == 0 {
		return
	}
	c.useAndRelease(ask)
}

// pause waits up to d.
func (c *client) pause(d time.Duration) {
	select {
	case <-c.load.work.Done():
	case <-time.After(time.Duration(c.rng.Int64N(int64(d)))):
	}
}

// retryPause lies between attempts.
const retryPause = 40 * time.Millisecond

// untilKnown tries one node after another until the outcome is known. An Acquire that is let go by a node
// that cannot decide is over for the caller, with an unknown outcome. It returns the last attempt, nil
// when the time for finishing is over.
func (c *client) untilKnown(kind Kind, ask acquire) *Op {
	chain := c.load.History.newChain()
	began := time.Now()
	whole := ask.maxWait
	for c.load.finish.Err() == nil {
		ask.maxWait = max(0, whole-time.Since(began))
		o := c.attempt(c.load.finish, chain, kind, ask)
		if !o.again() {
			return o
		}
		select {
		case <-c.load.finish.Done():
		case <-time.After(retryPause):
		}
	}
	return nil
}

// acquire is what a client asks for.
type acquire struct {
	ticket, holder, lease string
	tokens                int64
	maxWait, ttl          time.Duration
	priority              int32
	grant                 uint64
}

func (a acquire) request() *kvgatev1.AcquireRequest {
	req := &kvgatev1.AcquireRequest{
		TicketId: a.ticket, ReservationTokens: &a.tokens, MaxWait: durationpb.New(a.maxWait),
		Priority: a.priority, HolderId: a.holder,
	}
	if a.ttl > 0 {
		req.Ttl = durationpb.New(a.ttl)
	}
	return req
}
