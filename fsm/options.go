package fsm

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"kvgate/sessions"
	"kvgate/store"
)

// Duty is work that only a leader does, such as polling engines. It must return soon after ctx ends.
type Duty func(ctx context.Context)

// Engines makes calls to engines; *sessions.Client does. It must be safe for concurrent use.
type Engines interface {
	OpenSession(ctx context.Context, engine, session string, idle time.Duration) error
	CloseSession(ctx context.Context, engine, session string) error
	Abort(ctx context.Context, engine, rid string) error
	// PinPrefix says whether the engine knows no pins.
	PinPrefix(ctx context.Context, engine string, tokens []int32, ttl time.Duration) (ledgerOnly bool, err error)
}

// Options configure a replica. The zero value of a field means its default.
type Options struct {
	// NodeID is a stable name, never an address.
	NodeID string
	// DataDir is made when it does not exist.
	DataDir string
	// RaftListen is the HOST:PORT for the other nodes, RaftAdvertise the one under which they reach it;
	// a name is resolved at every dial. RaftAdvertise defaults to RaftListen.
	RaftListen, RaftAdvertise string
	// APIAddress is the HOST:PORT of this node's public API, for other nodes to hint at.
	APIAddress string
	// ServerTLS and ClientTLS secure the traffic between nodes; both or none. ClientTLS is asked at every
	// dial, with the host that is dialled.
	ServerTLS *tls.Config
	ClientTLS func(serverName string) *tls.Config
	// Bootstrap makes the initial cluster when the directory holds none: this node alone, or Peers.
	Bootstrap bool
	Peers     []raft.Server
	// Join are raft addresses of a running cluster that a node with an empty directory asks to join.
	Join []string
	// FailOpenAfter bounds how long a call waits for a leader, a new ticket for its first decision, and
	// a waiting ticket beyond its max wait. Default 2 s.
	FailOpenAfter time.Duration
	// Duties returns the work of the leader: each duty runs under the context of a term. It is called
	// once, before the node can lead.
	Duties func(*Replica) []Duty
	// CommandVersion is the newest command version that the node pretends to know; for fault builds.
	// Default Version.
	CommandVersion uint32
	// Version is the build's version, for GetStatus.
	Version string
	Log     *slog.Logger
	// FreeSpaceFloor is the free space in bytes below which writes are refused. Default 64 MiB.
	FreeSpaceFloor uint64
	// DiskStallLimit is how long one write of the log may take before a leader with followers stops, so
	// that another can lead. Default 5 s.
	DiskStallLimit time.Duration
	// BeforeWrite runs before each write of raft's log, and of state and journal (OpPage), and may delay or fail it; for
	// fault builds.
	BeforeWrite func(op string) error
	// CheckDisk says why the disk must not be written now; for tests and fault builds. Default: it looks at
	// the free space of DataDir, and writes a small file.
	CheckDisk func() error
	// SnapshotThreshold is how many log entries make raft take a snapshot. Default 16384.
	SnapshotThreshold uint64
	// Halt ends the process when going on would be unsafe: an entry that cannot be applied, or a disk
	// that refuses raft's votes. Default: log and stop the replica. It may be called from any goroutine.
	Halt func(error)
	// Engines makes the calls to engines that sessions need. Nil means that no engine is ever called: what
	// closes owe stays owed until their deadline.
	Engines Engines
	// ObserveClose is told of each close_session and abort_request that ended on this node, from the
	// closer's goroutine: it must not block.
	ObserveClose func(sessions.Call)
	// Closer tunes the closes that this node sends while it leads; Observe and Log are set by the replica.
	Closer sessions.Options
	// Now reads the clock; only its monotonic part counts. Tests and fault builds set it.
	Now func() time.Time
}

func (o *Options) fill() error {
	if o.NodeID == "" || o.DataDir == "" || o.RaftListen == "" {
		return errors.New("node id, data directory and raft address are required")
	}
	if o.RaftAdvertise == "" {
		o.RaftAdvertise = o.RaftListen
	}
	if o.FailOpenAfter <= 0 {
		o.FailOpenAfter = 2 * time.Second
	}
	if o.FreeSpaceFloor == 0 {
		o.FreeSpaceFloor = 64 << 20
	}
	if o.CommandVersion == 0 {
		o.CommandVersion = Version
	}
	if o.CheckDisk == nil {
		o.CheckDisk = store.Guard{Path: o.DataDir, Floor: o.FreeSpaceFloor}.Check
	}
	if o.DiskStallLimit <= 0 {
		o.DiskStallLimit = 5 * time.Second
	}
	if o.SnapshotThreshold == 0 {
		o.SnapshotThreshold = 16384
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}
