package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// queuedAfter: a try that was open for so long was most likely waiting in the queue, so the ticket
// has a place worth coming back to.
const queuedAfter = 500 * time.Millisecond

// Acquire asks for a lease and blocks while the ticket waits, at most its max wait plus the decision
// budget. The grant is always fit to generate with; Release it when the generate call has ended.
//
// Whatever is wrong with the coordinator becomes a grant with action Bypass and reason Degraded.
// The error is not nil only when the request can never be right (ErrInvalid, ErrTicketMismatch,
// ErrSessionClosing), when the client is closed (ErrClosed), or when ctx is done: then it is
// ctx.Err(), and the ticket is cancelled in the background so that neither a waiter nor a lease of it
// stays behind.
//
// Calls with the same ticket share one lease. A new call first waits until the client's own release
// or cancel of that ticket, if any, is known to have happened.
func (c *Client) Acquire(ctx context.Context, req Request) (*Grant, error) {
	msg, err := req.message(c.poolName(req.Pool), c.cfg.holder)
	if err != nil {
		c.record(Event{Kind: EventError, Pool: req.Pool, Ticket: req.Ticket, Err: err})
		return nil, err
	}
	if !c.calls.enter() {
		return nil, ErrClosed
	}
	defer c.calls.leave()
	c.keeper.enter()
	a := c.newAcquisition(msg)
	resp, err := a.run(ctx)
	return a.conclude(ctx, resp, err)
}

// acquisition is one Acquire over all its tries. It belongs to the goroutine that called Acquire.
type acquisition struct {
	c       *Client
	key     ticketKey
	msg     *kvgatev1.AcquireRequest
	maxWait time.Duration
	started time.Time
	// deadline is when the client decides by itself.
	deadline time.Time

	// entered: the ticket was registered with c.tickets.
	entered bool
	tries   int
	// dirty: a try may have left a waiter or a lease behind, or may yet be carried out.
	dirty bool
	// queued: a try was open long enough to have been waiting.
	queued bool
	// failingSince is when the first of the latest tries in a row failed.
	failingSince time.Time
}

func (c *Client) newAcquisition(msg *kvgatev1.AcquireRequest) *acquisition {
	a := &acquisition{
		c: c, msg: msg, key: ticketKey{msg.GetPool(), msg.GetTicketId()},
		maxWait: c.cfg.defaultMaxWait, started: time.Now(),
	}
	if msg.MaxWait != nil {
		a.maxWait = msg.GetMaxWait().AsDuration()
	}
	a.deadline = a.started.Add(a.maxWait + c.cfg.decisionBudget)
	return a
}

// run tries until there is a decision, an error that further tries cannot change, or no time left.
func (a *acquisition) run(ctx context.Context) (*kvgatev1.AcquireResponse, error) {
	ctx, cancel := context.WithDeadline(ctx, a.deadline)
	defer cancel()
	defer context.AfterFunc(a.c.base, cancel)()

	call, err := a.c.tickets.enter(ctx, a.key)
	if err != nil {
		return nil, fmt.Errorf("%w: an earlier release or cancel of the ticket is not known yet", errNoDecision)
	}
	a.entered, a.msg.CallId = true, call
	pauses := a.c.newPauses(a.c.cfg.retryMax)
	for {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		resp, err := a.try(ctx)
		if err == nil {
			a.dirty = a.dirty || untracked(resp)
			return resp, nil
		}
		if err.verdict() != retryable || a.hopeless() {
			return nil, err
		}
		if !sleep(ctx, pauses.next(err.retryAfter)) {
			return nil, err
		}
		a.c.record(Event{Kind: EventRetry, Pool: a.key.pool, Ticket: a.key.ticket, Err: err})
	}
}

// try asks once and notes what a failure means for the ticket.
func (a *acquisition) try(ctx context.Context) (*kvgatev1.AcquireResponse, *Error) {
	began := time.Now()
	msg, left := a.attempt(began)
	var out *kvgatev1.AcquireResponse
	err := a.c.try(ctx, left+a.c.cfg.decisionBudget*5/6, func(ctx context.Context) error {
		resp, err := a.c.admission.Acquire(ctx, connect.NewRequest(msg))
		if err != nil {
			return err
		}
		out = resp.Msg
		return checkDecision(a.msg, out)
	})
	a.tries++
	if err == nil {
		return out, nil
	}
	if err.verdict() == retryable && !err.notSent {
		a.dirty = true
		if time.Since(began) >= queuedAfter {
			a.queued = true
		}
	}
	if a.failingSince.IsZero() {
		a.failingSince = time.Now()
	}
	return nil, err
}

// attempt returns the message of the next try and how long it may wait. Retries send what is left of
// the max wait, so that a ticket that comes back after a failover never waits longer than it asked for.
func (a *acquisition) attempt(now time.Time) (*kvgatev1.AcquireRequest, time.Duration) {
	if a.tries == 0 {
		return a.msg, a.maxWait
	}
	left := max(a.maxWait-now.Sub(a.started), 0)
	msg := proto.CloneOf(a.msg)
	msg.MaxWait = durationpb.New(left)
	return msg, left
}

// hopeless: after a try that failed, no further try is made. A ticket that waited already keeps
// asking until its time is up; a new one does so only for the decision budget, and, while the whole
// cluster is known to be down, only for one round over the endpoints.
func (a *acquisition) hopeless() bool {
	switch {
	case !time.Now().Before(a.deadline):
		return true
	case a.queued:
		return false
	case a.c.endpoints.down.Load():
		return a.tries >= len(a.c.endpoints.all)
	}
	return time.Since(a.failingSince) >= a.c.cfg.decisionBudget
}

// checkDecision refuses answers that no coordinator gives.
func checkDecision(msg *kvgatev1.AcquireRequest, resp *kvgatev1.AcquireResponse) error {
	var problem string
	switch {
	case resp.GetAction() != Admit && resp.GetAction() != Bypass:
		problem = "action is " + resp.GetAction().String()
	case resp.GetTicketId() != msg.GetTicketId():
		problem = fmt.Sprintf("ticket is %.64q", resp.GetTicketId())
	case resp.GetAction() == Admit && resp.GetLeaseId() == "":
		problem = "admitted without a lease"
	default:
		return nil
	}
	return nonsense("%s", problem)
}

// untracked: a node let the ticket through by itself, because it did not hear what the leader decided. It may
// have been admitted all the same.
func untracked(resp *kvgatev1.AcquireResponse) bool {
	return resp.GetAction() == Bypass && slices.ContainsFunc(resp.GetWarnings(), func(w string) bool {
		return strings.HasPrefix(w, "untracked")
	})
}

func nonsense(format string, args ...any) *Error {
	return &Error{Code: connect.CodeDataLoss, Err: fmt.Errorf("%w: "+format, append([]any{errNonsense}, args...)...)}
}

// conclude turns the outcome into what Acquire returns and settles what may have stayed behind.
func (a *acquisition) conclude(ctx context.Context, resp *kvgatev1.AcquireResponse, err error) (*Grant, error) {
	if err == nil {
		return a.c.newGrant(a, resp), nil
	}
	if a.entered {
		a.c.leaveTicket(a)
	}
	a.c.keeper.leave()
	var e *Error
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case a.c.base.Err() != nil:
		return nil, ErrClosed
	case errors.As(err, &e) && e.verdict() == misuse:
		a.c.record(Event{Kind: EventError, Pool: a.key.pool, Ticket: a.key.ticket, Err: err})
		return nil, err
	}
	return a.failOpen(err), nil
}

// leaveTicket ends a's use of its ticket and cancels what it may have left behind.
func (c *Client) leaveTicket(a *acquisition) {
	ended := c.tickets.leave(a.key, a.dirty)
	if ended == 0 {
		return
	}
	s := newSettlement(a.key, c.cancelStep(a.key, ended))
	// By then it is over by itself: the rest of the wait, and then a lease.
	s.until = time.Now().Add(max(time.Until(a.deadline), 0) + a.ttl())
	c.settle(s)
}

// ttl is how long a lease of this Acquire lasts, as far as the client knows.
func (a *acquisition) ttl() time.Duration {
	if a.msg.Ttl != nil {
		return a.msg.GetTtl().AsDuration()
	}
	return a.c.cfg.defaultTTL
}

// failOpen lets the attempt go ahead without a decision.
func (a *acquisition) failOpen(cause error) *Grant {
	c := a.c
	var e *Error
	if errors.As(cause, &e) && e.verdict() == retryable && !a.queued {
		c.endpoints.down.Store(true)
	}
	cause = fmt.Errorf("%w in %v: %w", errNoDecision, time.Since(a.started).Round(time.Millisecond), cause)
	c.logs.degraded.warn(slog.String("pool", a.key.pool), slog.String("ticket", a.key.ticket),
		slog.Int("tries", a.tries), slog.Duration("maxWait", a.maxWait), slog.Any("error", cause))
	at := Event{Pool: a.key.pool, Ticket: a.key.ticket, Reason: Degraded, Err: cause}
	for _, kind := range []EventKind{EventDegraded, EventBypassed} {
		at.Kind = kind
		c.record(at)
	}
	tokens := a.msg.GetReservationTokens()
	if a.msg.ReservationTokens == nil {
		tokens = a.msg.GetPromptTokens() + a.msg.GetMaxNewTokens()
	}
	return &Grant{c: c, key: a.key, lost: make(chan struct{}), Decision: Decision{
		Action: Bypass, Reason: Degraded, Pool: a.key.pool, Ticket: a.key.ticket,
		ReservationTokens: tokens, Cause: cause,
	}}
}
