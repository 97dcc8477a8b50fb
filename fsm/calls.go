package fsm

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
)

// retryPause is how long a call waits before it looks for a leader again, unless leadership changes.
const retryPause = 50 * time.Millisecond

// retriable says that the outcome of an operation is not known, or that it was not tried, and that
// whoever leads now can say. Every operation is idempotent by its ids, so it is sent again.
func retriable(err error) bool {
	return errors.Is(err, ErrLeadershipLost) || errors.Is(err, ErrNotLeader)
}

// attempt has the leader decide an operation: here when this node leads, else over the network.
func (r *Replica) attempt(ctx context.Context, op *fsmpb.Op) (Result, error) {
	_, err := r.lead(ctx)
	if err == nil {
		return r.doHere(ctx, op)
	}
	var other *LeaderError
	if !errors.As(err, &other) {
		return Result{}, err
	}
	return r.peers.do(ctx, other.Address, op)
}

// doHere decides an operation on this node, which must lead.
func (r *Replica) doHere(ctx context.Context, op *fsmpb.Op) (Result, error) {
	if op.GetKind() == nil {
		// In the log it would halt every node.
		return Result{}, unknownKind(r.opts.NodeID)
	}
	if err := r.guard.refuses(); err != nil {
		return Result{}, err
	}
	t := r.leading()
	if t == nil {
		return Result{}, ErrNotLeader
	}
	if op.GetAcquire() != nil {
		return t.acquire(ctx, op)
	}
	return t.do(ctx, op)
}

// insist tries until the outcome is known or ctx ends. Without any leader it gives up as lead does.
func (r *Replica) insist(ctx context.Context, op *fsmpb.Op) (Result, error) {
	for {
		res, err := r.attempt(ctx, op)
		if err == nil || !retriable(err) {
			return res, cause(ctx, err)
		}
		if !r.pause(ctx) {
			return Result{}, context.Cause(ctx)
		}
	}
}

// pause waits until leadership changes, for a moment at most; false when ctx ended.
func (r *Replica) pause(ctx context.Context) bool {
	r.mu.Lock()
	changed := r.changed
	r.mu.Unlock()
	timer := time.NewTimer(retryPause)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return false
	}
	return true
}

// cause prefers why a context ended over that it ended.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return context.Cause(ctx)
	}
	return err
}

// Acquire decides on a ticket and blocks while it waits. When ctx ends first, the ticket is detached:
// it keeps its place for the pool's detach grace. It answers within FailOpenAfter when the ticket need
// not wait, and within its max wait + FailOpenAfter when it must, whatever happens to the cluster: a
// ticket that waits already is asked for again, with what is left of its max wait, from every new leader.
// Whether it waits, this node may not have heard yet, so FailOpenAfter counts from when a leader had it.
func (r *Replica) Acquire(ctx context.Context, a ledger.Acquire) (ledger.Decision, error) {
	a.MaxWait, a.PoolWait, a.Call = r.maxWait(a), a.MaxWait < 0, r.callOf(a.Call)
	return r.ask(ctx, a, r.now(), nil)
}

// ask is Acquire for a call that arrived then, with its max wait filled in. underway waits for the
// outcome of a first attempt that was made already and answered that the ticket waits; nil makes one. Such a
// ticket is only joined again: when it has ended meanwhile, asking must not begin it anew.
func (r *Replica) ask(ctx context.Context, a ledger.Acquire, arrived time.Time, underway func(context.Context) (Result, error)) (ledger.Decision, error) {
	maxWait := a.MaxWait
	bounded, cancel := context.WithTimeoutCause(ctx, maxWait+r.opts.FailOpenAfter-r.now().Sub(arrived), ErrTimeout)
	defer cancel()
	again := func(ctx context.Context) (Result, error) {
		op := acquireOp(a)
		op.GetAcquire().Joins = underway != nil
		return r.attempt(ctx, op)
	}
	attempt := underway
	if attempt == nil {
		attempt = again
	}
	had := arrived // when a leader last had the call
	for {
		res, err := attempt(bounded)
		if err == nil {
			d, _ := res.Value.(ledger.Decision)
			return d, res.Err
		}
		repeat := retriable(err) || errors.Is(err, ErrNoLeader)
		if errors.Is(err, ErrLeadershipLost) && !errors.Is(err, errNotDialled) {
			had = r.now()
		}
		if !repeat || r.now().Sub(had) > r.opts.FailOpenAfter && !r.waits(a) {
			return ledger.Decision{}, cause(bounded, err)
		}
		if !r.pause(bounded) {
			return ledger.Decision{}, context.Cause(bounded)
		}
		a.MaxWait = max(0, maxWait-r.now().Sub(arrived))
		attempt = again
	}
}

// maxWait returns how long the ticket may wait, as far as this node knows the pool's settings.
func (r *Replica) maxWait(a ledger.Acquire) (wait time.Duration) {
	if a.MaxWait >= 0 {
		return a.MaxWait
	}
	r.machine.view(func(l *ledger.Ledger) {
		set, ok := l.Settings(a.Pool)
		if !ok {
			set = ledger.DefaultSettings()
		}
		wait = set.MaxWait
	})
	return wait
}

// waits reports whether the ticket is in the ledger, as far as this node has heard.
func (r *Replica) waits(a ledger.Acquire) (known bool) {
	r.machine.view(func(l *ledger.Ledger) {
		v, _ := l.Ticket(a.Pool, a.Ticket)
		known = v.Waiter != nil || v.Lease != nil
	})
	return known
}

// acquire proposes an Acquire and blocks while its ticket waits.
func (t *term) acquire(ctx context.Context, op *fsmpb.Op) (Result, error) {
	c := &call{op: op, done: make(chan Result, 1), decided: make(chan ledger.Decision, 1)}
	first, cancel := context.WithTimeoutCause(ctx, t.replica.opts.FailOpenAfter, ErrTimeout)
	defer cancel()
	if err := t.submit(first, c); err != nil {
		return Result{}, cause(first, err)
	}
	res, err := t.await(first, c)
	if err != nil {
		return Result{}, cause(first, err)
	}
	d, _ := res.Value.(ledger.Decision)
	if res.Err != nil || d.Action != ledger.ActionWait {
		return res, nil
	}
	return t.wait(ctx, c, d)
}

// wait blocks until the ticket is decided.
func (t *term) wait(ctx context.Context, c *call, d ledger.Decision) (Result, error) {
	select {
	case decided := <-c.decided:
		return Result{Value: decided}, nil
	case <-t.ctx.Done():
		return Result{}, context.Cause(t.ctx)
	case <-ctx.Done():
		t.leave(d, c)
		return Result{}, ctx.Err()
	}
}

// decide has the leader decide an operation and returns its result as T. It answers ErrTimeout when
// the outcome is not known in time; the operation may still take effect.
func decide[T any](ctx context.Context, r *Replica, op *fsmpb.Op) (out T, err error) {
	bounded, cancel := context.WithTimeoutCause(ctx, 2*r.opts.FailOpenAfter, ErrTimeout)
	defer cancel()
	res, err := r.insist(bounded, op)
	if err != nil {
		return out, err
	}
	out, _ = res.Value.(T)
	return out, res.Err
}

// Release ends a lease and reports whether there was one.
func (r *Replica) Release(ctx context.Context, op ledger.Release) (released bool, err error) {
	return decide[bool](ctx, r, releaseOp(op))
}

// Renew answers one Renewed per ref, in order.
func (r *Replica) Renew(ctx context.Context, pool string, refs []ledger.LeaseRef, ttl time.Duration) ([]ledger.Renewed, error) {
	return decide[[]ledger.Renewed](ctx, r, renewOp(pool, refs, ttl))
}

// Cancel ends whatever the ticket has and says what it was.
func (r *Replica) Cancel(ctx context.Context, op ledger.Cancel) (ledger.CancelState, error) {
	op.Call = r.callOf(op.Call)
	return decide[ledger.CancelState](ctx, r, cancelOp(op))
}

// callOf returns the caller's number of a call, or gives it one, so that the machine can tell when it comes
// again. Only the caller can number what it sends through several nodes.
func (r *Replica) callOf(number uint64) uint64 {
	if number != 0 {
		return number
	}
	return r.callBase + r.calls.Add(1)
}

// Reconcile takes in a round of polling, on the leader only: a round measured by a node that lost
// leadership is worth nothing.
func (r *Replica) Reconcile(ctx context.Context, pool string, round ledger.Round) error {
	_, err := r.doHere(ctx, reconcileOp(pool, round))
	return err
}

// UpdateSettings changes a pool's settings, making the pool when there is none.
func (r *Replica) UpdateSettings(ctx context.Context, pool string, p ledger.Patch) (ledger.Settings, error) {
	return decide[ledger.Settings](ctx, r, updateOp(pool, p))
}

// DeletePool drops a pool and reports whether there was one.
func (r *Replica) DeletePool(ctx context.Context, pool, by string) (deleted bool, err error) {
	return decide[bool](ctx, r, &fsmpb.Op{Kind: &fsmpb.Op_DeletePool{DeletePool: &fsmpb.DeletePool{Pool: pool, By: by}}})
}

// DrainStep returns a pool's metrics since the previous drain.
func (r *Replica) DrainStep(ctx context.Context, pool, run string, step int64) (map[string]float64, error) {
	return decide[map[string]float64](ctx, r, &fsmpb.Op{Kind: &fsmpb.Op_DrainStep{DrainStep: &fsmpb.DrainStep{
		Pool: pool, Run: run, Step: step,
	}}})
}

// Heartbeat keeps a holder's leases and waiters alive. The TTL answered is the shortest of the pools in
// which the holder has something, the default pool's when it has nothing.
func (r *Replica) Heartbeat(ctx context.Context, holder string) (out HolderStatus, err error) {
	bounded, cancel := context.WithTimeoutCause(ctx, 2*r.opts.FailOpenAfter, ErrTimeout)
	defer cancel()
	err = r.askLeader(bounded, func() (err error) {
		out, err = r.beatHere(bounded, holder)
		return err
	}, func(addr string) error {
		res, err := r.peers.client(addr).Beat(bounded, connect.NewRequest(&fsmpb.BeatRequest{Holder: holder}))
		if err == nil {
			out = holderStatus(res.Msg)
		}
		return err
	})
	return out, err
}

// askLeader runs here when this node leads, and there with the leader's address when another does,
// until one of them succeeds, no leader is found, or ctx ends.
func (r *Replica) askLeader(ctx context.Context, here func() error, there func(addr string) error) error {
	for {
		_, err := r.lead(ctx)
		var other *LeaderError
		switch {
		case err == nil:
			err = here()
		case errors.As(err, &other):
			if err = there(other.Address); err != nil {
				err = unreached(ctx, err)
			}
		}
		if err == nil || !retriable(err) {
			return cause(ctx, err)
		}
		if !r.pause(ctx) {
			return context.Cause(ctx)
		}
	}
}

func (r *Replica) beatHere(ctx context.Context, holder string) (out HolderStatus, err error) {
	t := r.leading()
	if t == nil {
		return out, ErrNotLeader
	}
	if err := t.holders.beat(ctx, holder); err != nil {
		return out, err
	}
	r.machine.look(func(c *core) { out = holderStatusOf(c, holder) })
	return out, nil
}

func holderStatusOf(c *core, holder string) (out HolderStatus) {
	set, _ := c.ledger.Settings(ledger.DefaultPool)
	out.TTL = set.HolderTTL
	found := false
	shortest := func(pool string) {
		set, _ := c.ledger.Settings(pool)
		if !found || set.HolderTTL < out.TTL {
			out.TTL = set.HolderTTL
		}
		found = true
	}
	for _, h := range c.ledger.Holder(holder) {
		shortest(h.Pool)
		out.Leases += h.Leases
		out.Waiters += h.Waiters
	}
	for _, pool := range c.table.Flies(holder) {
		shortest(pool)
	}
	return out
}
