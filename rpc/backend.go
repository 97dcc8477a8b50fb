package rpc

import (
	"context"
	"io"
	"time"

	"kvgate/fsm"
	"kvgate/ledger"
	"kvgate/sessions"
	"kvgate/store"
)

// AdmissionBackend decides tickets. Handlers call it from many goroutines at once.
type AdmissionBackend interface {
	// Acquire blocks until the ticket is decided. Cancelling ctx detaches the caller from the waiter,
	// which keeps its place for the pool's detach grace.
	Acquire(ctx context.Context, op ledger.Acquire) (ledger.Decision, error)
	Release(ctx context.Context, op ledger.Release) (released bool, err error)
	// Renew answers one Renewed per ref, in order.
	Renew(ctx context.Context, pool string, refs []ledger.LeaseRef, ttl time.Duration) ([]ledger.Renewed, error)
	Cancel(ctx context.Context, op ledger.Cancel) (ledger.CancelState, error)
}

// LaneBackend decides many tickets of one origin, in their order.
type LaneBackend interface {
	// OpenLane starts a lane, which ends with Close or ctx.
	OpenLane(ctx context.Context) fsm.Lane
	// GiveBack says that nobody heard of a decision.
	GiveBack(d ledger.Decision)
}

// HolderBackend keeps holders alive.
type HolderBackend interface {
	Heartbeat(ctx context.Context, holder string) (fsm.HolderStatus, error)
}

// ObserveBackend answers reads.
type ObserveBackend interface {
	// View calls fn with the ledger, which fn must neither change nor keep. The view is linearizable
	// unless stale, which reads the local node as it is.
	View(ctx context.Context, stale bool, fn func(*ledger.Ledger)) error
	Journal(ctx context.Context, stale bool, q store.JournalQuery) (store.JournalPage, error)
	DrainStep(ctx context.Context, pool, run string, step int64) (map[string]float64, error)
}

// ClusterBackend is for operators.
type ClusterBackend interface {
	View(ctx context.Context, stale bool, fn func(*ledger.Ledger)) error
	UpdateSettings(ctx context.Context, pool string, p ledger.Patch) (ledger.Settings, error)
	DeletePool(ctx context.Context, pool, by string) (deleted bool, err error)
	// Status never blocks.
	Status() fsm.Status
}

// MembersBackend changes the membership; any node takes the calls.
type MembersBackend interface {
	AddNode(ctx context.Context, id, address string) error
	RemoveNode(ctx context.Context, id string) error
	// TransferLeadership returns once this node has heard who leads now. An empty id means any voter.
	TransferLeadership(ctx context.Context, id string) error
}

// SessionBackend changes sessions. A view of one that is closed and forgotten is a closed view.
type SessionBackend interface {
	OpenSession(ctx context.Context, r sessions.OpenRequest) (sessions.View, error)
	TouchSession(ctx context.Context, pool, id string) (sessions.View, error)
	BindSession(ctx context.Context, r sessions.BindRequest) (sessions.View, error)
	// CloseSession answers at once, with how far the close is.
	CloseSession(ctx context.Context, r sessions.CloseRequest) (sessions.View, error)
	// AwaitClosed blocks until the incarnation seq of the session is closed.
	AwaitClosed(ctx context.Context, pool, id string, seq uint64) (sessions.View, error)
	CloseGroup(ctx context.Context, pool, group string, mode sessions.Mode) (closing int, err error)
}

// PinBackend changes pins.
type PinBackend interface {
	// PinPrefix asks engines to hold the prefix when its token ids are given.
	PinPrefix(ctx context.Context, r sessions.PinRequest, tokenIDs []int32) (sessions.PinView, error)
	UnpinPrefix(ctx context.Context, pool, id string) (unpinned bool, err error)
}

// SessionReader answers reads of sessions.
type SessionReader interface {
	// Sessions calls fn with the table, which fn must neither change nor keep. It is linearizable unless
	// stale, which reads the local node as it is.
	Sessions(ctx context.Context, stale bool, fn func(*sessions.Table)) error
	// OwedStatus answers by session id what the leader knows of the engines that owe a close.
	OwedStatus(ctx context.Context, pool string, ids []string) (map[string][]sessions.OwedStatus, error)
}

// SnapshotBackend saves and restores archives.
type SnapshotBackend interface {
	// Save writes an archive of this node's state and journal, while decisions go on.
	Save(ctx context.Context, w io.Writer) (store.Header, error)
	// Restore replaces the state of the whole cluster; only the leader does.
	Restore(ctx context.Context, archive io.Reader, o fsm.RestoreOptions) (fsm.Restored, error)
}

// Backend is everything that a Server needs. A replica is one.
type Backend interface {
	AdmissionBackend
	LaneBackend
	HolderBackend
	ObserveBackend
	ClusterBackend
	MembersBackend
	SessionBackend
	PinBackend
	SessionReader
	SnapshotBackend
}

// poolName maps the API's unnamed pool to the ledger's name for it.
func poolName(pool string) string {
	if pool == "" {
		return ledger.DefaultPool
	}
	return pool
}
