package fsm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	"kvgate/fsm/fsmpb"
)

// This file has any node change the membership: the leader does it, the others pass it on, once.

// change has the leader run a change and tries until the outcome is known. A removal whose first outcome
// was not known may find the node gone.
func (r *Replica) change(ctx context.Context, req *fsmpb.ChangeRequest) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*memberTimeout, ErrTimeout)
	defer cancel()
	var refusal error
	tries := 0
	settle := func(err error) error {
		tries++
		if refusal = err; retriable(err) {
			return err
		}
		return nil
	}
	err := r.askLeader(ctx, func() error {
		return settle(r.changeHere(ctx, req))
	}, func(addr string) error {
		res, err := r.peers.client(addr).Change(ctx, connect.NewRequest(req))
		if err != nil {
			tries++
			return err
		}
		return settle(decodeFailure(res.Msg.Error))
	})
	switch {
	case err != nil:
		return err
	case req.GetRemove() != nil && tries > 1 && errors.Is(refusal, ErrUnknownNode):
		return nil
	}
	return refusal
}

// changeHere runs a change on this node, which must lead.
func (r *Replica) changeHere(ctx context.Context, req *fsmpb.ChangeRequest) error {
	if r.leading() == nil {
		return ErrNotLeader
	}
	switch k := req.Kind.(type) {
	case *fsmpb.ChangeRequest_Add:
		if err := r.vet(ctx, k.Add.NodeId, k.Add.Address); err != nil {
			return err
		}
		return unsettled(r.add(k.Add.NodeId, k.Add.Address))
	case *fsmpb.ChangeRequest_Remove:
		return unsettled(r.remove(k.Remove.NodeId))
	case *fsmpb.ChangeRequest_Transfer:
		return r.transfer(k.Transfer.NodeId)
	}
	return fmt.Errorf("%w: a change of a kind that this node does not know: run the same kvgate on all nodes", ErrOldNode)
}

// Change implements the peer service. It never forwards: a node that does not lead says so.
func (p *peers) Change(ctx context.Context, req *connect.Request[fsmpb.ChangeRequest]) (*connect.Response[fsmpb.ChangeResponse], error) {
	err := p.replica.changeHere(ctx, req.Msg)
	return connect.NewResponse(&fsmpb.ChangeResponse{Error: encodeFailure(err)}), nil
}

// vet refuses a node that answers at the address but is another one, or is too old. A node that is yet to
// be started does not answer, which is no reason against it.
func (r *Replica) vet(ctx context.Context, id, addr string) error {
	d, err := r.peers.describe(ctx, addr)
	written := r.peers.writes.Load()
	switch {
	case err != nil:
		r.log.Info("the node that is added does not answer yet", "node", id, "address", addr, "error", err)
		return nil
	case d.NodeId != id:
		return fmt.Errorf("%w: the node at %s calls itself %q, not %q", ErrWrongNode, addr, d.NodeId, id)
	case d.CommandVersion < written:
		return fmt.Errorf("%w: node %s applies commands up to version %d, the cluster writes version %d",
			ErrOldNode, id, d.CommandVersion, written)
	}
	return nil
}

// remove takes a node out. A leader hands over before it removes itself, so that the cluster is not
// without a leader for an election.
func (r *Replica) remove(id string) error {
	found, otherVoters := false, 0
	for _, m := range r.members() {
		if m.ID == id {
			found = true
		} else if m.Voter {
			otherVoters++
		}
	}
	switch {
	case !found:
		return fmt.Errorf("%w: %q", ErrUnknownNode, id)
	case otherVoters == 0:
		return fmt.Errorf("%w: node %q", ErrLastVoter, id)
	case id == r.opts.NodeID:
		if err := r.raft.LeadershipTransfer().Error(); err == nil {
			return ErrLeadershipLost
		}
	}
	r.log.Info("node removed", "node", id)
	return r.raft.RemoveServer(raft.ServerID(id), 0, memberTimeout).Error()
}

// transfer hands leadership to a node, to whichever voter is most up to date when id is empty.
func (r *Replica) transfer(id string) error {
	if id == r.opts.NodeID {
		return nil
	}
	var err error
	if id == "" {
		err = r.raft.LeadershipTransfer().Error()
	} else {
		to, ok := r.voter(id)
		if !ok {
			return fmt.Errorf("%w: %q is not a voter", ErrUnknownNode, id)
		}
		err = r.raft.LeadershipTransferToServer(raft.ServerID(id), raft.ServerAddress(to)).Error()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotTransferred, err)
	}
	return nil
}

// voter returns a voter's raft address.
func (r *Replica) voter(id string) (addr string, ok bool) {
	for _, m := range r.members() {
		if m.ID == id && m.Voter {
			return m.Address, true
		}
	}
	return "", false
}

// unsettled turns raft's answers that leave the outcome open, or that another leader must give, into
// ErrLeadershipLost.
func unsettled(err error) error {
	for _, open := range []error{raft.ErrNotLeader, raft.ErrLeadershipLost, raft.ErrLeadershipTransferInProgress, raft.ErrEnqueueTimeout} {
		if errors.Is(err, open) {
			return fmt.Errorf("%w: %w", ErrLeadershipLost, err)
		}
	}
	if errors.Is(err, raft.ErrRaftShutdown) {
		return fmt.Errorf("%w: %w", ErrShutdown, err)
	}
	return err
}

// handOverWait is how long a node that stops waits to hear who leads next: an election, with room. The
// others may be stopping too, and then there is nobody to hear of.
const handOverWait = 2 * time.Second

// HandOver has another voter lead when this node does and another can, and returns once this node has
// heard which. Calls that are blocked on this node follow the new leader.
func (r *Replica) HandOver() {
	if r.leading() == nil || r.voters() < 2 {
		return
	}
	err := r.raft.LeadershipTransfer().Error()
	if err == nil {
		ctx, cancel := context.WithTimeoutCause(r.ctx, handOverWait, ErrTimeout)
		defer cancel()
		err = r.awaitLeader(ctx, func(id string) bool { return id != r.opts.NodeID })
	}
	if err != nil {
		r.log.Warn("leadership was not handed over", "error", err)
	}
}

// awaitLeader waits up to FailOpenAfter for a leader that is good.
func (r *Replica) awaitLeader(ctx context.Context, good func(id string) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.opts.FailOpenAfter, ErrTimeout)
	defer cancel()
	for {
		if id, _ := r.leader(); id != "" && good(id) {
			return nil
		}
		if !r.pause(ctx) {
			return context.Cause(ctx)
		}
	}
}
