package fsm

import (
	"context"
	"fmt"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
)

// flight is operations that were queued together in a term of this node, for one log entry, in order.
type flight struct {
	term *term
	// calls has nil where refused says why the operation never went.
	calls   []*call
	refused []error
}

// launch queues operations on this node, which must lead.
func (r *Replica) launch(ctx context.Context, ops []*fsmpb.Op) (*flight, error) {
	if err := r.guard.refuses(); err != nil {
		return nil, err
	}
	t := r.leading()
	if t == nil {
		return nil, ErrNotLeader
	}
	f := &flight{term: t, calls: make([]*call, len(ops)), refused: make([]error, len(ops))}
	head := (*call)(nil)
	for i, op := range ops {
		if op.GetKind() == nil {
			f.refused[i] = unknownKind(r.opts.NodeID)
			continue
		}
		c := &call{op: op, done: make(chan Result, 1)}
		if op.GetAcquire() != nil {
			c.decided = make(chan ledger.Decision, 1)
		}
		f.calls[i] = c
		if head == nil {
			head = c
			continue
		}
		head.more = append(head.more, c)
	}
	if head == nil {
		return f, nil
	}
	return f, t.submit(ctx, head)
}

func unknownKind(node string) error {
	return fmt.Errorf("%w: operation of an unknown kind: install the newer kvgate on node %s", ErrUnknownVersion, node)
}

// first waits for the first answer to operation i, which for a ticket may be that it waits.
func (f *flight) first(ctx context.Context, i int) (Result, error) {
	if err := f.refused[i]; err != nil {
		return Result{Err: err}, nil
	}
	res, err := f.term.await(ctx, f.calls[i])
	return res, cause(ctx, err)
}

// decision waits for the decision on the ticket of operation i, whose first answer was d.
func (f *flight) decision(ctx context.Context, i int, d ledger.Decision) (Result, error) {
	return f.term.wait(ctx, f.calls[i], d)
}

// waiting returns the first answer of a ticket that waits.
func waiting(r Result) (ledger.Decision, bool) {
	d, ok := r.Value.(ledger.Decision)
	return d, ok && r.Err == nil && d.Action == ledger.ActionWait
}
