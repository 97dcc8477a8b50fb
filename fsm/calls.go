package fsm

import (
	"context"
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
)

// Acquire decides on a ticket and blocks while it waits. When ctx ends first, the ticket is detached:
// it keeps its place for the pool's detach grace. It answers within FailOpenAfter when the ticket need
// not wait, and within its max wait + FailOpenAfter when it must, whatever happens to the node.
func (r *Replica) Acquire(ctx context.Context, a ledger.Acquire) (ledger.Decision, error) {
	t, err := r.writer(ctx)
	if err != nil {
		return ledger.Decision{}, err
	}
	c := &call{op: acquireOp(a), done: make(chan Result, 1), decided: make(chan ledger.Decision, 1)}
	first, cancel := context.WithTimeoutCause(ctx, r.opts.FailOpenAfter, ErrTimeout)
	defer cancel()
	if err := t.submit(first, c); err != nil {
		return ledger.Decision{}, cause(first, err)
	}
	res, err := t.await(first, c)
	if err != nil {
		return ledger.Decision{}, cause(first, err)
	}
	d, _ := res.Value.(ledger.Decision)
	if res.Err != nil || d.Action != ledger.ActionWait {
		return d, res.Err
	}
	return t.wait(ctx, c, d, r.patience(a, d))
}

// cause prefers why a context ended over that it ended.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil && err == ctx.Err() {
		return context.Cause(ctx)
	}
	return err
}

// patience is how long a waiting ticket's call may stay blocked: what is left of its max wait, and the
// time a node may take to notice that it cannot decide.
func (r *Replica) patience(a ledger.Acquire, d ledger.Decision) time.Duration {
	left := a.MaxWait
	r.machine.view(func(l *ledger.Ledger) {
		if v, ok := l.Ticket(d.Pool, d.Ticket); ok && v.Waiter != nil {
			left = max(0, v.Waiter.AgesIn)
		} else if left < 0 {
			set, _ := l.Settings(d.Pool)
			left = set.MaxWait
		}
	})
	return left + r.opts.FailOpenAfter
}

// wait blocks until the ticket is decided.
func (t *term) wait(ctx context.Context, c *call, d ledger.Decision, patience time.Duration) (ledger.Decision, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case decided := <-c.decided:
		return decided, nil
	case <-t.ctx.Done():
		return ledger.Decision{}, context.Cause(t.ctx)
	case <-ctx.Done():
		t.leave(d, c)
		return ledger.Decision{}, ctx.Err()
	case <-timer.C:
		t.leave(d, c)
		return ledger.Decision{}, ErrTimeout
	}
}

// writer returns the present term when this node leads and may write.
func (r *Replica) writer(ctx context.Context) (*term, error) {
	if err := r.guard.refuses(); err != nil {
		return nil, err
	}
	return r.lead(ctx)
}

// decideOp proposes one operation and returns its result as T. It answers ErrTimeout when the outcome
// is not known in time; the operation may still take effect.
func decideOp[T any](ctx context.Context, r *Replica, op *fsmpb.Op) (out T, err error) {
	t, err := r.writer(ctx)
	if err != nil {
		return out, err
	}
	bounded, cancel := context.WithTimeoutCause(ctx, 2*r.opts.FailOpenAfter, ErrTimeout)
	defer cancel()
	res, err := t.do(bounded, op)
	if err != nil {
		return out, cause(bounded, err)
	}
	out, _ = res.Value.(T)
	return out, res.Err
}

// Release ends a lease and reports whether there was one.
func (r *Replica) Release(ctx context.Context, op ledger.Release) (released bool, err error) {
	return decideOp[bool](ctx, r, releaseOp(op))
}

// Renew answers one Renewed per ref, in order.
func (r *Replica) Renew(ctx context.Context, pool string, refs []ledger.LeaseRef, ttl time.Duration) ([]ledger.Renewed, error) {
	return decideOp[[]ledger.Renewed](ctx, r, renewOp(pool, refs, ttl))
}

// Cancel ends whatever the ticket has and says what it was.
func (r *Replica) Cancel(ctx context.Context, pool, ticket string) (ledger.CancelState, error) {
	return decideOp[ledger.CancelState](ctx, r, &fsmpb.Op{Kind: &fsmpb.Op_Cancel{Cancel: &fsmpb.Cancel{Pool: pool, Ticket: ticket}}})
}

// Reconcile takes in a round of polling.
func (r *Replica) Reconcile(ctx context.Context, pool string, round ledger.Round) error {
	_, err := decideOp[bool](ctx, r, reconcileOp(pool, round))
	return err
}

// UpdateSettings changes a pool's settings, making the pool when there is none.
func (r *Replica) UpdateSettings(ctx context.Context, pool string, p ledger.Patch) (ledger.Settings, error) {
	return decideOp[ledger.Settings](ctx, r, updateOp(pool, p))
}

// DeletePool drops a pool and reports whether there was one.
func (r *Replica) DeletePool(ctx context.Context, pool string) (deleted bool, err error) {
	return decideOp[bool](ctx, r, &fsmpb.Op{Kind: &fsmpb.Op_DeletePool{DeletePool: &fsmpb.DeletePool{Pool: pool}}})
}

// DrainStep returns a pool's metrics since the previous drain.
func (r *Replica) DrainStep(ctx context.Context, pool, run string, step int64) (map[string]float64, error) {
	return decideOp[map[string]float64](ctx, r, &fsmpb.Op{Kind: &fsmpb.Op_DrainStep{DrainStep: &fsmpb.DrainStep{
		Pool: pool, Run: run, Step: step,
	}}})
}

// Heartbeat keeps a holder's leases and waiters alive. The TTL answered is the shortest of the pools in
// which the holder has something, the default pool's when it has nothing.
func (r *Replica) Heartbeat(ctx context.Context, holder string) (HolderStatus, error) {
	t, err := r.lead(ctx)
	if err != nil {
		return HolderStatus{}, err
	}
	if err := t.holders.beat(ctx, holder); err != nil {
		return HolderStatus{}, err
	}
	var out HolderStatus
	r.machine.view(func(l *ledger.Ledger) {
		set, _ := l.Settings(ledger.DefaultPool)
		out.TTL = set.HolderTTL
		for i, h := range l.Holder(holder) {
			set, _ := l.Settings(h.Pool)
			if i == 0 || set.HolderTTL < out.TTL {
				out.TTL = set.HolderTTL
			}
			out.Leases += h.Leases
			out.Waiters += h.Waiters
		}
	})
	return out, nil
}

// readable makes sure that a read sees everything acknowledged before it: this node leads, still, and
// has applied what earlier leaders committed. A stale read is answered by any node as it is.
func (r *Replica) readable(ctx context.Context, stale bool) error {
	if stale {
		return nil
	}
	if _, err := r.lead(ctx); err != nil {
		return err
	}
	verified := make(chan error, 1)
	future := r.raft.VerifyLeader()
	go func() { verified <- future.Error() }()
	timer := time.NewTimer(r.opts.FailOpenAfter)
	defer timer.Stop()
	select {
	case err := <-verified:
		if err != nil {
			return ErrLeadershipLost
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return ErrTimeout
	}
}

// View calls fn with the ledger, which fn must neither change nor keep, and in which it must not block.
func (r *Replica) View(ctx context.Context, stale bool, fn func(*ledger.Ledger)) error {
	if err := r.readable(ctx, stale); err != nil {
		return err
	}
	r.machine.view(fn)
	return nil
}

// Pools returns the settings of all pools as this node knows them.
func (r *Replica) Pools(context.Context) (map[string]ledger.Settings, error) {
	out := map[string]ledger.Settings{}
	r.machine.view(func(l *ledger.Ledger) {
		for _, name := range l.Pools() {
			out[name], _ = l.Settings(name)
		}
	})
	return out, nil
}

// Status says what the node knows of itself and its cluster. It never blocks on the network.
func (r *Replica) Status() Status {
	s := Status{
		NodeID: r.opts.NodeID, Version: r.opts.Version, State: stateName(r.raft.State()), Term: r.raft.CurrentTerm(),
		AppliedIndex: r.machine.applied.Load(), CommitIndex: r.raft.CommitIndex(), Writable: true, Health: "ok",
	}
	addr, id := r.raft.LeaderWithID()
	s.LeaderID, s.LeaderAddress = string(id), string(addr)
	r.machine.view(func(l *ledger.Ledger) { s.ClusterID, s.LedgerTime = l.Meta().ClusterID, l.Now() })
	r.addNodes(&s)
	r.mu.Lock()
	leading, halted := r.term != nil, r.halted
	r.mu.Unlock()
	s.Ready = s.LeaderID != "" && (leading || s.LeaderID != r.opts.NodeID) && r.raft.AppliedIndex() >= s.CommitIndex
	if err := r.guard.refuses(); err != nil {
		s.Writable, s.Health = false, err.Error()
	}
	if halted != nil {
		s.Writable, s.Ready, s.Health = false, false, halted.Error()
	}
	return s
}
