package fsm

import (
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/sessions"
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
	// seq and sessionSeq are the least numbers that count as given out.
	seq        ledger.Seq
	sessionSeq uint64
	// journalFirst is where the journal there begins.
	journalFirst uint64
	// quarantine pools, so that nobody contacts the engines.
	quarantine bool
	// note is told by the journal.
	note store.Restored
}

// rebase writes the state of the archive in file, without its journal, to w as it is to be in p.
func rebase(file io.ReadSeeker, w io.Writer, p *place) (store.Header, error) {
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
	if s, ok, err := decodeSessionRow(b, key, value); ok || err != nil {
		if err != nil {
			return nil, err
		}
		p.sessionChange(&s, by)
		row, err := encodeSessionRow(s)
		return row.Value, err
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

// move moves times; zero means none.
func move[T ~int64](by time.Duration, times ...*T) {
	for _, t := range times {
		if *t != 0 {
			*t += T(by)
		}
	}
}

// change moves the times of one row.
func (p *place) change(c *ledger.Change, by time.Duration) {
	switch {
	case c.Meta != nil:
		c.Meta.Now = c.Meta.Now.Add(by)
		c.Meta.ClusterID, c.Meta.JournalFirst = p.clusterID, p.journalFirst
		c.Meta.Term, c.Meta.Leader = p.term, ""
		c.Meta.Seq = max(c.Meta.Seq, p.seq)
	case c.Pool != nil:
		c.Pool.Settings.Quarantine = c.Pool.Settings.Quarantine || p.quarantine
	case c.Capacity != nil:
		move(by, &c.Capacity.SnapshotAt)
	case c.Lease != nil:
		move(by, &c.Lease.GrantedAt, &c.Lease.Deadline, &c.Lease.ClaimBy)
	case c.Waiter != nil:
		move(by, &c.Waiter.Since, &c.Waiter.DropAt)
	case c.Mark != nil:
		move(by, &c.Mark.Until)
	case c.Holder != nil:
		move(by, &c.Holder.LastActive)
	}
}

// sessionChange moves the times of one row of the session table.
func (p *place) sessionChange(c *sessions.Change, by time.Duration) {
	switch {
	case c.Meta != nil:
		c.Meta.Seq = max(c.Meta.Seq, p.sessionSeq)
	case c.Session != nil:
		s := c.Session
		move(by, &s.OpenedAt, &s.ActiveAt, &s.LastTurnAt, &s.Close.Since, &s.Close.PhaseUntil, &s.Close.ForgetAt)
		if s.Binding != nil {
			move(by, &s.Binding.Since)
		}
	case c.Ticket != nil:
		move(by, &c.Ticket.Since, &c.Ticket.Until)
	case c.Pin != nil:
		move(by, &c.Pin.Since, &c.Pin.Until)
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
	return trail.Append(store.JournalEntry{Index: h.Index, Events: [][]byte{raw}})
}
