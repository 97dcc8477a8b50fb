package fsm

import (
	"context"

	"connectrpc.com/connect"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
)

// readable makes sure that a read sees everything acknowledged before it. The leader makes sure that it
// still leads; a follower asks the leader how far it must have applied, and waits for that. A stale read
// is answered by any node as it is.
func (r *Replica) readable(ctx context.Context, stale bool) error {
	if stale {
		return nil
	}
	bounded, cancel := context.WithTimeoutCause(ctx, 2*r.opts.FailOpenAfter, ErrTimeout)
	defer cancel()
	var index uint64
	err := r.askLeader(bounded, func() error {
		return r.verifyLead(bounded)
	}, func(addr string) error {
		res, err := r.peers.client(addr).ReadIndex(bounded, connect.NewRequest(&fsmpb.ReadIndexRequest{}))
		if err == nil {
			index = res.Msg.Index
		}
		return err
	})
	if err != nil {
		return err
	}
	return cause(bounded, r.machine.reach(bounded, index))
}

// verifyLead makes sure that this node leads, still, and has applied what earlier leaders committed.
func (r *Replica) verifyLead(ctx context.Context) error {
	if r.leading() == nil {
		return ErrNotLeader
	}
	// This ends soon: a leader that does not hear from a majority steps down within its lease.
	if err := r.raft.VerifyLeader().Error(); err != nil {
		return ErrLeadershipLost
	}
	return ctx.Err()
}

// View calls fn with the ledger, which fn must neither change nor keep, and in which it must not block.
func (r *Replica) View(ctx context.Context, stale bool, fn func(*ledger.Ledger)) error {
	if err := r.readable(ctx, stale); err != nil {
		return err
	}
	t := r.leading()
	r.machine.view(func(l *ledger.Ledger) {
		if t != nil {
			l = l.At(t.clock.ledgerNow())
		}
		fn(l)
	})
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
