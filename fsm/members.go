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

// Errors of changes to the membership.
var (
	// ErrLastVoter: the cluster would be left without a voter.
	ErrLastVoter = errors.New("the last voter cannot be removed")
	// ErrUnknownNode: no member has that id.
	ErrUnknownNode = errors.New("no such node")
	// ErrAddressTaken: another member has that address.
	ErrAddressTaken = errors.New("another node has that address")
	// ErrOldNode: the node cannot apply the commands that the cluster writes.
	ErrOldNode = errors.New("the node runs an older kvgate than the cluster needs")
	// ErrWrongNode: another node than the one named answers at the address.
	ErrWrongNode = errors.New("another node answers there")
	// ErrNotTransferred: leadership stays where it was.
	ErrNotTransferred = errors.New("leadership was not handed over")
)

// memberTimeout bounds one change of the membership.
const memberTimeout = 10 * time.Second

// members returns the members as this node's newest configuration has them.
func (r *Replica) members() []NodeStatus {
	started := r.started()
	if started == nil {
		return nil
	}
	f := started.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	servers := f.Configuration().Servers
	out := make([]NodeStatus, len(servers))
	for i, s := range servers {
		out[i] = NodeStatus{ID: string(s.ID), Address: string(s.Address), Voter: s.Suffrage == raft.Voter}
	}
	return out
}

func (r *Replica) voters() (n int) {
	for _, m := range r.members() {
		if m.Voter {
			n++
		}
	}
	return n
}

// AddNode adds a node as a non-voter; the leader makes it a voter once it has caught up. Adding a
// member again, with the same address or a new one, does no harm. It works on any node.
func (r *Replica) AddNode(ctx context.Context, id, addr string) error {
	return r.change(ctx, &fsmpb.ChangeRequest{Kind: &fsmpb.ChangeRequest_Add{Add: &fsmpb.AddNode{NodeId: id, Address: addr}}})
}

func (r *Replica) add(id, addr string) error {
	for _, m := range r.members() {
		switch {
		case m.ID == id && m.Address == addr:
			return nil
		case m.ID == id && m.Voter:
			return r.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(addr), 0, memberTimeout).Error()
		case m.ID != id && m.Address == addr:
			return fmt.Errorf("%w: %s belongs to node %s; remove that one first", ErrAddressTaken, addr, m.ID)
		}
	}
	r.log.Info("node added", "node", id, "address", addr)
	return r.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(addr), 0, memberTimeout).Error()
}

// RemoveNode takes a node out of the cluster. It works on any node.
func (r *Replica) RemoveNode(ctx context.Context, id string) error {
	return r.change(ctx, &fsmpb.ChangeRequest{Kind: &fsmpb.ChangeRequest_Remove{Remove: &fsmpb.RemoveNode{NodeId: id}}})
}

// TransferLeadership hands leadership to a node, to whichever voter is most up to date when id is empty,
// and returns once this node has heard who leads. It works on any node.
func (r *Replica) TransferLeadership(ctx context.Context, id string) error {
	before, _ := r.leader()
	err := r.change(ctx, &fsmpb.ChangeRequest{Kind: &fsmpb.ChangeRequest_Transfer{Transfer: &fsmpb.TransferLeadership{NodeId: id}}})
	if err != nil {
		return err
	}
	return r.awaitLeader(ctx, func(now string) bool { return now == id || id == "" && now != before })
}

// Join implements the peer service. A node that lost its data must not vote under its old id before it
// has caught up: it might vote twice in one term. So it is removed first and comes back as a non-voter.
func (p *peers) Join(ctx context.Context, req *connect.Request[fsmpb.JoinRequest]) (*connect.Response[fsmpb.JoinResponse], error) {
	r, m := p.replica, req.Msg
	_, err := r.lead(ctx)
	var other *LeaderError
	if errors.As(err, &other) && req.Header().Get(hopHeader) == "" {
		forwarded := connect.NewRequest(m)
		forwarded.Header().Set(hopHeader, r.opts.NodeID)
		return p.client(other.Address).Join(ctx, forwarded)
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	if err := r.admit(m); err != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return connect.NewResponse(&fsmpb.JoinResponse{ClusterId: r.describe().ClusterId}), nil
}

// hopHeader keeps a call from being forwarded twice.
const hopHeader = "Kvgate-Forwarded-By"

func (r *Replica) admit(m *fsmpb.JoinRequest) error {
	if written := r.peers.writes.Load(); m.CommandVersion < written {
		return fmt.Errorf("%w: node %s applies commands up to version %d, the cluster writes version %d",
			ErrOldNode, m.NodeId, m.CommandVersion, written)
	}
	for _, known := range r.members() {
		// A node that asks again, because the first answer was lost, is a non-voter already.
		if known.ID != m.NodeId || !m.Empty || !known.Voter {
			continue
		}
		if r.voters() == 1 {
			return fmt.Errorf("%w: node %q", ErrLastVoter, m.NodeId)
		}
		r.log.Warn("a member came back without its data and starts over as a non-voter", "node", m.NodeId)
		if err := r.raft.RemoveServer(raft.ServerID(m.NodeId), 0, memberTimeout).Error(); err != nil {
			return err
		}
	}
	// What it said before it lost its data must not make a voter of it.
	r.peers.forget(m.NodeId)
	return r.add(m.NodeId, m.Address)
}

const (
	promoteEvery = time.Second
	// promoteWithin is how many entries a non-voter may be behind to become a voter.
	promoteWithin = 512
)

// promote is a Duty: it makes voters of non-voters that have caught up.
func (t *term) promote(ctx context.Context) {
	ticker := time.NewTicker(promoteEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, m := range t.replica.members() {
			d, ok := t.replica.peers.known(m.ID)
			if m.Voter || !ok || d.AppliedIndex+promoteWithin < t.replica.machine.applied.Load() {
				continue
			}
			err := t.replica.raft.AddVoter(raft.ServerID(m.ID), raft.ServerAddress(m.Address), 0, memberTimeout).Error()
			t.replica.log.Info("node has caught up and votes now", "node", m.ID, "error", err)
		}
	}
}
