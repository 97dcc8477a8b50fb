package fsm

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"kvgate/store"
)

// The machine's image on disk and its journal follow what is applied at a little distance: the log is on disk
// already, so an answer need not wait for them, and what several entries changed is written once. A lease that
// came and went meanwhile is never a row.

// OpPage names a write of state and journal for Options.BeforeWrite.
const OpPage = "page"

const (
	// lingerFor is how long changes are collected before they are written.
	lingerFor = 10 * time.Millisecond
	// maxCatchUp bounds how long a reader waits for the disk.
	maxCatchUp = time.Second
	// maxUnwritten bounds how many entries the disk may be behind; Apply waits for it then.
	maxUnwritten = 64
)

// scribe is where a machine keeps what its disk has not seen yet. Its fields are guarded by the machine's mu.
type scribe struct {
	// at is the newest entry that was applied.
	at, term uint64
	// behind counts entries, and events holds those of them that have any.
	behind int
	events []store.JournalEntry
	// writing: a goroutine is under way, which ends when everything is written.
	writing bool
	// done is closed after the next write, or when there will be none; nil while nobody waits.
	done chan struct{}
	// hurry gets a token when somebody waits.
	hurry chan struct{}
	// failed is why nothing is applied or written any more.
	failed error
	// refused: the disk is full or read-only, and the page under way is tried again.
	refused bool
	// put writes a page; a field for tests.
	put func(*page) error

	// written is the newest index whose effects are on disk.
	written atomic.Uint64
}

// page is what is written in one go.
type page struct {
	at, term uint64
	events   []store.JournalEntry
	rows     []store.Change
	// first is the first entry whose events are kept.
	first uint64
}

// record notes what was applied, up to an entry, as still to be written; mu is held. It says whether the disk
// is too far behind to go on.
func (m *Machine) record(index, term uint64, entries int, events []store.JournalEntry) (full bool) {
	s := &m.scribe
	s.at, s.term = index, term
	s.behind += entries
	s.events = append(s.events, events...)
	if !s.writing {
		s.writing = true
		go m.write()
	}
	return s.behind >= maxUnwritten
}

// write writes until there is nothing left.
func (m *Machine) write() {
	for m.linger() {
		if err := m.writePage(); err != nil {
			m.fail(err)
		}
	}
}

// linger waits for more to write, unless somebody waits; false when there is nothing, or no use.
func (m *Machine) linger() bool {
	m.mu.Lock()
	s := &m.scribe
	s.writing = s.behind > 0 && s.failed == nil
	goesOn := s.writing
	if !goesOn {
		s.wake()
	}
	m.mu.Unlock()
	if !goesOn {
		return false
	}
	timer := time.NewTimer(lingerFor)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.hurry:
	}
	return true
}

func (m *Machine) writePage() error {
	p, err := m.turnPage()
	if err == nil {
		err = m.persistOrWait(p)
	}
	if err != nil {
		return fmt.Errorf("state on disk after entry %d: %w", p.at, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.scribe.written.Store(p.at)
	m.scribe.refused = false
	m.scribe.wake()
	return nil
}

// refusal notes that the disk refused a page.
func (m *Machine) refusal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.scribe.refused = true
	m.scribe.wake()
}

// turnPage takes what is to be written: nothing once the node halts, since an entry that cannot be applied may have
// changed some rows already, and entries before it in its batch are not accounted for.
func (m *Machine) turnPage() (*page, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.scribe
	p := &page{at: s.at, term: s.term, events: s.events, first: m.core.ledger.Meta().JournalFirst}
	if s.failed != nil {
		return p, s.failed
	}
	s.behind, s.events = 0, nil
	var err error
	p.rows, err = m.core.takeRows()
	return p, err
}

// wake tells those who wait for the disk to look again; mu is held.
func (s *scribe) wake() {
	if s.done != nil {
		close(s.done)
		s.done = nil
	}
}

// flush returns when everything that is applied now is on disk, or why the node halted.
func (m *Machine) flush(ctx context.Context) error {
	s, target := &m.scribe, m.applied.Load()
	var failed error
	err := m.awaitDisk(ctx, func() bool {
		failed = s.failed
		return failed != nil || s.written.Load() >= target
	})
	return cmp.Or(err, failed)
}

// catchUp is flush for those who read what is on disk: while the disk refuses to be written, or hangs, they get
// what is there.
func (m *Machine) catchUp(ctx context.Context) error {
	s, target := &m.scribe, m.applied.Load()
	bounded, cancel := context.WithTimeout(ctx, maxCatchUp)
	defer cancel()
	_ = m.awaitDisk(bounded, func() bool { return s.failed != nil || s.refused || s.written.Load() >= target })
	return context.Cause(ctx)
}

// rest returns when nothing is being written any more. Nothing may be applied meanwhile.
func (m *Machine) rest() {
	_ = m.awaitDisk(context.Background(), func() bool { return !m.scribe.writing })
}

// awaitDisk has the disk catch up until ready, which is called with mu held, says so.
func (m *Machine) awaitDisk(ctx context.Context, ready func() bool) error {
	for {
		m.mu.Lock()
		if ready() {
			m.mu.Unlock()
			return nil
		}
		if m.scribe.done == nil {
			m.scribe.done = make(chan struct{})
		}
		done := m.scribe.done
		m.mu.Unlock()
		wake(m.scribe.hurry)
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// persist writes events, then rows: after a crash in between, the entries are applied again and write
// the same events over themselves. It may be called again with a page of which the disk took a part.
func (m *Machine) persist(p *page) error {
	if err := m.trail.Append(p.events...); err != nil {
		return err
	}
	if at, _ := m.state.Applied(); at < p.at {
		if err := m.state.Apply(p.at, p.term, p.rows); err != nil {
			return err
		}
	}
	return m.trim(p.first)
}

// trim drops the events before an entry, which the state says are not kept any more.
func (m *Machine) trim(first uint64) error {
	if first <= m.trail.First() {
		return nil
	}
	return m.trail.TrimBefore(first)
}
