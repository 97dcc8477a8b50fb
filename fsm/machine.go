package fsm

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/store"
)

// Machine applies committed log entries to the ledger and keeps its image on disk. raft calls Apply,
// Snapshot and Restore from one goroutine; everybody else reads through view.
type Machine struct {
	log   *slog.Logger
	halt  func(error)
	state *store.State
	trail *store.Journal

	// mu guards ledger: held for writing while a batch changes it, never while the disk is written.
	mu     sync.RWMutex
	ledger *ledger.Ledger

	// copyEvents gets events of entries from…to from other nodes, in order; nil on a node without any.
	copyEvents func(from, to uint64, put func(index uint64, events [][]byte) error) error
	// stopping ends the wait for a disk that refuses writes.
	stopping <-chan struct{}

	// newest is the newest command version that this node applies.
	newest uint32

	// applied is the newest index whose effects are in the ledger and on disk.
	applied atomic.Uint64
	// changed gets a token after every batch, for whoever waits for the next deadline.
	changed chan struct{}

	// reached wakes readers that wait for an index; guarded by mu, nil while nobody waits.
	reached chan struct{}

	// pending and event are reused between batches, failed is why nothing is applied any more; only raft's
	// goroutine touches them.
	pending []store.Change
	event   fsmpb.Event
	failed  error
}

// newMachine returns a machine over the image on disk, which the caller has checked. halt is called
// once when an entry cannot be applied; it must not return before the process is on its way out.
func newMachine(d *disk, newest uint32, log *slog.Logger, halt func(error)) (*Machine, error) {
	l, err := loadLedger(d.state)
	if err != nil {
		return nil, err
	}
	m := &Machine{
		log: log, halt: halt, state: d.state, trail: d.trail, ledger: l, newest: newest, changed: make(chan struct{}, 1),
	}
	index, _ := d.state.Applied()
	m.applied.Store(index)
	return m, nil
}

func loadLedger(state *store.State) (*ledger.Ledger, error) {
	ld := ledger.NewLoader()
	for _, b := range store.Buckets() {
		err := state.ForEach(b, func(k, v []byte) error {
			row, err := decodeRow(b, k, v)
			if err == nil {
				ld.Add(row)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	l, err := ld.Finish()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return l, nil
}

// Apply implements raft.FSM.
func (m *Machine) Apply(entry *raft.Log) any { return m.ApplyBatch([]*raft.Log{entry})[0] }

// ApplyBatch implements raft.BatchingFSM: all entries go to disk in one transaction.
func (m *Machine) ApplyBatch(entries []*raft.Log) []any {
	out := make([]any, len(entries))
	if m.failed != nil {
		return out
	}
	events := make([][][]byte, len(entries))
	m.mu.Lock()
	for i, entry := range entries {
		if entry.Type != raft.LogCommand || entry.Index <= m.applied.Load() {
			continue
		}
		r, ev, err := m.applyEntry(entry)
		if err != nil {
			m.mu.Unlock()
			m.fail(fmt.Errorf("log entry %d: %w", entry.Index, err))
			return out
		}
		out[i], events[i] = r, ev
	}
	m.mu.Unlock()
	if err := m.persistOrWait(entries, events); err != nil {
		m.fail(fmt.Errorf("state on disk after entry %d: %w", entries[len(entries)-1].Index, err))
	}
	return out
}

// fail halts the node. raft goes on until the process ends, so nothing more is applied or snapshotted:
// the entry that failed would be skipped.
func (m *Machine) fail(err error) {
	m.failed = err
	m.halt(err)
}

func (m *Machine) applyEntry(entry *raft.Log) (*batchResult, [][]byte, error) {
	var b fsmpb.Batch
	if err := proto.Unmarshal(entry.Data, &b); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	before := len(m.ledger.Events())
	r, err := applyBatch(m.ledger, &b, m.newest)
	if err != nil {
		return nil, nil, err
	}
	ev, err := m.encodeEvents(m.ledger.Events()[before:], b.WallTime)
	return r, ev, err
}

func (m *Machine) encodeEvents(events []ledger.Event, wall int64) ([][]byte, error) {
	out := make([][]byte, len(events))
	for i := range events {
		encodeEvent(&events[i], wall, &m.event)
		raw, err := proto.Marshal(&m.event)
		if err != nil {
			return nil, err
		}
		out[i] = raw
	}
	return out, nil
}

// persist writes events, then rows: after a crash in between, the entry is applied again and writes
// the same events over themselves.
func (m *Machine) persist(entries []*raft.Log, events [][][]byte) error {
	last := entries[len(entries)-1]
	if last.Index <= m.applied.Load() {
		return nil
	}
	for i, entry := range entries {
		if len(events[i]) == 0 {
			continue
		}
		if err := m.trail.Append(entry.Index, events[i]); err != nil {
			return err
		}
	}
	if err := m.collect(); err != nil {
		return err
	}
	if err := m.state.Apply(last.Index, last.Term, m.pending); err != nil {
		return err
	}
	if first := m.ledger.Meta().JournalFirst; first > m.trail.First() {
		if err := m.trail.TrimBefore(first); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.ledger.Reset()
	m.arrive(last.Index)
	m.mu.Unlock()
	m.notify()
	return nil
}

// arrive wakes the readers that wait for index; mu is held.
func (m *Machine) arrive(index uint64) {
	m.applied.Store(index)
	if m.reached != nil {
		close(m.reached)
		m.reached = nil
	}
}

func (m *Machine) notify() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

func (m *Machine) collect() error {
	clear(m.pending)
	m.pending = m.pending[:0]
	var first error
	m.ledger.Changes(func(c ledger.Change) {
		row, err := encodeRow(c)
		if err != nil && first == nil {
			first = err
		}
		m.pending = append(m.pending, row)
	})
	return first
}

// view calls fn with the ledger, which fn must not change or keep.
func (m *Machine) view(fn func(*ledger.Ledger)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	fn(m.ledger)
}

// due returns the next deadline and whether any lease, waiter or mark has one.
func (m *Machine) due() (now, next ledger.Time, any, pending bool) {
	m.view(func(l *ledger.Ledger) {
		now = l.Now()
		next, any = l.NextDue()
		pending = l.Pending() > 0
	})
	return now, next, any, pending
}

// WaitApplied waits until more than after is applied and returns how far this node is.
func (r *Replica) WaitApplied(ctx context.Context, after uint64) (applied uint64, err error) {
	err = r.machine.reach(ctx, after+1)
	return r.machine.applied.Load(), err
}

// reach waits until the entry at index is applied.
func (m *Machine) reach(ctx context.Context, index uint64) error {
	for m.applied.Load() < index {
		m.mu.Lock()
		if m.applied.Load() >= index {
			m.mu.Unlock()
			return nil
		}
		if m.reached == nil {
			m.reached = make(chan struct{})
		}
		reached := m.reached
		m.mu.Unlock()
		select {
		case <-reached:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
