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

// cancelStep makes sure that neither a waiter nor a lease of key stays behind. It goes first to where the
// ticket was asked for last, nil when that is not known: there it stays behind an Acquire that the endpoint
// is still asking for, which it could overtake elsewhere.
func (c *Client) cancelStep(key ticketKey, at *endpoint) step {
	var was kvgatev1.CancelState
	return step{
		call: func(ctx context.Context) error {
			if at != nil && c.lines.connected(at) {
				ctx = withEndpoint(ctx, at)
			}
			at = nil
			resp, err := c.admission.Cancel(ctx, connect.NewRequest(
				&kvgatev1.CancelRequest{Pool: key.pool, TicketId: key.ticket}))
			if err == nil {
				was = resp.Msg.GetWas()
			}
			return err
		},
		known: func(tries int) {
			// A Cancel that found nothing leaves a mark; so may any of several whose answers were lost.
			if tries > 1 || was == kvgatev1.CancelState_CANCEL_STATE_UNKNOWN {
				c.tickets.mark(key)
			}
			c.record(Event{Kind: EventCancelled, Pool: key.pool, Ticket: key.ticket})
		},
		unknown: func() { c.tickets.mark(key) },
	}
}

// releaseStep ends the lease, or the tracked bypass, that msg names.
func (c *Client) releaseStep(key ticketKey, msg *kvgatev1.ReleaseRequest) step {
	return step{
		call: func(ctx context.Context) error {
			_, err := c.admission.Release(ctx, connect.NewRequest(msg))
			return err
		},
		known:   func(int) { c.record(Event{Kind: EventReleased, Pool: key.pool, Ticket: key.ticket}) },
		unknown: func() {},
	}
}
