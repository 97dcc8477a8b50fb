package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"connectrpc.com/connect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const (
	// settleParallel bounds the background calls in flight, so that a coordinator that comes back is
	// not met by everything that piled up at once. Multiplexed ones cost next to nothing.
	settleParallel    = 64
	settleMultiplexed = 4096
	// settleSlower is how much longer than a foreground call's the pauses of background calls may get.
	settleSlower = 5
)

// settlement is a release or a cancel that runs in the background until its outcome is known.
type settlement struct {
	key ticketKey
	// until is when there is nothing left to settle: the end of the lease.
	until time.Time
	// steps are made one after the other, each until its outcome is known.
	steps []step
	done  chan struct{}
	err   error // set before done is closed
}

type step struct {
	call func(ctx context.Context) error
	// known is called with how many tries it took, when one was answered.
	known func(tries int)
	// unknown is called when no answer came in time.
	unknown func()
	// needless, unless nil, says that the steps before have done it already.
	needless func() bool
	// retried is called after a try that failed and is repeated.
	retried func(err error)
}

func newSettlement(key ticketKey, steps ...step) *settlement {
	return &settlement{key: key, steps: steps, done: make(chan struct{})}
}

// settle starts s, whose key was put into the settling state by tickets.leave or tickets.release.
func (c *Client) settle(s *settlement) {
	if !c.settlements.start(func() { c.runSettlement(s) }) {
		s.err = ErrClosed
		c.finish(s)
	}
}

func (c *Client) runSettlement(s *settlement) {
	ctx, cancel := context.WithDeadline(c.flush, s.until)
	defer cancel()
	var failed []error
	for _, step := range s.steps {
		if step.needless != nil && step.needless() {
			continue
		}
		step.retried = func(err error) {
			c.record(Event{Kind: EventReleaseRetry, Pool: s.key.pool, Ticket: s.key.ticket, Err: err})
		}
		if err := c.persist(ctx, step); err != nil {
			failed = append(failed, err)
		}
	}
	s.err = errors.Join(failed...)
	c.finish(s)
}

func (c *Client) finish(s *settlement) {
	if s.err != nil {
		c.record(Event{Kind: EventUnsettled, Pool: s.key.pool, Ticket: s.key.ticket, Err: s.err})
		c.logs.unsettled.warn(slog.String("pool", s.key.pool), slog.String("ticket", s.key.ticket), slog.Any("error", s.err))
	}
	c.tickets.settled(s.key)
	close(s.done)
}

// persist repeats one step until it is answered or ctx ends.
func (c *Client) persist(ctx context.Context, s step) error {
	pauses := c.newPauses(settleSlower * c.cfg.retryMax)
	for tries := 1; ; tries++ {
		err := c.settleOnce(ctx, s)
		if err == nil {
			s.known(tries)
			return nil
		}
		if !worthRepeating(err) || !sleep(ctx, pauses.next(err.retryAfter)) {
			s.unknown()
			return fmt.Errorf("given up after %d tries: %w", tries, err)
		}
		s.retried(err)
	}
}

func (c *Client) settleOnce(ctx context.Context, s step) *Error {
	if err := c.slots.Acquire(ctx, 1); err != nil {
		return asError(err)
	}
	defer c.slots.Release(1)
	return c.try(ctx, c.cfg.attemptTimeout, s.call)
}

// worthRepeating: another try of a background call may be accepted. Unlike an Acquire it can wait
// until a token is accepted again or an overload is over.
func worthRepeating(err *Error) bool {
	switch err.Code {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeResourceExhausted:
		return true
	}
	return err.verdict() == retryable
}

// cancelStep makes sure that neither a waiter nor a lease of key stays behind, and that copies of the call
// that are still under way get nothing when they arrive.
func (c *Client) cancelStep(key ticketKey, ended uint64) step {
	msg := &kvgatev1.CancelRequest{Pool: key.pool, TicketId: key.ticket, EndedCallId: ended}
	return step{
		call: func(ctx context.Context) error {
			_, err := c.admission.Cancel(ctx, connect.NewRequest(msg))
			return err
		},
		known:   func(int) { c.record(Event{Kind: EventCancelled, Pool: key.pool, Ticket: key.ticket}) },
		unknown: func() {},
	}
}

// releaseSteps end the lease, or the tracked bypass, that msg names, and with it a call of which copies may
// be under way; ended is 0 when there are none. One Release does both, unless it finds no lease.
func (c *Client) releaseSteps(key ticketKey, msg *kvgatev1.ReleaseRequest, ended uint64) []step {
	msg.EndedCallId = ended
	released := false
	steps := []step{{
		call: func(ctx context.Context) error {
			resp, err := c.admission.Release(ctx, connect.NewRequest(msg))
			released = err == nil && resp.Msg.GetReleased()
			return err
		},
		known:   func(int) { c.record(Event{Kind: EventReleased, Pool: key.pool, Ticket: key.ticket}) },
		unknown: func() {},
	}}
	if ended != 0 {
		cancel := c.cancelStep(key, ended)
		cancel.needless = func() bool { return released }
		steps = append(steps, cancel)
	}
	return steps
}
