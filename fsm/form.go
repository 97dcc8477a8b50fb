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

// meet waits until all peers answer. When any of them belongs to a cluster, this node has lost its data
// or is new, and joins. When none does, all of them write the same first configuration, which raft
// allows.
func (r *Replica) meet(ctx context.Context) error {
	said := time.Time{}
	for {
		missing, formed, err := r.askPeers(ctx)
		switch {
		case err != nil:
			return err
		case len(formed) > 0:
			r.log.Warn("the cluster exists already and this node has no data: joining it", "through", formed)
			r.opts.Join = formed
			return nil
		case len(missing) == 0:
			return r.bootstrap(r.opts.Peers)
		}
		if r.now().Sub(said) > 5*time.Second {
			r.log.Info("waiting for the other nodes to form a cluster", "missing", missing)
			said = r.now()
		}
		select {
		case <-ctx.Done():
			return ErrNotFormed
		case <-time.After(formEvery):
		}
	}
}

// askPeers returns the peers that do not answer, and the addresses of those that belong to a cluster.
func (r *Replica) askPeers(ctx context.Context) (missing, formed []string, err error) {
	for _, p := range r.opts.Peers {
		if string(p.ID) == r.opts.NodeID {
			continue
		}
		d, err := r.peers.describe(ctx, string(p.Address))
		switch {
		case err != nil:
			missing = append(missing, string(p.ID))
		case d.NodeId != string(p.ID):
			return nil, nil, fmt.Errorf("the node at %s calls itself %q, the peer list says %q: give every node the same --peers and its own --node-id",
				p.Address, d.NodeId, p.ID)
		case d.ClusterId != "":
			formed = append(formed, string(p.Address))
		}
	}
	return missing, formed, nil
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
	d := &fsmpb.DescribeResponse{
		NodeId: r.opts.NodeID, ClusterId: r.disk.dir.Node().ClusterID, Version: r.opts.Version, CommandVersion: r.opts.CommandVersion,
		ApiAddress: r.opts.APIAddress, AppliedIndex: r.machine.applied.Load(), Leads: r.leading() != nil,
	}
	if d.ClusterId == "" {
		d.ClusterId = r.clusterID()
	}
	return d
}
