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

// Machine applies committed log entries to the ledger and the session table and keeps their image on disk. raft calls Apply,
// Snapshot and Restore from one goroutine; everybody else reads through view.
type Machine struct {
	log   *slog.Logger
	halt  func(error)
	state *store.State
	trail *store.Journal

	// mu guards core: held for writing while a batch changes it or its changes are taken, never while the disk is
	// written.
	mu   sync.RWMutex
	core *core

	// copyEvents gets events of entries from…to from other nodes, in order; nil on a node without any.
	copyEvents func(from, to uint64, put func(store.JournalEntry) error) error
	// stopping ends the wait for a disk that refuses writes.
	stopping <-chan struct{}

	// newest is the newest command version that this node applies.
	newest uint32

	// leapt is the entry to which this node, leading, has an operator's restore leap: its journal lacks nothing up
	// to there, and no other node has come that far.
	leapt atomic.Uint64

	// applied is the newest index whose effects are in the ledger.
	applied atomic.Uint64
	// changed gets a token after every batch, for whoever waits for the next deadline, and moved one after
	// every batch with events of sessions, for the closer.
	changed, moved chan struct{}

	// reached wakes readers that wait for an index; guarded by mu, nil while nobody waits.
	reached chan struct{}
	// told wakes whoever waits for something to happen to a session; guarded by mu, nil while nobody waits.
	told chan struct{}

	// event is reused between batches; guarded by mu.
	event fsmpb.Event

	scribe scribe
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
		changed: make(chan struct{}, 1), moved: make(chan struct{}, 1), scribe: scribe{hurry: make(chan struct{}, 1)},
	}
	index, _ := d.state.Applied()
	m.applied.Store(index)
	m.scribe.written.Store(index)
	m.scribe.put = m.persist
	// A kill may have come between the state and the trim that it tells of.
	return m, m.trim(c.ledger.Meta().JournalFirst)
}

// Apply implements raft.FSM.
func (m *Machine) Apply(entry *raft.Log) any { return m.ApplyBatch([]*raft.Log{entry})[0] }

// ApplyBatch implements raft.BatchingFSM. It returns once all entries are in the ledger; see scribe for the disk.
func (m *Machine) ApplyBatch(entries []*raft.Log) []any {
	out := make([]any, len(entries))
	full, err := m.applyAll(entries, out)
	if err != nil {
		m.fail(err)
	}
	if full {
		_ = m.flush(context.Background()) // a failure has halted the node
	}
	return out
}

// applyAll says, too, whether the disk is too far behind to go on.
func (m *Machine) applyAll(entries []*raft.Log, out []any) (full bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.scribe.failed != nil {
		return false, nil
	}
	applied := m.applied.Load()
	var events []store.JournalEntry
	for i, entry := range entries {
		if entry.Type != raft.LogCommand || entry.Index <= applied {
			continue
		}
		r, ev, err := m.applyEntry(entry)
		if err != nil {
			return false, fmt.Errorf("log entry %d: %w", entry.Index, err)
		}
		out[i] = r
		if len(ev) > 0 {
			events = append(events, store.JournalEntry{Index: entry.Index, Events: ev})
		}
	}
	last := entries[len(entries)-1]
	if last.Index <= applied {
		return false, nil
	}
	moved := len(m.core.table.Events()) > 0
	m.core.forget()
	full = m.record(last.Index, last.Term, len(entries), events)
	m.arrive(last.Index, moved)
	m.notify(moved)
	return full, nil
}

// fail halts the node, once. raft goes on until the process ends, so nothing more is applied, written or
// snapshotted: the entry that failed would be skipped.
func (m *Machine) fail(err error) {
	m.mu.Lock()
	first := m.scribe.failed == nil
	if first {
		m.scribe.failed = err
	}
	m.scribe.wake()
	m.mu.Unlock()
	if first {
		m.halt(err)
	}
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
