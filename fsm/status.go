package fsm

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"kvgate/ledger"
)

// Status is what a node knows of itself and its cluster.
type Status struct {
	NodeID, LeaderID string
	// LeaderAddress is the leader's raft address, empty when none is known.
	LeaderAddress string
	// State is "leader", "follower", "candidate", "shutdown", or "forming" before there is a cluster.
	State        string
	Term         uint64
	AppliedIndex uint64
	CommitIndex  uint64
	Nodes        []NodeStatus
	// FailureTolerance is how many more voters may fail before the cluster stops deciding.
	FailureTolerance int
	// RecordedUntil is when the state was the present, for what is served from a file; zero for a node that lives.
	RecordedUntil time.Time
	ClusterID     string
	Version       string
	// Writable is false while writes are refused; Health says why, or "ok".
	Writable bool
	Health   string
	// Quarantined are the pools whose engines nobody contacts.
	Quarantined []string
	LedgerTime  ledger.Time
	// Ready: there is a leader and this node has applied what it knows to be committed.
	Ready bool
}

// NodeStatus is one member of the cluster.
type NodeStatus struct {
	ID, Address  string
	Voter        bool
	Reachable    bool
	AppliedIndex uint64
	Version      string
	// APIAddress is the HOST:PORT of the node's public API, empty while unknown.
	APIAddress string
	// Lag is how many entries the node was behind when it was last heard; 0 for what is not reachable.
	Lag uint64
}

// HolderStatus answers a heartbeat.
type HolderStatus struct {
	TTL             time.Duration
	Leases, Waiters int64
}

func stateName(s raft.RaftState) string { return strings.ToLower(s.String()) }

// Status says what the node knows of itself and its cluster. It never blocks on the network.
func (r *Replica) Status() Status {
	s := Status{
		NodeID: r.opts.NodeID, Version: r.opts.Version, State: "forming", AppliedIndex: r.machine.applied.Load(),
		Writable: true, Health: "ok",
	}
	if started := r.started(); started != nil {
		s.State, s.Term, s.CommitIndex = stateName(started.State()), started.CurrentTerm(), started.CommitIndex()
		s.LeaderID, s.LeaderAddress = r.leader()
		s.Ready = started.AppliedIndex() >= s.CommitIndex && r.follows(s.LeaderID, s.AppliedIndex)
	}
	r.machine.view(func(l *ledger.Ledger) {
		s.ClusterID, s.LedgerTime = l.Meta().ClusterID, l.Now()
		s.Quarantined = quarantined(l)
	})
	if len(s.Quarantined) > 0 {
		s.Health = fmt.Sprintf("in quarantine, nobody contacts the engines of: %s; `kvgate settings set quarantine=false --pool POOL` ends it",
			strings.Join(s.Quarantined, ", "))
	}
	r.addNodes(&s)
	if err := r.guard.refuses(); err != nil {
		s.Writable, s.Health = false, err.Error()
	}
	r.mu.Lock()
	halted := r.halted
	r.mu.Unlock()
	if halted != nil {
		s.Writable, s.Ready, s.Health = false, false, halted.Error()
	}
	return s
}

// follows reports whether this node leads, or has applied what the leader lately said it had: a node
// that comes back learns the leader's commit index only with its next entries.
func (r *Replica) follows(leader string, applied uint64) bool {
	if leader == r.opts.NodeID {
		return r.leading() != nil
	}
	d, ok := r.peers.known(leader)
	return ok && applied >= d.AppliedIndex
}

// addNodes fills in the members and what they said lately. The failure tolerance counts voters that
// are reachable: how many of those may still fail before the cluster stops deciding.
func (r *Replica) addNodes(s *Status) {
	voters, reachable := 0, 0
	s.Nodes = r.members()
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.ID == s.NodeID {
			n.Reachable, n.AppliedIndex, n.Version, n.APIAddress = true, s.AppliedIndex, s.Version, r.opts.APIAddress
			n.Lag = s.CommitIndex - min(s.CommitIndex, s.AppliedIndex)
		} else if d, ok := r.peers.known(n.ID); ok {
			n.Reachable, n.AppliedIndex, n.Version, n.APIAddress = true, d.AppliedIndex, d.Version, d.ApiAddress
			n.Lag = d.lag
		}
		if n.Voter {
			voters++
			if n.Reachable {
				reachable++
			}
		}
	}
	s.FailureTolerance = max(0, reachable-(voters/2+1))
}

func sortNodes(nodes []NodeStatus) {
	slices.SortFunc(nodes, func(a, b NodeStatus) int { return strings.Compare(a.ID, b.ID) })
}
