package fsm

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
)

// Lane takes operations of one origin, such as a stream, without blocking: they enter the log in the
// order of the calls, also through a follower and across a change of leader, and none waits for the
// decision on another. Answers come from goroutines of the lane, in any order; they must not block and
// must not call Close. Time limits and errors are those of the Replica's calls of the same name.
// Safe for concurrent use, though only calls in one goroutine have an order.
type Lane interface {
	// Acquire answers once, or twice when the ticket waits: first ActionWait, later the decision. Until the
	// first answer the ticket is not asked for any more when ctx has ended; from then on ctx says nothing.
	Acquire(ctx context.Context, a ledger.Acquire, answer func(ledger.Decision, error))
	Release(op ledger.Release, answer func(released bool, err error))
	Renew(pool string, refs []ledger.LeaseRef, ttl time.Duration, answer func([]ledger.Renewed, error))
	Cancel(op ledger.Cancel, answer func(ledger.CancelState, error))
	// Close detaches the tickets that wait, answers everything that is open with an error, and returns
	// when no answer is under way any more. A call that comes later is not answered.
	Close()
}

// laneBatch is how many operations of a lane go together, at most, and fewer when they have more than
// maxBatchBytes: all of them are one log entry.
const laneBatch = 512

// lane has one batch under way at a time, until the first answers to all of it are known: with two, a
// change of leader could put the second before the first. What arrives meanwhile shares the next one.
type lane struct {
	replica *Replica
	ctx     context.Context
	cancel  context.CancelCauseFunc
	unhook  func() bool
	running sync.WaitGroup
	wake    chan struct{} // room for one

	mu    sync.Mutex
	queue []*step
	ended bool
}

// step is one operation on a lane.
type step struct {
	op *fsmpb.Op
	// size is that of op in bytes.
	size   int
	answer func(Result, error)
	// arrived is when it was asked for, had when a leader last had it.
	arrived, had time.Time
	// acquire is nil for other operations, caller what its ctx is.
	acquire *ledger.Acquire
	caller  context.Context
}

// batchUnderway is a batch that the leader has: here a flight, elsewhere a relay.
type batchUnderway interface {
	first(ctx context.Context, i int) (Result, error)
	decision(ctx context.Context, i int, d ledger.Decision) (Result, error)
}

// OpenLane starts a lane, which ends with Close, ctx or the replica.
func (r *Replica) OpenLane(ctx context.Context) Lane {
	l := &lane{replica: r, wake: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	l.unhook = context.AfterFunc(r.ctx, func() { l.cancel(context.Cause(r.ctx)) })
	l.running.Go(l.run)
	return l
}

// Close implements Lane.
func (l *lane) Close() {
	l.cancel(context.Canceled)
	l.running.Wait()
	l.unhook()
}

// Acquire implements Lane.
func (l *lane) Acquire(ctx context.Context, a ledger.Acquire, answer func(ledger.Decision, error)) {
	a.MaxWait, a.PoolWait, a.Call = l.replica.maxWait(a), a.MaxWait < 0, l.replica.callOf(a.Call)
	l.add(&step{op: acquireOp(a), acquire: &a, caller: ctx, answer: typed(answer)})
}

// Release implements Lane.
func (l *lane) Release(op ledger.Release, answer func(bool, error)) {
	l.add(&step{op: releaseOp(op), answer: typed(answer)})
}

// Renew implements Lane.
func (l *lane) Renew(pool string, refs []ledger.LeaseRef, ttl time.Duration, answer func([]ledger.Renewed, error)) {
	l.add(&step{op: renewOp(pool, refs, ttl), answer: typed(answer)})
}

// Cancel implements Lane.
func (l *lane) Cancel(op ledger.Cancel, answer func(ledger.CancelState, error)) {
	op.Call = l.replica.callOf(op.Call)
	l.add(&step{op: cancelOp(op), answer: typed(answer)})
}

func typed[T any](answer func(T, error)) func(Result, error) {
	return func(res Result, err error) {
		if err == nil {
			err = res.Err
		}
		v, _ := res.Value.(T)
		answer(v, err)
	}
}

func (l *lane) add(s *step) {
	s.arrived = l.replica.now()
	s.had, s.size = s.arrived, sizeOf(s.op)
	l.mu.Lock()
	if !l.ended {
		l.queue = append(l.queue, s)
	}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *lane) run() {
	for {
		if steps := l.take(); len(steps) > 0 {
			l.decide(steps)
			continue
		}
		select {
		case <-l.wake:
		case <-l.ctx.Done():
			l.refuse()
			return
		}
	}
}

func (l *lane) take() []*step {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for n < min(len(l.queue), laneBatch) && size < maxBatchBytes {
		size += l.queue[n].size
		n++
	}
	steps := l.queue[:n:n]
	if l.queue = l.queue[n:]; len(l.queue) == 0 {
		l.queue = nil
	}
	return steps
}

// refuse answers what is left when the lane has ended.
func (l *lane) refuse() {
	l.mu.Lock()
	left := l.queue
	l.queue, l.ended = nil, true
	l.mu.Unlock()
	for _, s := range left {
		s.answer(Result{}, context.Cause(l.ctx))
	}
}

// decide has the leader decide a batch, again after each change of leader, until every operation has its
// first answer.
func (l *lane) decide(steps []*step) {
	for {
		// Callers may leave while nobody leads.
		l.awaitLeader(steps[0])
		if steps = stay(steps); len(steps) > 0 {
			steps = l.try(steps)
		}
		if len(steps) == 0 {
			return
		}
		if l.replica.pause(l.ctx) {
			continue
		}
		for _, s := range steps {
			s.answer(Result{}, context.Cause(l.ctx))
		}
		return
	}
}

// left reports whether nobody asks for the ticket any more.
func (s *step) left() bool { return s.acquire != nil && s.caller.Err() != nil }

// stay answers the steps that nobody asks for any more, and returns the others.
func stay(steps []*step) []*step {
	return slices.DeleteFunc(steps, func(s *step) bool {
		if s.left() {
			s.answer(Result{}, s.caller.Err())
			return true
		}
		return false
	})
}

// try makes one attempt and returns the operations that need another.
func (l *lane) try(steps []*step) (again []*step) {
	limit := l.replica.opts.FailOpenAfter
	other, cancel := context.WithTimeoutCause(l.ctx, 2*limit, ErrTimeout)
	defer cancel()
	batch, err := l.launch(other, steps)
	acquire, cancel := context.WithTimeoutCause(l.ctx, limit, ErrTimeout)
	defer cancel()
	for i, s := range steps {
		res, failed := Result{}, err
		if err == nil {
			ctx := other
			if s.acquire != nil {
				ctx = acquire
			}
			res, failed = batch.first(ctx, i)
		}
		switch {
		case failed == nil:
			l.answer(s, res, batch, i)
		case l.goesOn(s, &failed):
			again = append(again, s)
		default:
			s.answer(Result{}, failed)
		}
	}
	return again
}

// patience bounds how long a batch waits for a leader: the oldest operation has waited already, and those
// that still have time go on after ErrNoLeader.
func (l *lane) patience(ctx context.Context, oldest *step) (context.Context, context.CancelFunc) {
	left := l.replica.opts.FailOpenAfter - l.replica.now().Sub(oldest.arrived)
	return context.WithTimeoutCause(ctx, left, ErrNoLeader)
}

// awaitLeader returns when somebody leads, or the time for that is over.
func (l *lane) awaitLeader(oldest *step) {
	ctx, cancel := l.patience(l.ctx, oldest)
	defer cancel()
	_, _ = l.replica.lead(ctx)
}

// launch hands the batch to whoever leads.
func (l *lane) launch(ctx context.Context, steps []*step) (batchUnderway, error) {
	ops := make([]*fsmpb.Op, len(steps))
	for i, s := range steps {
		ops[i] = s.op
	}
	soon, cancel := l.patience(ctx, steps[0])
	defer cancel()
	_, err := l.replica.lead(soon)
	if err == nil {
		f, err := l.replica.launch(ctx, ops)
		if err != nil {
			return nil, cause(ctx, err)
		}
		return f, nil
	}
	var leader *LeaderError
	if !errors.As(err, &leader) {
		return nil, cause(soon, err)
	}
	return l.replica.peers.launch(l.ctx, l.running.Go, leader.Address, ops), nil
}

// answer passes a first answer on, and waits for the decision when there is one to come.
func (l *lane) answer(s *step, res Result, batch batchUnderway, i int) {
	first, waits := waiting(res)
	s.answer(res, nil)
	if !waits || s.acquire == nil {
		return
	}
	l.running.Go(func() {
		d, err := l.replica.ask(l.ctx, *s.acquire, s.arrived, func(ctx context.Context) (Result, error) {
			return batch.decision(ctx, i, first)
		})
		s.answer(Result{Value: d}, err)
	})
}

// goesOn reports whether an operation whose attempt failed is tried again; when not, err is what to answer.
func (l *lane) goesOn(s *step, err *error) bool {
	r, now := l.replica, l.replica.now()
	limit := r.opts.FailOpenAfter
	if l.ctx.Err() != nil {
		*err = context.Cause(l.ctx)
		return false
	}
	if s.left() {
		*err = s.caller.Err()
		return false
	}
	if s.acquire == nil {
		if retriable(*err) && now.Sub(s.arrived) >= 2*limit {
			*err = ErrTimeout
		}
		return retriable(*err) || errors.Is(*err, ErrNoLeader) && now.Sub(s.arrived) < limit
	}
	if errors.Is(*err, ErrLeadershipLost) && !errors.Is(*err, errNotDialled) {
		s.had = now
	}
	again := retriable(*err) || errors.Is(*err, ErrNoLeader)
	if !again || now.Sub(s.had) > limit && !r.waits(*s.acquire) {
		return false
	}
	if now.Sub(s.arrived) >= s.acquire.MaxWait+limit {
		*err = ErrTimeout
		return false
	}
	a := *s.acquire
	a.MaxWait = max(0, a.MaxWait-now.Sub(s.arrived))
	s.op = acquireOp(a)
	return true
}
