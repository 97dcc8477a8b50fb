package fsm

import (
	"errors"
	"fmt"
)

// Errors of a node that cannot decide. A caller may retry all of them: every mutating call is
// idempotent by its ids, and some of these mean "maybe applied".
var (
	// ErrNoLeader: no node is known to lead.
	ErrNoLeader = errors.New("no leader")
	// ErrNotLeader: another node leads; *LeaderError says which.
	ErrNotLeader = errors.New("another node leads")
	// ErrLeadershipLost: the node lost leadership before the outcome was known.
	ErrLeadershipLost = errors.New("leadership was lost, the outcome is not known")
	// ErrTimeout: the outcome was not known in time.
	ErrTimeout = errors.New("not decided in time")
	// ErrReadOnly: the disk is full or read-only, so writes are refused.
	ErrReadOnly = errors.New("writes are refused")
	// ErrShutdown: the node is stopping.
	ErrShutdown = errors.New("node is stopping")
	// ErrUnknownVersion: a log entry of a newer kvgate. The node stops rather than skip it.
	ErrUnknownVersion = errors.New("log entry of a newer version")
	// ErrCorrupt: a log entry or row that cannot be decoded. The node stops.
	ErrCorrupt = errors.New("state cannot be decoded")
)

// LeaderError says which node leads.
type LeaderError struct{ ID, Address string }

func (e *LeaderError) Error() string { return fmt.Sprintf("node %s at %s leads", e.ID, e.Address) }

// Unwrap makes errors.Is(err, ErrNotLeader) true.
func (e *LeaderError) Unwrap() error { return ErrNotLeader }
