package fsm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"kvgate/ledger"
	"kvgate/store"
)

// ErrReadOnlySnapshot: something that only a running node can do was asked of an [Offline].
var ErrReadOnlySnapshot = errors.New("read-only snapshot")

// StateOffline is the state that an [Offline] says it is in.
const StateOffline = "offline"

// offlineNode is the node id of a reader that serves an archive.
const offlineNode = "snapshot"

// Offline answers reads from an archive, or from the data directory of a stopped node. It works on a copy of
// its own below the temporary directory, so that what it was given stays as it is. A copy of a process that was
// killed is removed by the next one that opens something. Writes fail with
// ErrReadOnlySnapshot. Safe for concurrent use.
type Offline struct {
	// Header says where the state comes from. For a data directory it is made up from what is found.
	Header store.Header

	path     string
	scratch  *store.Scratch
	disk     *disk
	machine  *Machine
	recovery *Recovery
	status   Status
}

// OpenOffline opens an archive file or a data directory. A directory whose state lags behind its log is brought
// up to the log's end, in the copy: entries that no majority confirmed count as if one had. Errors:
// [store.ErrLocked] while a node runs on the directory, [ErrNothingToRecover], and those of
// [store.ArchiveReader].
func OpenOffline(path string, log *slog.Logger) (*Offline, error) {
	found, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	o := &Offline{path: path}
	if o.scratch, err = newScratch("kvgate-offline-", log); err != nil {
		return nil, err
	}
	if found.IsDir() {
		err = o.openDirectory(log)
	} else {
		err = o.openArchive(log)
	}
	if err != nil {
		return nil, errors.Join(err, o.Close())
	}
	o.describe()
	return o, nil
}

// newScratch makes a directory for a copy, and removes those that processes which were killed left behind.
func newScratch(prefix string, log *slog.Logger) (*store.Scratch, error) {
	removed, err := store.SweepScratch(prefix)
	for _, path := range removed {
		log.Info("removed a copy that a killed process left behind", slog.String("path", path))
	}
	if err != nil {
		log.Warn("copies that killed processes left behind are still there", slog.Any("error", err))
	}
	return store.NewScratch(prefix)
}

func (o *Offline) openDirectory(log *slog.Logger) (err error) {
	if _, err := store.ReadNodeInfo(o.path); err != nil {
		return fmt.Errorf("%w: give the data directory of a node, or an archive", err)
	}
	if err := store.Mirror(o.path, o.scratch.Path()); err != nil {
		return err
	}
	if o.recovery, err = OpenRecovery(o.scratch.Path(), log); err != nil {
		return err
	}
	o.disk, o.machine = o.recovery.disk, o.recovery.machine
	index, term := o.disk.state.Applied()
	o.Header = store.Header{Index: index, Term: term, WallTime: o.lastWallTime()}
	o.status.Nodes = append(o.status.Nodes, o.recovery.Members()...)
	for _, n := range o.status.Nodes {
		o.Header.Members = append(o.Header.Members, store.Member{ID: n.ID, Address: n.Address, Voter: n.Voter})
	}
	o.status.NodeID = o.recovery.NodeID()
	o.status.Health = fmt.Sprintf("read-only: data directory of node %s, which is stopped", o.recovery.NodeID())
	return nil
}

func (o *Offline) openArchive(log *slog.Logger) (err error) {
	if o.disk, err = loadArchive(o.path, o.scratch.Path(), offlineNode, log); err != nil {
		return err
	}
	if o.machine, err = newMachine(o.disk, Version, log, func(error) {}); err != nil {
		return err
	}
	o.Header, err = store.ReadHeader(o.path)
	o.status.Nodes = membersOf(o.Header)
	o.status.NodeID = offlineNode
	o.status.Health = "read-only: snapshot saved " + o.Header.WallTime.UTC().Format(time.RFC3339)
	return err
}

// membersOf returns the nodes that an archive tells of. Archives of the first releases have their versions only.
func membersOf(h store.Header) (nodes []NodeStatus) {
	for _, m := range h.Members {
		nodes = append(nodes, NodeStatus{ID: m.ID, Address: m.Address, APIAddress: m.APIAddress, Voter: m.Voter, Version: h.NodeVersions[m.ID]})
	}
	for id, version := range h.NodeVersions {
		if !slices.ContainsFunc(h.Members, func(m store.Member) bool { return m.ID == id }) {
			nodes = append(nodes, NodeStatus{ID: id, Version: version})
		}
	}
	sortNodes(nodes)
	return nodes
}

// loadArchive makes an empty directory the data directory of a node with the archive's state and journal. Its
// raft log stays empty.
func loadArchive(path, dir, node string, log *slog.Logger) (d *disk, err error) {
	if d, err = openDisk(dir, node, log, store.RaftOptions{Log: log}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", path, err), d.close())
			d = nil
		}
	}()
	f, err := os.Open(path)
	if err != nil {
		return d, err
	}
	defer f.Close()
	header, err := d.state.Replace(f)
	if err != nil {
		return d, err
	}
	if _, err = f.Seek(0, 0); err != nil {
		return d, err
	}
	_, err = d.trail.Load(f, header.JournalFirst)
	return d, err
}

// describe fills in what Status answers.
func (o *Offline) describe() {
	var leader string
	o.machine.view(func(l *ledger.Ledger) {
		m := l.Meta()
		leader, o.status.ClusterID, o.status.LedgerTime = m.Leader, m.ClusterID, m.Now
	})
	o.Header.ClusterID, o.Header.LedgerTime = o.status.ClusterID, int64(o.status.LedgerTime)
	s := &o.status
	s.State, s.Ready, s.RecordedUntil = StateOffline, true, o.Header.WallTime
	s.Term, s.AppliedIndex, s.CommitIndex = o.Header.Term, o.Header.Index, o.Header.Index
	if s.LeaderID = leader; leader == "" {
		s.LeaderID = s.NodeID
	}
	s.Version = o.Header.NodeVersions[leader]
}

// lastWallTime is that of the newest event: a directory does not say when it was written.
func (o *Offline) lastWallTime() (at time.Time) {
	trail := o.disk.trail
	_ = trail.Read(trail.Last(), 0, 0, func(_ uint64, _ uint32, data []byte) (bool, error) {
		e, err := DecodeEvent(data)
		if err == nil {
			at = time.Unix(0, e.WallTime).UTC()
		}
		return err == nil, err
	})
	return at
}

// View calls fn with the ledger as it was, which fn must neither change nor keep.
func (o *Offline) View(_ context.Context, _ bool, fn func(*ledger.Ledger)) error {
	o.machine.view(fn)
	return nil
}

// Journal returns the events that match, in order.
func (o *Offline) Journal(_ context.Context, _ bool, q store.JournalQuery) (store.JournalPage, error) {
	return readJournal(o.disk.trail, q)
}

// Status says what the file knows of its cluster.
func (o *Offline) Status() Status { return o.status }

// Hash returns the checksum of the state, as [store.State.Hash] does.
func (o *Offline) Hash() (string, error) {
	sum, _, err := o.disk.state.Hash()
	return sum, err
}

// Close removes the copy. No call may be under way.
func (o *Offline) Close() error {
	var err error
	switch {
	case o.recovery != nil:
		err = o.recovery.Close()
	case o.disk != nil:
		err = o.disk.close()
	}
	o.recovery, o.disk = nil, nil
	return errors.Join(err, o.scratch.Close())
}

// JournalEvents returns how many events the file holds, those before the first kept one of its oldest part
// included.
func (o *Offline) JournalEvents() uint64 { return o.disk.trail.Count() }
