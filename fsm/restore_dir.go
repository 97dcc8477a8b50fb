package fsm

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"kvgate/ledger"
	"kvgate/store"
)

// DirectoryRestore makes a data directory from an archive. All fields are required.
type DirectoryRestore struct {
	Archive string
	DataDir string
	NodeID  string
	// RaftAddress is the HOST:PORT under which other nodes will reach the node.
	RaftAddress string
	Log         *slog.Logger
	// Now is for people: the journal tells when the restore was.
	Now func() time.Time
}

// newClusterTerm is the term that a restored state belongs to in its new cluster.
const newClusterTerm = 1

// Run makes DataDir, which must be empty, the directory of the only node of a new cluster with the archive's
// state and journal, all pools in quarantine. Deadlines keep the time that they had left. Errors:
// [store.ErrNotEmpty], those of [store.ArchiveReader].
func (d DirectoryRestore) Run() (done Restored, err error) {
	source, err := OpenOffline(d.Archive, d.Log)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	p := &place{
		clusterID: uuid.NewString(), index: source.Header.Index + 1, term: newClusterTerm, now: -1,
		quarantine: true, note: source.note(d.Now(), 0),
	}
	source.machine.look(func(c *core) {
		m := c.ledger.Meta()
		// The cluster that was saved went on giving out numbers, which callers may still show.
		p.journalFirst, p.seq, p.sessionSeq = m.JournalFirst, m.Seq+leap, c.table.Seq()+leap
	})
	err = store.NewDir(d.DataDir, func(dir string) error { return d.build(dir, p, source.Header.JournalFirst) })
	return Restored{
		Index: p.index, ArchiveIndex: p.note.Index, Quarantined: source.pools(), ClusterID: p.clusterID,
	}, err
}

func (d DirectoryRestore) build(dir string, p *place, journalFirst uint64) (err error) {
	to := filepath.Join(dir, "rebased")
	rebased, err := rebasedFile(d.Archive, to, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rebased.Close()) }()
	k, err := openDisk(dir, d.NodeID, d.Log, store.RaftOptions{Log: d.Log})
	if err != nil {
		return err
	}
	err = d.fill(k, p, rebased, journalFirst)
	return errors.Join(err, k.close(), os.Remove(to))
}

// fill gives an empty disk the state, the journal, and a raft snapshot that both follow from.
func (d DirectoryRestore) fill(k *disk, p *place, rebased *os.File, journalFirst uint64) error {
	archive, err := os.Open(d.Archive)
	if err != nil {
		return err
	}
	defer archive.Close()
	if _, err := k.trail.Load(archive, journalFirst); err != nil {
		return err
	}
	if _, err := rebased.Seek(0, io.SeekStart); err != nil {
		return err
	}
	header, err := k.state.Replace(rebased)
	if err != nil {
		return err
	}
	if err := errors.Join(noteRestore(k.trail, &header), k.trail.Seal(), k.dir.SetClusterID(p.clusterID)); err != nil {
		return err
	}
	if _, err := rebased.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return d.snapshot(k, p, rebased)
}

// snapshot writes raft's part: a snapshot whose only member is this node, and the term that it belongs to.
func (d DirectoryRestore) snapshot(k *disk, p *place, rebased io.Reader) error {
	members := raft.Configuration{Servers: []raft.Server{{
		ID: raft.ServerID(d.NodeID), Address: raft.ServerAddress(d.RaftAddress), Suffrage: raft.Voter,
	}}}
	if err := k.rafts.SetUint64([]byte("CurrentTerm"), p.term); err != nil {
		return fmt.Errorf("write raft's term: %w", err)
	}
	_, nowhere := raft.NewInmemTransport("")
	sink, err := k.snapshots.Create(raft.SnapshotVersionMax, p.index, p.term, members, p.index, nowhere)
	if err != nil {
		return fmt.Errorf("write raft's snapshot: %w", err)
	}
	if _, err := io.Copy(sink, rebased); err != nil {
		return errors.Join(fmt.Errorf("write raft's snapshot: %w", err), sink.Cancel())
	}
	return sink.Close()
}

// quarantined returns the pools whose engines nobody may contact.
func quarantined(l *ledger.Ledger) (names []string) {
	for _, name := range l.Pools() {
		if set, ok := l.Settings(name); ok && set.Quarantine {
			names = append(names, name)
		}
	}
	return names
}
