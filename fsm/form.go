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

// ErrNotFormed: the node was stopped before it was part of a cluster.
var ErrNotFormed = errors.New("stopped before the node was part of a cluster")

// formEvery is how often a node that has no cluster yet looks for its peers.
const formEvery = 250 * time.Millisecond

// enter makes a node without history part of its peers' cluster, and starts raft only then. Raft grants
// its vote to anybody while its log is empty: a node that lost its data would help a node that lags to be
// elected, and with it lose what the others acknowledged. Once the leader has taken it out of the voters,
// every majority of the rest knows that, and nobody who could win asks it for a vote.
func (r *Replica) enter() error {
	if len(r.opts.Peers) > 0 {
		if err := r.meet(r.ctx); err != nil {
			return err
		}
	}
	if len(r.opts.Join) > 0 {
		if err := r.join(r.ctx); err != nil {
			return err
		}
	}
	return r.start()
}

// form makes this node a cluster of its own, unless its directory says that it is part of one.
func (r *Replica) form(has bool) error {
	switch {
	case has:
		return nil
	case r.opts.Bootstrap:
		return r.bootstrap([]raft.Server{{
			ID: raft.ServerID(r.opts.NodeID), Address: raft.ServerAddress(r.network.Address()), Suffrage: raft.Voter,
		}})
	}
	return errors.New("the data directory is empty: say how this node becomes part of a cluster (bootstrap, peers or join)")
}

func (r *Replica) bootstrap(servers []raft.Server) error {
	err := raft.BootstrapCluster(r.config, r.disk.logs, r.disk.rafts, r.disk.snapshots, r.transport, raft.Configuration{Servers: servers})
	if err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// waitForMissing is how long a node that formed a cluster with the others, but was slow, waits for those that
// do not answer before it joins as a new one.
const waitForMissing = 5 * time.Second

// meet waits until all peers answer and makes this node part of their cluster. When none of them has a
// history, all write the same first configuration, which raft allows. When one has, it tells with whom it
// formed its cluster. If that is this node as it is now, it was only slow, has never voted and writes that
// configuration, too; else it is new or lost its data, and joins.
func (r *Replica) meet(ctx context.Context) error {
	said, began := time.Time{}, r.now()
	for {
		m, err := r.askPeers(ctx)
		switch {
		case err != nil:
			return err
		case m.joins(r.now().Sub(began)):
			r.log.Warn("the cluster exists already and this node has no data: joining it", "through", m.formed)
			r.opts.Join = m.formed
			return nil
		case len(m.missing) == 0:
			if err := r.disk.dir.SetRoster(m.births); err != nil {
				return err
			}
			return r.bootstrap(r.opts.Peers)
		}
		if r.now().Sub(said) > 5*time.Second {
			r.log.Info("waiting for the other nodes to form a cluster", "missing", m.missing)
			said = r.now()
		}
		select {
		case <-ctx.Done():
			return ErrNotFormed
		case <-time.After(formEvery):
		}
	}
}

// meeting is what the peers say.
type meeting struct {
	// missing do not answer.
	missing []string
	// formed are the addresses of those that have a history; stranger says that one of them does not know
	// this node as it is now.
	formed   []string
	stranger bool
	births   map[string]string
}

func (r *Replica) askPeers(ctx context.Context) (m meeting, err error) {
	own := r.disk.dir.Node().Birth
	m.births = map[string]string{r.opts.NodeID: own}
	for _, p := range r.opts.Peers {
		if string(p.ID) == r.opts.NodeID {
			continue
		}
		d, err := r.peers.describe(ctx, string(p.Address))
		if err != nil {
			m.missing = append(m.missing, string(p.ID))
			continue
		}
		if d.NodeId != string(p.ID) {
			return m, fmt.Errorf("the node at %s calls itself %q, the peer list says %q: give every node the same --peers and its own --node-id",
				p.Address, d.NodeId, p.ID)
		}
		m.hear(r.opts.NodeID, own, string(p.Address), d)
	}
	return m, nil
}

// hear takes in what the peer at addr says to a node and its birth.
func (m *meeting) hear(id, birth, addr string, d *fsmpb.DescribeResponse) {
	m.births[d.NodeId] = d.Birth
	if d.HasState {
		m.formed = append(m.formed, addr)
		m.stranger = m.stranger || birth == "" || d.Roster[id] != birth
	}
}

// joins reports whether the node must join. One that was slow needs all peers to say that they know it: one
// that is missing may have formed the cluster with what the node was before it lost its data.
func (m *meeting) joins(waited time.Duration) bool {
	return len(m.formed) > 0 && (m.stranger || len(m.missing) > 0 && waited > waitForMissing)
}

// join asks to be added until a leader has done so.
func (r *Replica) join(ctx context.Context) error {
	req := &fsmpb.JoinRequest{NodeId: r.opts.NodeID, Address: r.network.Address(), CommandVersion: r.opts.CommandVersion, Empty: true}
	for {
		err := r.joinOnce(ctx, req)
		if err == nil {
			r.log.Info("joined the cluster")
			return nil
		}
		r.log.Warn("not joined yet", "error", err)
		select {
		case <-ctx.Done():
			return ErrNotFormed
		case <-time.After(time.Second):
		}
	}
}

func (r *Replica) joinOnce(ctx context.Context, req *fsmpb.JoinRequest) (err error) {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	for _, addr := range r.opts.Join {
		_, e := r.peers.client(addr).Join(ctx, connect.NewRequest(req))
		if e == nil {
			return nil
		}
		err = errors.Join(err, fmt.Errorf("through %s: %w", addr, e))
	}
	return err
}

// describe says what this node knows of itself; also before its raft runs.
func (r *Replica) describe() *fsmpb.DescribeResponse {
	node := r.disk.dir.Node()
	d := &fsmpb.DescribeResponse{
		NodeId: r.opts.NodeID, ClusterId: node.ClusterID, Birth: node.Birth, Roster: node.Roster,
		HasState: len(node.Roster) > 0 || node.ClusterID != "" || r.started() != nil, Version: r.opts.Version, CommandVersion: r.opts.CommandVersion,
		ApiAddress: r.opts.APIAddress, AppliedIndex: r.machine.applied.Load(), Leads: r.leading() != nil,
	}
	if d.ClusterId == "" {
		d.ClusterId = r.clusterID()
	}
	return d
}
