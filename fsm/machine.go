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
	"kvgate/sessions"
	"kvgate/store"
)

// Machine applies committed log entries to the ledger and the session table and keeps their image on disk. raft calls Apply,
// Snapshot and Restore from one goroutine; everybody else reads through view.
type Machine struct {
	log   *slog.Logger
	halt  func(error)
	state *store.State
	trail *store.Journal

	// mu guards core: held for writing while a batch changes it, never while the disk is written.
	mu   sync.RWMutex
	core *core

	// copyEvents gets events of entries from…to from other nodes, in order; nil on a node without any.
	copyEvents func(from, to uint64, put func(index uint64, events [][]byte) error) error
	// stopping ends the wait for a disk that refuses writes.
	stopping <-chan struct{}

	// newest is the newest command version that this node applies.
	newest uint32

	// applied is the newest index whose effects are in the ledger and on disk.
	applied atomic.Uint64
	// changed gets a token after every batch, for whoever waits for the next deadline, and moved one after
	// every batch with events of sessions, for the closer.
	changed, moved chan struct{}

	// reached wakes readers that wait for an index; guarded by mu, nil while nobody waits.
	reached chan struct{}
	// told wakes whoever waits for something to happen to a session; guarded by mu, nil while nobody waits.
	told chan struct{}

	// pending and event are reused between batches, failed is why nothing is applied any more; only raft's
	// goroutine touches them.
	pending []store.Change
	event   fsmpb.Event
	failed  error
}

// newMachine returns a machine over the image on disk, which the caller has checked. halt is called
// once when an entry cannot be applied; it must not return before the process is on its way out.
func newMachine(d *disk, newest uint32, log *slog.Logger, halt func(error)) (*Machine, error) {
	c, err := loadCore(d.state)
	if err != nil {
		return nil, err
	}
	m := &Machine{
		log: log, halt: halt, state: d.state, trail: d.trail, core: c, newest: newest,
		changed: make(chan struct{}, 1), moved: make(chan struct{}, 1),
	}
	index, _ := d.state.Applied()
	m.applied.Store(index)
	return m, nil
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
	before := len(m.core.order)
	r, err := applyBatch(m.core, &b, m.newest)
	if err != nil {
		return nil, nil, err
	}
	ev, err := m.encodeEvents(m.core.order[before:], b.WallTime)
	return r, ev, err
}

// encodeEvents encodes the events of the ledger and the table in the given order.
func (m *Machine) encodeEvents(order []int, wall int64) ([][]byte, error) {
	out := make([][]byte, len(order))
	for i, n := range order {
		if n >= 0 {
			encodeEvent(&m.core.ledger.Events()[n], wall, &m.event)
		} else {
			encodeSessionEvent(&m.core.table.Events()[-1-n], wall, &m.event)
		}
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
	if first := m.core.ledger.Meta().JournalFirst; first > m.trail.First() {
		if err := m.trail.TrimBefore(first); err != nil {
			return err
		}
	}
	m.mu.Lock()
	moved := len(m.core.table.Events()) > 0
	m.core.reset()
	m.arrive(last.Index, moved)
	m.mu.Unlock()
	m.notify(moved)
	return nil
}

// arrive wakes the readers that wait for index, and those that wait for a session when one moved; mu is held.
func (m *Machine) arrive(index uint64, moved bool) {
	m.applied.Store(index)
	if m.reached != nil {
		close(m.reached)
		m.reached = nil
	}
	if moved && m.told != nil {
		close(m.told)
		m.told = nil
	}
}

func (m *Machine) notify(moved bool) {
	wake(m.changed)
	if moved {
		wake(m.moved)
	}
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (m *Machine) collect() error {
	clear(m.pending)
	m.pending = m.pending[:0]
	var first error
	add := func(row store.Change, err error) {
		if err != nil && first == nil {
			first = err
		}
		m.pending = append(m.pending, row)
	}
	m.core.ledger.Changes(func(c ledger.Change) { add(encodeRow(c)) })
	m.core.table.Changes(func(c sessions.Change) { add(encodeSessionRow(c)) })
	return first
}

// view calls fn with the ledger, which fn must not change or keep.
func (m *Machine) view(fn func(*ledger.Ledger)) { m.look(func(c *core) { fn(c.ledger) }) }

// look calls fn with the ledger and the table, which fn must not change or keep.
func (m *Machine) look(fn func(*core)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	fn(m.core)
}

// due returns the next deadline and whether any lease, waiter, mark, session or pin has one.
func (m *Machine) due() (now, next ledger.Time, any, pending bool) {
	m.look(func(c *core) {
		now = c.ledger.Now()
		next, any = c.nextDue()
		pending = c.ledger.Pending()+c.table.Pending() > 0
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
