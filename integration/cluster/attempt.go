package cluster

import (
	"context"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Codes of attempts without a known outcome, beside those of the API.
const (
	// codeUntracked: a node let the ticket bypass because it could not decide.
	codeUntracked = "untracked"
	// codeTransport: no answer came, because the connection broke or could not be made.
	codeTransport = "transport"
	// codeLeft: the client hung up.
	codeLeft = "left"
	// codeLate: no answer came within the bound that the node promises, and a slack.
	codeLate = "late"
)

// bound is the longest time in which a node answers an operation.
func bound(kind Kind, maxWait time.Duration) time.Duration {
	if kind == OpAcquire {
		return maxWait + failOpenAfter
	}
	return 2 * failOpenAfter
}

// attempt asks a random node once and records what happened.
func (c *client) attempt(ctx context.Context, chain int64, kind Kind, ask acquire) *Op {
	n := c.load.cluster.nodes[c.rng.IntN(len(c.load.cluster.nodes))]
	o := &Op{
		Kind: kind, Client: c.id, Chain: chain, Ticket: ask.ticket, Node: n,
		Tokens: ask.tokens, MaxWait: ask.maxWait, TTL: ask.ttl,
	}
	if kind == OpRelease || kind == OpRenew {
		o.Fence = ask.grant
	}
	bounded, cancel := context.WithTimeout(ctx, bound(kind, ask.maxWait)+clientSlack)
	defer cancel()
	o.Start = time.Now()
	err := o.call(bounded, n, ask)
	o.End = time.Now()
	// In this order: bounded ends with ctx, so it may end for that reason between two looks.
	late := bounded.Err() != nil
	left := ctx.Err() != nil
	switch {
	case err == nil:
		o.Known = o.Code == ""
	case left:
		o.Code, o.Err = codeLeft, err
	case late:
		o.Code, o.Err = codeLate, err
	default:
		o.Code, o.Err = codeOf(err), err
	}
	if o.Code == "deadline_exceeded" && aboutToLeave(ctx, o.End) {
		o.Code = codeLeft
	}
	c.load.History.add(o)
	return o
}

// tellTime is how much earlier than the client itself a node may find that the client's time is over: it
// is told in whole milliseconds.
const tellTime = 20 * time.Millisecond

// aboutToLeave says that the client would have hung up by itself. A node may tell it so; at any other time
// a deadline is one of the node's own that must not surface.
func aboutToLeave(ctx context.Context, at time.Time) bool {
	until, ok := ctx.Deadline()
	return ok && until.Sub(at) < tellTime
}

func (o *Op) call(ctx context.Context, n *Node, ask acquire) error {
	switch o.Kind {
	case OpAcquire:
		return o.callAcquire(ctx, n, ask)
	case OpRelease:
		res, err := n.admission.Release(ctx, connect.NewRequest(&kvgatev1.ReleaseRequest{TicketId: ask.ticket, Grant: ask.grant}))
		if err == nil {
			o.OK = res.Msg.Released
		}
		return err
	case OpRenew:
		res, err := n.admission.Renew(ctx, connect.NewRequest(&kvgatev1.RenewRequest{
			LeaseIds: []string{ask.lease}, Grants: []uint64{ask.grant},
		}))
		if err == nil && len(res.Msg.Leases) == 1 {
			o.OK, o.ExpiresIn = res.Msg.Leases[0].Renewed, res.Msg.Leases[0].ExpiresIn.AsDuration()
		}
		return err
	case OpCancel:
		res, err := n.admission.Cancel(ctx, connect.NewRequest(&kvgatev1.CancelRequest{TicketId: ask.ticket}))
		if err == nil {
			o.Was = res.Msg.Was
		}
		return err
	case OpTicket:
		res, err := n.observe.GetTicket(ctx, connect.NewRequest(&kvgatev1.GetTicketRequest{TicketId: ask.ticket}))
		if err == nil {
			o.State, o.Grant = res.Msg.State, res.Msg.Grant
		}
		return err
	}
	res, err := n.observe.GetBudget(ctx, connect.NewRequest(&kvgatev1.GetBudgetRequest{}))
	if err == nil {
		o.Reserved = res.Msg.Reserved
	}
	return err
}

func (o *Op) callAcquire(ctx context.Context, n *Node, ask acquire) error {
	res, err := n.admission.Acquire(ctx, connect.NewRequest(ask.request()))
	if err != nil {
		return err
	}
	m := res.Msg
	o.Action, o.Reason, o.Grant, o.Lease, o.ExpiresIn = m.Action, m.Reason, m.Grant, m.LeaseId, m.ExpiresIn.AsDuration()
	for _, w := range m.Warnings {
		if strings.HasPrefix(w, codeUntracked) {
			o.Code, o.Err = codeUntracked, errors.New(w)
		}
	}
	return nil
}

// again says that the outcome is not known and that asking again may tell.
func (o *Op) again() bool {
	switch o.Code {
	case codeTransport, codeLeft, codeLate, "no_leader", "timeout", "read_only", "shutdown":
		return true
	}
	return false
}

// codeOf returns the code of the ErrorInfo, or codeTransport when a node did not make the error.
func codeOf(err error) string {
	var e *connect.Error
	if !errors.As(err, &e) {
		return codeTransport
	}
	for _, d := range e.Details() {
		if v, err := d.Value(); err == nil {
			if info, ok := v.(*kvgatev1.ErrorInfo); ok {
				return info.Code
			}
		}
	}
	return codeTransport
}
