package fsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"kvgate/ledger"
	"kvgate/store"
)

// Errors of a restore.
var (
	// ErrWrongCluster: the cluster is not the one that was named to be replaced.
	ErrWrongCluster = errors.New("not the cluster that was confirmed")
	// ErrNewerState: decisions that are newer than the archive would be lost.
	ErrNewerState = errors.New("newer decisions would be lost")
	// ErrBadArchive: the archive cannot be restored.
	ErrBadArchive = errors.New("archive cannot be restored")
)

// RestoreOptions guard a restore into a running cluster.
type RestoreOptions struct {
	// Confirm is the id of the cluster whose state is to be replaced.
	Confirm string
	// Force also loses decisions that are newer than the archive.
	Force bool
}

// Restored says what a restore did.
type Restored struct {
	// Index is the log index of the restored state, ArchiveIndex the one the archive was saved at.
	Index, ArchiveIndex uint64
	// Dropped counts events whose effects are gone.
	Dropped int64
	// Quarantined are the pools that may not contact their engines.
	Quarantined []string
	ClusterID   string
}

// leap is how far a restore jumps ahead in log indexes and numbers. raft gives a restored state the index
// after the greater of its log's last and the one named, but never tells the machine; named from far ahead, it
// is known before. It also keeps numbers that were given out meanwhile from being given again.
const leap = 1 << 20

// restoreTimeout bounds how long a restore waits for a majority.
const restoreTimeout = 2 * time.Minute

// Restore replaces the state of the cluster with that of an archive. Only the leader does. The archive is read
// to its end and checked, loaded and rebased before anything is touched. Deadlines keep the time that they had
// left, the journal stays and tells of the restore, callers that are blocked ask anew. An archive of another
// cluster puts its pools in quarantine. Errors: ErrWrongCluster, ErrNewerState, ErrBadArchive with the place,
// those of a node that does not lead.
func (r *Replica) Restore(ctx context.Context, archive io.Reader, o RestoreOptions) (done Restored, err error) {
	t, err := r.lead(ctx)
	if err != nil {
		return done, err
	}
	if id := r.clusterID(); o.Confirm != id {
		return done, fmt.Errorf("%w: this is cluster %q, confirmed was %q", ErrWrongCluster, id, o.Confirm)
	}
	if err := r.guard.refuses(); err != nil {
		return done, err
	}
	scratch, err := newScratch("kvgate-restore-", r.log)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, scratch.Close()) }()
	dir := scratch.Path()
	source, err := r.receive(filepath.Join(dir, "archive"), archive)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	return r.replace(ctx, t, source, dir, o.Force)
}

// receive stores an archive, and opens it, which checks all of it.
func (r *Replica) receive(path string, archive io.Reader) (*Offline, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(f, archive)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	source, err := OpenOffline(path, r.log)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadArchive, err)
	}
	return source, nil
}

// replace has raft take the state of source.
func (r *Replica) replace(ctx context.Context, t *term, source *Offline, dir string, force bool) (done Restored, err error) {
	foreign := source.status.ClusterID != r.clusterID()
	var newer lossOf
	// What was decided so far is counted while decisions go on, and then the little that came meanwhile.
	if err := r.addNewer(ctx, &newer, source, foreign, force); err != nil {
		return done, err
	}
	r.restoring.Lock()
	defer r.restoring.Unlock()
	if err := r.addNewer(ctx, &newer, source, foreign, force); err != nil {
		return done, err
	}
	if t.ctx.Err() != nil {
		return done, ErrLeadershipLost
	}
	p := r.placeFor(t, source, foreign, newer.count)
	file, err := rebasedFile(source.path, filepath.Join(dir, "rebased"), p)
	if err != nil {
		return done, fmt.Errorf("%w: %w", ErrBadArchive, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	size, err := file.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return done, err
	}
	// The log ends here for good, so the journal must not need it any more.
	if err := r.machine.trail.Seal(); err != nil {
		return done, err
	}
	// raft replaces the leader's state before any other node has heard of it, so a majority must be there now.
	if err := r.verifyLead(ctx); err != nil {
		return done, err
	}
	r.machine.leapt.Store(p.index)
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: p.index - 1, Term: p.term, Size: size}
	if err := r.raft.Restore(meta, file, restoreTimeout); err != nil {
		return done, unsettled(err)
	}
	// Whoever was blocked on the old state asks the new one.
	t.fail(fmt.Errorf("%w: the state was replaced by an operator", ErrLeadershipLost))
	r.log.Warn("state replaced by an operator", "archive_cluster", p.note.ClusterID, "archive_index", p.note.Index,
		"index", p.index, "dropped", newer.count)
	done = Restored{Index: p.index, ArchiveIndex: p.note.Index, Dropped: newer.count, ClusterID: p.clusterID}
	if foreign {
		done.Quarantined = source.pools()
	}
	return done, nil
}

func (r *Replica) placeFor(t *term, source *Offline, foreign bool, dropped int64) *place {
	var (
		meta       ledger.MetaRow
		sessionSeq uint64
	)
	r.machine.look(func(c *core) { meta, sessionSeq = c.ledger.Meta(), c.table.Seq() })
	return &place{
		clusterID: meta.ClusterID, index: max(r.raft.LastIndex(), source.Header.Index) + leap, term: meta.Term,
		now: t.clock.ledgerNow(), seq: meta.Seq + leap, sessionSeq: sessionSeq + leap, journalFirst: meta.JournalFirst, quarantine: foreign,
		note: source.note(r.now(), dropped),
	}
}

// note says where a restored state comes from.
func (o *Offline) note(at time.Time, dropped int64) store.Restored {
	return store.Restored{ClusterID: o.Header.ClusterID, Index: o.Header.Index, SavedAt: o.Header.WallTime, At: at.UTC(), Dropped: dropped}
}

func (o *Offline) pools() (names []string) {
	o.machine.view(func(l *ledger.Ledger) { names = l.Pools() })
	return names
}

// rebasedFile writes the rebased archive beside the one at path, and opens it.
func rebasedFile(path, to string, p *place) (*os.File, error) {
	from, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	out, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := rebase(from, out, p); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return out, nil
}

// passive are the kinds of events whose loss takes nothing from anybody: they are about the engines or
// the cluster itself, and happen again.
var passive = []string{
	string(ledger.KindCapacity), string(ledger.KindUsage), string(ledger.KindEpoch), string(ledger.KindDegraded), string(ledger.KindRecovered),
	string(ledger.KindLeader), string(ledger.KindTrimmed), string(ledger.KindAttached), string(ledger.KindDetached),
}

// lossOf is what a restore would lose.
type lossOf struct {
	count int64
	kind  string
	what  string
	at    time.Time
	// before is not 0 when what was decided before that entry is not known any more.
	before uint64
	// parted is not 0 when the cluster did not decide what the archive says it did at that entry, as after `recover`:
	// what it decided instead is not in the archive, however high the archive's entries count.
	parted uint64
	// upTo is the last entry that was looked at.
	upTo uint64
}

func (l *lossOf) nothing() bool { return l.count == 0 && l.before == 0 && l.parted == 0 }

func (l *lossOf) String() string {
	var parts []string
	if l.count > 0 {
		parts = append(parts, fmt.Sprintf("%d events are newer than the archive, the last one %s %s at %s",
			l.count, l.kind, l.what, l.at.UTC().Format(time.RFC3339)))
	}
	if l.before > 0 {
		parts = append(parts, fmt.Sprintf("what was decided between the archive and entry %d is not known, the journal does not reach back", l.before))
	}
	if l.parted > 0 {
		parts = append(parts, fmt.Sprintf("this cluster did not decide what the archive tells of entry %d, so it went another way before", l.parted))
	}
	return strings.Join(parts, "; ")
}

// partedFrom returns the entry of the archive's newest event when this journal should hold that event and does not;
// else 0.
func (r *Replica) partedFrom(source *Offline) (uint64, error) {
	theirs, ours := source.disk.trail, r.machine.trail
	last := theirs.Last()
	if last == 0 || last < theirs.First() || last < ours.First() {
		return 0, nil
	}
	want, err := eventsOf(theirs, last)
	if err != nil {
		return 0, err
	}
	got, err := eventsOf(ours, last)
	if err != nil || slices.EqualFunc(want, got, bytes.Equal) {
		return 0, err
	}
	return last, nil
}

// eventsOf returns the events of one entry.
func eventsOf(trail *store.Journal, at uint64) (events [][]byte, err error) {
	err = trail.Read(at, 0, 0, func(index uint64, _ uint32, data []byte) (bool, error) {
		if index == at {
			events = append(events, bytes.Clone(data))
		}
		return index == at, nil
	})
	return events, err
}

// addNewer counts what was decided after the archive was saved and is not counted yet; all there is when it is
// another cluster's. It refuses when there is any and the loss is not forced.
func (r *Replica) addNewer(ctx context.Context, loss *lossOf, source *Offline, foreign, force bool) error {
	from := source.Header.Index + 1
	if foreign {
		from = 0
	}
	if err := r.machine.flush(ctx); err != nil {
		return err
	}
	trail := r.machine.trail
	var trimmed uint64
	r.machine.view(func(l *ledger.Ledger) { trimmed = l.Meta().JournalFirst })
	if first := trail.First(); foreign && trimmed > 0 || !foreign && first > from {
		loss.before = max(first, trimmed)
	}
	var err error
	if !foreign {
		if loss.parted, err = r.partedFrom(source); err != nil {
			return err
		}
	}
	err = trail.Read(max(from, loss.upTo+1), 0, 0, func(index uint64, _ uint32, data []byte) (bool, error) {
		loss.upTo = index
		e, err := DecodeEvent(data)
		if err != nil || slices.Contains(passive, e.Kind) {
			return err == nil, err
		}
		loss.count++
		loss.kind, loss.what, loss.at = e.Kind, e.Ticket+e.Detail, time.Unix(0, e.WallTime)
		return true, nil
	})
	if err == nil && !loss.nothing() && !force {
		err = fmt.Errorf("%w: %s; force the restore to lose them", ErrNewerState, loss)
	}
	return err
}
