package fsm

import (
	"context"
	"sync"
	"time"

	"kvgate/ledger"
)

// Calls are the blocking calls that a lane stands for.
type Calls interface {
	Acquire(ctx context.Context, a ledger.Acquire) (ledger.Decision, error)
	Release(ctx context.Context, op ledger.Release) (bool, error)
	Renew(ctx context.Context, pool string, refs []ledger.LeaseRef, ttl time.Duration) ([]ledger.Renewed, error)
	Cancel(ctx context.Context, op ledger.Cancel) (ledger.CancelState, error)
}

// LaneOver makes a lane of blocking calls, each in a goroutine of its own, for what has no log. It keeps
// no order, and an Acquire answers once, with the decision.
func LaneOver(ctx context.Context, calls Calls) Lane {
	l := &callLane{calls: calls}
	l.ctx, l.cancel = context.WithCancel(ctx)
	return l
}

type callLane struct {
	calls   Calls
	ctx     context.Context
	cancel  context.CancelFunc
	mu      sync.Mutex
	running sync.WaitGroup
}

// start runs fn unless the lane has ended.
func (l *callLane) start(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() == nil {
		l.running.Go(fn)
	}
}

// Acquire implements Lane.
func (l *callLane) Acquire(_ context.Context, a ledger.Acquire, answer func(ledger.Decision, error)) {
	l.start(func() { answer(l.calls.Acquire(l.ctx, a)) })
}

// Release implements Lane.
func (l *callLane) Release(op ledger.Release, answer func(bool, error)) {
	l.start(func() { answer(l.calls.Release(l.ctx, op)) })
}

// Renew implements Lane.
func (l *callLane) Renew(pool string, refs []ledger.LeaseRef, ttl time.Duration, answer func([]ledger.Renewed, error)) {
	l.start(func() { answer(l.calls.Renew(l.ctx, pool, refs, ttl)) })
}

// Cancel implements Lane.
func (l *callLane) Cancel(op ledger.Cancel, answer func(ledger.CancelState, error)) {
	l.start(func() { answer(l.calls.Cancel(l.ctx, op)) })
}

// Close implements Lane.
func (l *callLane) Close() {
	l.mu.Lock()
	l.cancel()
	l.mu.Unlock()
	l.running.Wait()
}

// OpenLane implements the writing side: nothing can be decided.
func (o *Offline) OpenLane(ctx context.Context) Lane { return LaneOver(ctx, o) }

// GiveBack implements the writing side: there is nothing to give back.
func (o *Offline) GiveBack(ledger.Decision) {}
