package fsm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/store"
)

// Rebasing makes an archive fit where it is restored: the entry that it stands for is one that raft chose, its
// times are moved to the ledger time there, and its numbers go on above those that were given out.

// place is where an archive is restored to.
type place struct {
	clusterID string
	// index and term are raft's for the restored state.
	index, term uint64
	// now is ledger time there; negative keeps the archive's.
	now ledger.Time
	// seq is the least number for what is decided next.
	seq ledger.Seq
	// journalFirst is where the journal there begins.
	journalFirst uint64
	// quarantine pools, so that nobody contacts the engines.
	quarantine bool
	// note is told by the journal.
	note store.Restored
}

// rebase writes the state of the archive in file, without its journal, to w as it is to be in p.
func rebase(file *os.File, w io.Writer, p *place) (store.Header, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return store.Header{}, err
	}
	in, err := store.NewArchiveReader(file)
	if err != nil {
		return store.Header{}, err
	}
	old := in.Header()
	by := time.Duration(0)
	if p.now >= 0 {
		by = p.now.Sub(ledger.Time(old.LedgerTime))
	}
	header := store.Header{
		ClusterID: p.clusterID, Index: p.index, Term: p.term, LedgerTime: old.LedgerTime + int64(by), WallTime: p.note.At,
		NodeVersions: old.NodeVersions, Restored: &p.note,
	}
	out, err := store.NewArchiveWriter(w, header)
	if err != nil {
		return header, err
	}
	if err := rebaseRows(in, out, p, by); err != nil {
		return header, err
	}
	return header, out.Close()
}

func rebaseRows(in *store.ArchiveReader, out *store.ArchiveWriter, p *place, by time.Duration) error {
	at := ""
	for {
		section, key, value, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		bucket, ok := store.ParseBucket(section)
		if !ok {
			continue
		}
		if section != at {
			if err := out.Section(section); err != nil {
				return err
			}
			at = section
		}
		if value, err = p.row(bucket, key, value, by); err != nil {
			return err
		}
		if err := out.Row(key, value); err != nil {
			return err
		}
	}
}

// row returns what a row becomes. No key holds a time.
func (p *place) row(b store.Bucket, key, value []byte, by time.Duration) ([]byte, error) {
	if _, ok := rowDecoders[b]; !ok {
		return value, nil
	}
	c, err := decodeRow(b, key, value)
	if err != nil {
		return nil, err
	}
	p.change(&c, by)
	row, err := encodeRow(c)
	if err != nil {
		return nil, fmt.Errorf("%w: row %q of bucket %v: %w", ErrCorrupt, key, b, err)
	}
	return row.Value, nil
}

// change moves the times of one row. Zero means none where a time may be absent.
func (p *place) change(c *ledger.Change, by time.Duration) {
	move := func(times ...*ledger.Time) {
		for _, t := range times {
			*t = t.Add(by)
		}
	}
	moveSome := func(t *ledger.Time) {
		if *t != 0 {
			move(t)
		}
	}
	switch {
	case c.Meta != nil:
		move(&c.Meta.Now)
		c.Meta.ClusterID, c.Meta.JournalFirst = p.clusterID, p.journalFirst
		c.Meta.Term, c.Meta.Leader = p.term, ""
		c.Meta.Seq = max(c.Meta.Seq, p.seq)
	case c.Pool != nil:
		c.Pool.Settings.Quarantine = c.Pool.Settings.Quarantine || p.quarantine
	case c.Capacity != nil:
		if c.Capacity.Snapshot {
			move(&c.Capacity.SnapshotAt)
		}
	case c.Lease != nil:
		move(&c.Lease.GrantedAt, &c.Lease.Deadline)
		moveSome(&c.Lease.ClaimBy)
	case c.Waiter != nil:
		move(&c.Waiter.Since)
		moveSome(&c.Waiter.DropAt)
	case c.Mark != nil:
		move(&c.Mark.Until)
	case c.Holder != nil:
		move(&c.Holder.LastActive)
	}
}

// noteRestore has the journal tell of a restore by an operator, at the restored entry, which is no other
// event's. Safe to repeat. Not a restore: nothing.
func noteRestore(trail *store.Journal, h *store.Header) error {
	if h.Restored == nil {
		return nil
	}
	n := h.Restored
	detail := fmt.Sprintf("state of cluster %s at entry %d, saved %s", n.ClusterID, n.Index, n.SavedAt.UTC().Format(time.RFC3339))
	if n.Dropped > 0 {
		detail += fmt.Sprintf("; %d newer events dropped", n.Dropped)
	}
	e := ledger.Event{Kind: ledger.KindRestored, At: ledger.Time(h.LedgerTime), Detail: detail}
	var m fsmpb.Event
	encodeEvent(&e, n.At.UnixNano(), &m)
	raw, err := proto.Marshal(&m)
	if err != nil {
		return err
	}
	return trail.Append(h.Index, [][]byte{raw})
}
