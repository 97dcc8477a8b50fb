package agents

import (
	"context"
	"time"

	"kvgate/rpc/client"
)

// Gate is asked before every generate call. Implementations are safe for concurrent use.
type Gate interface {
	// Acquire blocks until the call may go ahead. An error ends the session; it is the context's when
	// that ended.
	Acquire(ctx context.Context, call Call) (Permit, error)
}

// Permit is the right to make one call.
type Permit interface {
	// Release ends it, once; it does not block.
	Release(used Usage)
	// Waited is the real time spent in the coordinator's queue.
	Waited() time.Duration
}

// Call is what a session is about to send. Tokens.
type Call struct {
	Ticket       string // also the request's rid
	Session      string
	PromptTokens int
	MaxNewTokens int
}

// Usage is what a call used. Tokens; all zero when it failed.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	CachedTokens     int
	Outcome          string
}

// ClientGate asks a kvgate cluster for a lease on prompt + max new tokens of each call.
func ClientGate(c *client.Client, pool string) Gate { return clientGate{c: c, pool: pool} }

type clientGate struct {
	c    *client.Client
	pool string
}

// Acquire implements [Gate].
func (g clientGate) Acquire(ctx context.Context, call Call) (Permit, error) {
	grant, err := g.c.Acquire(ctx, client.Request{
		Pool: g.pool, Ticket: call.Ticket, Session: call.Session,
		PromptTokens: int64(call.PromptTokens), MaxNewTokens: int64(call.MaxNewTokens),
	})
	if err != nil {
		return nil, err
	}
	return lease{grant}, nil
}

type lease struct{ grant *client.Grant }

// Release implements [Permit].
func (l lease) Release(used Usage) {
	l.grant.Release(client.Usage{
		PromptTokens: int64(used.PromptTokens), CompletionTokens: int64(used.CompletionTokens),
		CachedTokens: int64(used.CachedTokens), Outcome: used.Outcome,
	})
}

// Waited implements [Permit].
func (l lease) Waited() time.Duration { return l.grant.Waited }
