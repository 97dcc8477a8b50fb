package fsm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/hashicorp/raft"

	"kvgate/store"
)

// Errors of a recovery.
var (
	// ErrNothingToRecover: the directory was never part of a cluster.
	ErrNothingToRecover = errors.New("the data directory holds no cluster")
	// ErrNotMember: a recovered node must be a member of its cluster.
	ErrNotMember = errors.New("the node must be one of the new members")
)

// Recovery is the data directory of a stopped node whose cluster lost its majority for good. It holds the
// directory's lock until Close.
type Recovery struct {
	node    string
	disk    *disk
	machine *Machine
	log     *slog.Logger
	config  *raft.Config
	members []NodeStatus
	last    raft.Log
}

// atOnce has a machine give up when its disk refuses to be written: somebody waits to hear why, and can make room.
var atOnce = func() <-chan struct{} {
	over := make(chan struct{})
	close(over)
	return over
}()

// OpenRecovery opens the directory of a stopped node and applies its whole log, so that what is in it is
// known to be usable. Entries that no majority has confirmed are applied as if one had. Errors:
// [store.ErrLocked] while the node runs, ErrNothingToRecover.
func OpenRecovery(dataDir string, log *slog.Logger) (*Recovery, error) {
	info, err := store.ReadNodeInfo(dataDir)
	if err != nil {
		return nil, err
	}
	r := &Recovery{node: info.NodeID, log: log}
	if err := r.open(dataDir); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Recovery) open(dataDir string) (err error) {
	if r.disk, err = openDisk(dataDir, r.node, r.log, store.RaftOptions{Log: r.log}); err != nil {
		return err
	}
	has, err := raft.HasExistingState(r.disk.logs, r.disk.rafts, r.disk.snapshots)
	if err != nil {
		return fmt.Errorf("look for raft state: %w", err)
	}
	if !has {
		return fmt.Errorf("%w: %s", ErrNothingToRecover, dataDir)
	}
	if r.machine, err = newMachine(r.disk, Version, r.log, func(error) {}); err != nil {
		return err
	}
	r.machine.stopping = atOnce
	if err := r.replay(); err != nil {
		return err
	}
	return r.readMembers()
}

// replay applies what the log holds beyond the state on disk.
func (r *Recovery) replay() error {
	first, err := r.disk.logs.FirstIndex()
	if err != nil {
		return err
	}
	last, err := r.disk.logs.LastIndex()
	if err != nil {
		return err
	}
	for index := max(first, 1); index <= last; index++ {
		var entry raft.Log
		if err := r.disk.logs.GetLog(index, &entry); err != nil {
			return fmt.Errorf("log entry %d: %w", index, err)
		}
		if entry.Type == raft.LogCommand {
			r.machine.Apply(&entry)
		}
		r.last = entry
	}
	if err := r.machine.flush(context.Background()); err != nil {
		return err
	}
	return r.lastFromSnapshot()
}

// lastFromSnapshot finds the newest entry when the log holds none.
func (r *Recovery) lastFromSnapshot() error {
	metas, err := r.disk.snapshots.List()
	if err != nil || len(metas) == 0 || metas[0].Index <= r.last.Index {
		return err
	}
	r.last = raft.Log{Index: metas[0].Index, Term: metas[0].Term}
	return nil
}

func (r *Recovery) readMembers() error {
	r.config = raft.DefaultConfig()
	r.config.LocalID = raft.ServerID(r.node)
	r.config.NoSnapshotRestoreOnStart = true
	r.config.Logger = hclogTo(r.log)
	_, nowhere := raft.NewInmemTransport("")
	asked := *r.config // GetConfiguration marks the one it is given
	found, err := raft.GetConfiguration(&asked, settled{r.machine}, r.disk.logs, r.disk.rafts, r.disk.snapshots, nowhere)
	if err != nil {
		return fmt.Errorf("read the membership: %w", err)
	}
	for _, s := range found.Servers {
		r.members = append(r.members, NodeStatus{ID: string(s.ID), Address: string(s.Address), Voter: s.Suffrage == raft.Voter})
	}
	return nil
}

// NodeID returns the id of the node that the directory belongs to.
func (r *Recovery) NodeID() string { return r.node }

// ClusterID returns the cluster's id, empty when no leader ever named it.
func (r *Recovery) ClusterID() string { return r.disk.dir.Node().ClusterID }

// Members returns the members that the node knew last.
func (r *Recovery) Members() []NodeStatus { return r.members }

// Last returns index and term of the node's newest entry. What other nodes acknowledged after it is not
// here.
func (r *Recovery) Last() (index, term uint64) { return r.last.Index, r.last.Term }

// Rewrite makes servers the members of the cluster, all of them voters. The node must be one of them.
func (r *Recovery) Rewrite(servers []raft.Server) error {
	member := false
	for _, s := range servers {
		member = member || string(s.ID) == r.node
	}
	if !member {
		return fmt.Errorf("%w: node %q", ErrNotMember, r.node)
	}
	_, nowhere := raft.NewInmemTransport("")
	err := raft.RecoverCluster(r.config, settled{r.machine}, r.disk.logs, r.disk.rafts, r.disk.snapshots, nowhere,
		raft.Configuration{Servers: servers})
	if err != nil {
		return fmt.Errorf("rewrite the membership: %w", err)
	}
	return r.machine.flush(context.Background())
}

// Close releases the directory.
func (r *Recovery) Close() error {
	if r.disk == nil {
		return nil
	}
	d := r.disk
	r.disk = nil
	if r.machine != nil {
		r.machine.rest()
	}
	return d.close()
}

// settled is a machine whose state is not older than any snapshot: see openDisk. Restoring one would
// take it back, so it is not done.
type settled struct{ *Machine }

// Snapshot implements raft.FSM. raft.RecoverCluster does not release its snapshot, and an image that is
// open would keep state.db open.
func (s settled) Snapshot() (raft.FSMSnapshot, error) {
	snap, err := s.Machine.Snapshot()
	return once{snap}, err
}

// once is a snapshot that is released when it has been written.
type once struct{ raft.FSMSnapshot }

// Persist implements raft.FSMSnapshot.
func (o once) Persist(sink raft.SnapshotSink) error {
	defer o.Release()
	return o.FSMSnapshot.Persist(sink)
}

// Restore implements raft.FSM.
func (settled) Restore(rc io.ReadCloser) error { return rc.Close() }
