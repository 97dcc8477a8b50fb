package fsm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"

	"kvgate/ledger"
	"kvgate/store"
)

// Snapshot implements raft.FSM. It has the image catch up and begins a read transaction, which is a consistent
// picture of the state after the newest applied entry; writing it out does not block Apply.
func (m *Machine) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.flush(context.Background()); err != nil {
		return nil, err
	}
	image, err := m.state.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("begin snapshot: %w", err)
	}
	index, term := m.state.Applied()
	var meta ledger.MetaRow
	m.view(func(l *ledger.Ledger) { meta = l.Meta() })
	return &snapshot{image: image, trail: m.trail, header: store.Header{
		ClusterID: meta.ClusterID, Index: index, Term: term, LedgerTime: int64(meta.Now),
	}}, nil
}

type snapshot struct {
	image  *store.StateSnapshot
	trail  *store.Journal
	header store.Header
}

// Persist implements raft.FSMSnapshot. The journal is sealed first: raft may drop the log entries
// before the snapshot, from which a damaged journal could have been rebuilt.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	if err := s.write(sink); err != nil {
		if cancelErr := sink.Cancel(); cancelErr != nil {
			err = fmt.Errorf("%w; cancelling it: %w", err, cancelErr)
		}
		return err
	}
	return sink.Close()
}

func (s *snapshot) write(w io.Writer) error {
	if err := s.trail.Seal(); err != nil {
		return fmt.Errorf("seal journal: %w", err)
	}
	s.header.WallTime = wallClock()
	return s.image.Save(w, s.header)
}

// Release implements raft.FSMSnapshot.
func (s *snapshot) Release() { s.image.Release() }

// Restore implements raft.FSM: it builds a fresh state beside the present one and swaps when it is
// whole. raft does not say which index the snapshot stands for, so the archive's own is taken. The
// journal is brought up to that index first: a crash in between leaves it ahead, which replay passes over.
func (m *Machine) Restore(rc io.ReadCloser) error {
	defer rc.Close()
	if err := m.flush(context.Background()); err != nil {
		return err
	}
	header, err := m.state.Replace(rc, func(h *store.Header) error {
		if h.Index != m.leapt.Load() {
			m.fill(h.Index)
		}
		// raft may now forget the entries from which the journal could be made again.
		return errors.Join(m.trail.Seal(), noteRestore(m.trail, h))
	})
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	c, err := loadCore(m.state)
	if err == nil {
		err = m.trim(c.ledger.Meta().JournalFirst)
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.core = c
	m.scribe.written.Store(header.Index)
	m.arrive(header.Index, true)
	m.mu.Unlock()
	m.notify(true)
	m.log.Info("state restored from a snapshot", "index", header.Index, "ledger_time", time.Duration(header.LedgerTime))
	return nil
}

// wallClock is for people who read the archive; no decision looks at it.
var wallClock = time.Now
