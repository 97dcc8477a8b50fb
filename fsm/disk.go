package fsm

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/hashicorp/raft"

	"kvgate/store"
)

// disk is everything that a node keeps.
type disk struct {
	dir       *store.Dir
	state     *store.State
	trail     *store.Journal
	rafts     *store.RaftStore
	logs      raft.LogStore
	snapshots raft.SnapshotStore
}

// openDisk opens a data directory and leaves the state image where raft's replay can carry on from:
// as it is when it can be trusted and is not older than the newest snapshot, else restored from that
// snapshot. Then raft replays what the image has not seen.
func openDisk(path, nodeID string, log *slog.Logger, raftOpts store.RaftOptions) (d *disk, err error) {
	d = &disk{}
	defer func() {
		if err != nil {
			d, err = nil, errors.Join(err, d.close())
		}
	}()
	if d.dir, err = store.OpenDir(path, nodeID); err != nil {
		return d, err
	}
	if d.rafts, err = store.OpenRaft(d.dir, raftOpts); err != nil {
		return d, err
	}
	if d.logs, err = d.rafts.Logs(); err != nil {
		return d, err
	}
	if d.snapshots, err = store.SnapshotStore(d.dir, hclogTo(log)); err != nil {
		return d, err
	}
	if d.trail, err = store.OpenJournal(d.dir, store.JournalOptions{Log: log}); err != nil {
		return d, err
	}
	if d.state, _, err = store.OpenState(d.dir, store.StateOptions{Log: log}); err != nil {
		return d, err
	}
	return d, d.settle(log)
}

// settle decides what the state image starts from.
func (d *disk) settle(log *slog.Logger) error {
	if after, needed := d.trail.NeedsReplay(); needed {
		if _, err := d.state.Discard(fmt.Sprintf("the journal lost what came after entry %d", after)); err != nil {
			return err
		}
	}
	metas, err := d.snapshots.List()
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	applied, _ := d.state.Applied()
	if len(metas) == 0 || applied >= metas[0].Index {
		return nil
	}
	return d.restore(metas, applied, log)
}

// restore rebuilds the image from the newest snapshot that can be read. The index is raft's: an
// archive's own is another one after a restore by an operator.
func (d *disk) restore(metas []*raft.SnapshotMeta, applied uint64, log *slog.Logger) error {
	var failures error
	for _, meta := range metas {
		err := d.restoreOne(meta)
		if err == nil {
			log.Warn("state rebuilt from a snapshot", "snapshot", meta.ID, "index", meta.Index, "had", applied)
			return nil
		}
		log.Error("snapshot cannot be used", "snapshot", meta.ID, "error", err)
		failures = errors.Join(failures, fmt.Errorf("snapshot %s: %w", meta.ID, err))
	}
	return fmt.Errorf("no snapshot can be used; restore the data directory from another node: %w", failures)
}

func (d *disk) restoreOne(meta *raft.SnapshotMeta) error {
	_, rc, err := d.snapshots.Open(meta.ID)
	if err != nil {
		return err
	}
	defer rc.Close()
	_, err = d.state.Replace(rc, func(h *store.Header) error {
		h.Index, h.Term = meta.Index, meta.Term
		return noteRestore(d.trail, h)
	})
	return err
}

// close flushes and closes whatever was opened, and marks it clean.
func (d *disk) close() error {
	var err error
	if d.state != nil {
		err = errors.Join(err, d.state.Close())
	}
	if d.trail != nil {
		err = errors.Join(err, d.trail.Close())
	}
	if d.rafts != nil {
		err = errors.Join(err, d.rafts.Close())
	}
	if d.dir != nil {
		err = errors.Join(err, d.dir.Close())
	}
	return err
}
