package client

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Action, Reason and Mode are those of the API.
type (
	// Action is what the caller should do now. Both actions let it generate.
	Action = kvgatev1.Action
	// Reason explains an Action.
	Reason = kvgatev1.Reason
	// Mode says what an attempt is for.
	Mode = kvgatev1.Mode
)

// The actions, reasons and modes.
const (
	Admit  = kvgatev1.Action_ACTION_ADMIT
	Bypass = kvgatev1.Action_ACTION_BYPASS

	CapacityAvailable = kvgatev1.Reason_REASON_CAPACITY_AVAILABLE
	Protected         = kvgatev1.Reason_REASON_PROTECTED
	Degraded          = kvgatev1.Reason_REASON_DEGRADED
	Aged              = kvgatev1.Reason_REASON_AGED
	Cancelled         = kvgatev1.Reason_REASON_CANCELLED
	Oversized         = kvgatev1.Reason_REASON_OVERSIZED
	Disabled          = kvgatev1.Reason_REASON_DISABLED
	OutOfScope        = kvgatev1.Reason_REASON_OUT_OF_SCOPE
	SessionClosing    = kvgatev1.Reason_REASON_SESSION_CLOSING
	Abandoned         = kvgatev1.Reason_REASON_ABANDONED

	Train = kvgatev1.Mode_MODE_TRAIN
	Eval  = kvgatev1.Mode_MODE_EVAL
)

// NoWait as a MaxWait asks for a decision at once.
const NoWait time.Duration = -1

// defaultPool is the client's pool unless WithPool names another.
const defaultPool = "default"

// Request asks for one lease.
type Request struct {
	// Pool is the engine fleet; empty means the client's, see WithPool.
	Pool string
	// Ticket is the caller's id for one backend attempt, e.g. "req-17:0", 1 to 256 bytes. Asking again
	// with the same ticket joins the waiter or answers with the lease that it has.
	Ticket string
	// PromptTokens is the processor-expanded length of the prompt, in tokens.
	PromptTokens int64
	// MaxNewTokens is the generation limit, in tokens. The pool may reserve less for it.
	MaxNewTokens int64
	// ReservationTokens is the reservation outright, in tokens, instead of the two above.
	ReservationTokens int64
	// Mode is Train by default.
	Mode Mode
	// Protected work is never queued and never charged.
	Protected bool
	// Priority: higher goes first; within a priority it is first come, first served.
	Priority int32
	// Session and Group name the agent program the attempt belongs to.
	Session string
	Group   string
	// RID is the request id that the engine sees; by default the ticket.
	RID string
	// MaxWait is the longest time in the queue. 0 means the pool's setting (see WithDefaultMaxWait);
	// NoWait asks for a decision at once.
	MaxWait time.Duration
	// TTL is the lease's time to live between renewals; 0 means the pool's setting.
	TTL time.Duration
}

// Usage is what an attempt really used, in tokens.
type Usage struct {
	PromptTokens     int64
	CompletionTokens int64
	CachedTokens     int64
	// EngineURL is the engine that served it, when known.
	EngineURL string
	// Outcome is free text such as "stop", "length", "abort" or "error", at most 64 bytes.
	Outcome string
}

func (c *Client) poolName(pool string) string {
	if pool == "" {
		return c.cfg.pool
	}
	return pool
}

// message returns the API's form of r, or an *Error that wraps ErrInvalid.
func (r *Request) message(pool, holder string) (*kvgatev1.AcquireRequest, error) {
	msg := &kvgatev1.AcquireRequest{
		Pool: pool, TicketId: r.Ticket,
		PromptTokens: r.PromptTokens, MaxNewTokens: r.MaxNewTokens,
		Mode: r.Mode, Protected: r.Protected, Priority: r.Priority,
		SessionId: r.Session, GroupId: r.Group, HolderId: holder, Rid: r.RID,
	}
	if r.ReservationTokens != 0 {
		msg.ReservationTokens = &r.ReservationTokens
	}
	switch {
	case r.MaxWait == NoWait:
		msg.MaxWait = durationpb.New(0)
	case r.MaxWait != 0:
		msg.MaxWait = durationpb.New(r.MaxWait)
	}
	if r.TTL != 0 {
		msg.Ttl = durationpb.New(r.TTL)
	}
	if err := validate(msg); err != nil {
		return nil, err
	}
	return msg, nil
}

func (u *Usage) message() *kvgatev1.Usage {
	return &kvgatev1.Usage{
		PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens, CachedTokens: u.CachedTokens,
		EngineUrl: u.EngineURL, Outcome: u.Outcome,
	}
}
