package fsm

import (
	"time"

	"kvgate/ledger"
)

// Status is what a node knows of itself and its cluster.
type Status struct {
	NodeID, LeaderID string
	// LeaderAddress is the leader's raft address, empty when none is known.
	LeaderAddress string
	// State is "leader", "follower", "candidate" or "shutdown".
	State        string
	Term         uint64
	AppliedIndex uint64
	CommitIndex  uint64
	Nodes        []NodeStatus
	// FailureTolerance is how many more voters may fail before the cluster stops deciding.
	FailureTolerance int
	ClusterID        string
	Version          string
	// Writable is false while writes are refused; Health says why, or "ok".
	Writable   bool
	Health     string
	LedgerTime ledger.Time
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
}

// HolderStatus answers a heartbeat.
type HolderStatus struct {
	TTL             time.Duration
	Leases, Waiters int64
}
