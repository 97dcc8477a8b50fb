package fsm

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"kvgate/fsm/fsmpb"
)

// term is one stretch of leadership on this node. Everything that only a leader does hangs on its
// context and has ended before the next term begins.
type term struct {
	*proposer
	replica *Replica
	holders *watch
}

// barrierTimeout bounds how long a new leader waits for the entries of its predecessors.
const barrierTimeout = 30 * time.Second

// follow turns raft's leadership notices into terms, until the replica stops. Every notice that this
// node leads begins a new term, also when it follows another one directly: leadership may have been
// lost and won back in between [hashicorp/raft#384]. It always drains the channel, since raft blocks
// when nobody reads it.
func (r *Replica) follow(ctx context.Context, notices <-chan bool) {
	end := func() {}
	var over <-chan struct{}
	defer func() { end() }()
	for {
		var leads bool
		select {
		case <-ctx.Done():
			return
		case leads = <-notices:
		case <-over:
			leads = r.raft.State() == raft.Leader
		}
		end()
		end, over = func() {}, nil
		if leads {
			end, over = r.beginTerm(ctx)
		}
	}
}

// beginTerm starts a term. end stops it and waits; over is closed when the term stopped by itself.
func (r *Replica) beginTerm(parent context.Context) (end func(), over <-chan struct{}) {
	ctx, cancel := context.WithCancelCause(parent)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.serveTerm(ctx, cancel); err != nil && ctx.Err() == nil {
			r.log.Warn("term ended", "error", err)
		}
	}()
	return func() { cancel(ErrLeadershipLost); <-done }, done
}

func (r *Replica) serveTerm(ctx context.Context, cancel context.CancelCauseFunc) error {
	if err := r.raft.Barrier(barrierTimeout).Error(); err != nil {
		cancel(fmt.Errorf("%w: %w", ErrLeadershipLost, err))
		return fmt.Errorf("barrier: %w", err)
	}
	r.peers.writes.Store(r.peers.common())
	now, _, _, _ := r.machine.due()
	clock := &termClock{base: now, start: r.now(), now: r.now}
	t := &term{proposer: newProposer(ctx, cancel, r.raft, clock, r.peers.writes.Load, &r.restoring), replica: r}
	t.holders = newWatch(t)
	var g errgroup.Group
	g.Go(func() error { t.run(); return nil })
	err := t.introduce()
	if err == nil {
		r.publish(t)
		r.log.Info("leading", "term", r.raft.CurrentTerm(), "ledger_time", time.Duration(now))
		t.work(&g)
		<-ctx.Done()
		err = context.Cause(ctx)
		r.publish(nil)
	} else {
		cancel(err)
	}
	_ = g.Wait()
	return err
}

// introduce writes the first entry of the term: it detaches whoever was blocked on the old leader, and
// names the cluster once.
func (t *term) introduce() error {
	r := t.replica
	newTerm := &fsmpb.Op{Kind: &fsmpb.Op_NewTerm{NewTerm: &fsmpb.NewTerm{Term: r.raft.CurrentTerm(), Node: r.opts.NodeID}}}
	if _, err := t.do(t.ctx, newTerm); err != nil {
		return err
	}
	setCluster := &fsmpb.Op{Kind: &fsmpb.Op_SetCluster{SetCluster: &fsmpb.SetCluster{Id: r.newClusterID()}}}
	_, err := t.do(t.ctx, setCluster)
	return err
}

func (t *term) work(g *errgroup.Group) {
	duties := append([]Duty{t.tick, t.holders.run, t.trimJournal, t.promote, t.close}, t.replica.duties...)
	for _, d := range duties {
		g.Go(func() error { d(t.ctx); return nil })
	}
}

// tickEvery bounds how much ledger time a failover can lose while a deadline is pending.
const tickEvery = time.Second

// tick proposes the passing of time when something is due, and once a second while anything will be.
// An idle ledger gets no ticks.
func (t *term) tick(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, armed := t.untilTick()
		if armed {
			timer.Reset(max(0, wait))
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-t.replica.machine.changed:
		case <-timer.C:
			if !t.proposeTick(ctx) {
				return
			}
		}
	}
}

func (t *term) untilTick() (time.Duration, bool) {
	applied, next, any, pending := t.replica.machine.due()
	if !any {
		return 0, false
	}
	if pending {
		next = min(next, applied.Add(tickEvery))
	}
	return next.Sub(t.clock.ledgerNow()), true
}

func (t *term) proposeTick(ctx context.Context) bool {
	if t.replica.guard.refuses() != nil {
		// The disk is full: try again in a while rather than spin.
		select {
		case <-ctx.Done():
			return false
		case <-time.After(tickEvery):
			return true
		}
	}
	_, err := t.do(ctx, &fsmpb.Op{Kind: &fsmpb.Op_Tick{Tick: &fsmpb.Tick{}}})
	return err == nil
}
