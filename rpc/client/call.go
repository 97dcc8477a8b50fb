package client

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"
	"github.com/cenkalti/backoff/v5"
)

// maxRetryAfter bounds what a coordinator may ask a client to pause.
const maxRetryAfter = 5 * time.Second

// errTryOver is why the context of one try ended by itself, rather than because its caller left.
var errTryOver = errors.New("no answer in time")

// try makes one call to the endpoint that works now, for at most timeout, and draws the conclusions
// for the choice of the next endpoint. It returns nil or an *Error.
func (c *Client) try(ctx context.Context, timeout time.Duration, call func(context.Context) error) *Error {
	ep := c.endpoints.pick()
	callCtx, cancel := context.WithTimeoutCause(withEndpoint(ctx, ep), timeout, errTryOver)
	defer cancel()
	err := asError(call(callCtx))
	switch {
	case err == nil || err.verdict() != retryable:
		c.endpoints.worked(ep)
	case ctx.Err() != nil:
		// The caller went away; that says nothing about the endpoint.
	default:
		c.endpoints.failed(ep, err.leaderHint)
		c.logs.attempt.warn(slog.String("endpoint", ep.url.Redacted()), slog.Any("error", err))
	}
	return err
}

// pauses says how long to wait before each retry: next to nothing while endpoints are left that this
// call has not tried, then exponentially longer after each round over them.
type pauses struct {
	backoff *backoff.ExponentialBackOff
	round   int
	tries   int
}

func (c *Client) newPauses(longest time.Duration) *pauses {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = c.cfg.retryMin, longest, 2
	return &pauses{backoff: b, round: len(c.endpoints.all)}
}

// next returns the pause after a try that failed; retryAfter is what the coordinator asked for.
func (p *pauses) next(retryAfter time.Duration) time.Duration {
	p.tries++
	if p.tries%p.round != 0 {
		// Jitter, so that all waiters of a dead leader do not arrive at one follower together.
		return rand.N(p.backoff.InitialInterval)
	}
	return max(p.backoff.NextBackOff(), min(retryAfter, maxRetryAfter))
}

// sleep waits for d. It returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// unary is a method of a Connect client.
type unary[Req, Res any] func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error)

// call makes an idempotent call that does not wait, with retries for at most the call budget.
func call[Req, Res any](ctx context.Context, c *Client, method unary[Req, Res], msg *Req) (*Res, error) {
	if !c.calls.enter() {
		return nil, ErrClosed
	}
	defer c.calls.leave()
	budget, cancel := context.WithTimeout(ctx, c.cfg.callBudget)
	defer cancel()
	defer context.AfterFunc(c.base, cancel)()

	var out *Res
	pauses := c.newPauses(c.cfg.retryMax)
	for {
		err := c.try(budget, c.cfg.attemptTimeout, func(ctx context.Context) error {
			resp, err := method(ctx, connect.NewRequest(msg))
			if err == nil {
				out = resp.Msg
			}
			return err
		})
		if err == nil {
			return out, nil
		}
		last := err.verdict() != retryable || !sleep(budget, pauses.next(err.retryAfter))
		if last {
			return nil, c.callError(ctx, err)
		}
		c.record(Event{Kind: EventRetry, Err: err})
	}
}

func (c *Client) callError(ctx context.Context, err *Error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case c.base.Err() != nil:
		return ErrClosed
	}
	c.record(Event{Kind: EventError, Err: err})
	return err
}

// failover repeats a call made through the raw clients on the other endpoints, each at most once, when
// the endpoint could not be reached or could not serve. It leaves streams alone.
type failover struct{ c *Client }

var _ connect.Interceptor = failover{}

// WrapUnary implements connect.Interceptor.
func (f failover) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		for left := len(f.c.endpoints.all); ; left-- {
			ep := f.c.endpoints.pick()
			resp, err := next(withEndpoint(ctx, ep), req)
			if err == nil {
				f.c.endpoints.worked(ep)
				return resp, nil
			}
			e := asError(err)
			unreached := e.Code == connect.CodeUnavailable || e.notSent
			if !unreached || ctx.Err() != nil {
				return nil, err
			}
			f.c.endpoints.failed(ep, e.leaderHint)
			if left <= 1 {
				return nil, err
			}
		}
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (failover) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (failover) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
