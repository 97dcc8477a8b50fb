package client

import (
	"context"
	"log/slog"
	"sync"
	"time"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Decision is what an Acquire answered.
type Decision struct {
	Action Action
	Reason Reason
	Pool   string
	Ticket string
	// ReservationTokens is what is charged (Admit), or would have been (Bypass).
	ReservationTokens int64
	// LeaseID is "<epoch>:<ticket>", empty on Bypass.
	LeaseID string
	// Number is unique to this grant; releases and renewals carry it as a fence.
	Number     uint64
	OwnerEpoch int64
	// Waited is the time spent in the queue.
	Waited time.Duration
	// EngineURL and DPRank are where the router placed the session's first turn, when known.
	EngineURL string
	DPRank    int32
	Warnings  []string
	// Cause says why the client let the attempt through by itself; nil when a coordinator decided.
	Cause error
}

// Grant is the right to make one generate call. Release it when the call has ended. Safe for
// concurrent use.
type Grant struct {
	Decision

	c   *Client
	key ticketKey
	// tracked: a coordinator knows about it and wants to hear its end.
	tracked bool
	// dirty: another try of the same Acquire may have left something behind, or may yet be carried out.
	dirty bool
	lost  chan struct{}

	mu         sync.Mutex
	expiresAt  time.Time
	renewAt    time.Time
	isLost     bool
	released   bool
	settlement *settlement // nil while held, and for a grant that nobody tracks
}

// newGrant makes the grant of a coordinator's decision. It takes over a's uses of the ticket and of
// the keeper when somebody must hear the grant's end.
func (c *Client) newGrant(a *acquisition, resp *kvgatev1.AcquireResponse) *Grant {
	g := &Grant{c: c, key: a.key, lost: make(chan struct{}), Decision: Decision{
		Action: resp.GetAction(), Reason: resp.GetReason(), Pool: a.key.pool, Ticket: a.key.ticket,
		ReservationTokens: resp.GetReservationTokens(), LeaseID: resp.GetLeaseId(), Number: resp.GetGrant(),
		OwnerEpoch: resp.GetOwnerEpoch(), Waited: resp.GetWaited().AsDuration(),
		EngineURL: resp.GetBinding().GetEngineUrl(), DPRank: resp.GetBinding().GetDpRank(),
		Warnings: resp.GetWarnings(),
	}}
	event := Event{Kind: EventAdmitted, Pool: g.Pool, Ticket: g.Ticket, Reason: g.Reason, Waited: g.Waited}
	if g.Action == Bypass {
		event.Kind = EventBypassed
	}
	c.record(event)

	// A coordinator keeps count of a session's bypassed attempts too, so that its close can wait for
	// them.
	g.tracked = g.Action == Admit || a.msg.GetSessionId() != ""
	g.dirty = a.dirty
	if !g.tracked {
		c.leaveTicket(a)
		c.keeper.leave()
		return g
	}
	term := a.ttl()
	if resp.ExpiresIn != nil {
		term = resp.GetExpiresIn().AsDuration()
	}
	g.extend(time.Now(), term)
	c.keeper.hold(g)
	return g
}

// extend notes that the lease lasts for term from now on.
func (g *Grant) extend(now time.Time, term time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expiresAt = now.Add(term)
	g.renewAt = now.Add(max(term/2, renewRetry))
}

// ExpiresAt is when the lease ends unless it is renewed; zero for a bypass.
func (g *Grant) ExpiresAt() time.Time {
	if g.Action != Admit {
		return time.Time{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.expiresAt
}

// Lost is closed when the lease is found to be gone while the grant is held: it expired, or the
// coordinator lost its state or reclaimed it. The generate call may go on; its tokens are just not
// accounted for any more.
func (g *Grant) Lost() <-chan struct{} { return g.lost }

// Release ends the grant and says, optionally, what was used. It returns at once and never fails: the
// release is sent in the background until it is known to have arrived or the lease is over. Only the
// first call counts.
func (g *Grant) Release(usage ...Usage) { g.release(usage) }

// ReleaseWait is Release, but waits until the release is known to have arrived. The error is that of
// ctx, or says why the client gave up; the release goes on in the background when ctx ends first.
func (g *Grant) ReleaseWait(ctx context.Context, usage ...Usage) error {
	s := g.release(usage)
	if s == nil {
		return nil
	}
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release returns the release under way, or nil when there is nobody to tell.
func (g *Grant) release(usage []Usage) *settlement {
	msg := g.releaseMessage(usage)
	g.mu.Lock()
	if g.released || !g.tracked {
		g.released = true
		defer g.mu.Unlock()
		return g.settlement
	}
	g.released = true
	c := g.c
	s := newSettlement(g.key)
	// A lease that is over already is still worth one try: it carries the usage.
	s.until = time.Now().Add(c.cfg.attemptTimeout)
	if g.expiresAt.After(s.until) {
		s.until = g.expiresAt
	}
	g.settlement = s
	g.mu.Unlock()

	s.steps = c.releaseSteps(g.key, msg, c.tickets.release(g.key, g.dirty))
	c.keeper.drop(g)
	c.settle(s)
	return s
}

func (g *Grant) releaseMessage(usage []Usage) *kvgatev1.ReleaseRequest {
	msg := &kvgatev1.ReleaseRequest{
		Pool: g.Pool, TicketId: g.Ticket, LeaseId: g.LeaseID, Grant: g.Number, HolderId: g.c.cfg.holder,
	}
	if len(usage) == 0 {
		return msg
	}
	used := usage[0].message()
	if err := validate(used); err != nil {
		// The lease must go even when its report is wrong.
		g.c.record(Event{Kind: EventError, Pool: g.Pool, Ticket: g.Ticket, Err: err})
		g.c.logs.usage.warn(slog.String("ticket", g.Ticket), slog.Any("error", err))
		return msg
	}
	msg.Usage = used
	return msg
}

// Renew moves the lease's deadline to now + ttl; ttl 0 means the one it was granted with. It returns
// ErrLeaseGone when there is no such lease any more, and nil for a bypass, which has none.
func (g *Grant) Renew(ctx context.Context, ttl time.Duration) error {
	if g.Action != Admit {
		return nil
	}
	gone, err := g.c.renew(ctx, g.Pool, []*Grant{g}, ttl)
	if err == nil && len(gone) > 0 {
		return ErrLeaseGone
	}
	return err
}

// lose marks the grant as lost, unless it was released meanwhile.
func (g *Grant) lose() {
	g.mu.Lock()
	if g.isLost || g.released {
		g.mu.Unlock()
		return
	}
	g.isLost = true
	close(g.lost)
	g.mu.Unlock()
	g.c.keeper.unrenew(g)
	g.c.record(Event{Kind: EventLost, Pool: g.Pool, Ticket: g.Ticket})
	g.c.logs.lost.warn(slog.String("pool", g.Pool), slog.String("ticket", g.Ticket), slog.Uint64("grant", g.Number))
}
