package recording

import (
	"fmt"
	"time"

	"kvgate/fsm"
	"kvgate/ledger"
	"kvgate/rpc"
	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// Recorder runs operations on a ledger and keeps its journal.
type Recorder struct {
	Ledger *ledger.Ledger
	Events []*kvgatev1.JournalEvent
	// Start is the wall time of ledger time 0.
	Start time.Time
	index uint64
}

// New returns a recorder whose node n1 leads.
func New(start time.Time) *Recorder {
	r := &Recorder{Ledger: ledger.New(), Start: start}
	r.Ledger.Reset()
	r.Do(0, func(l *ledger.Ledger) { l.NewTerm(1, "n1") })
	return r
}

// Do runs one log entry at a time after the start: what is due first, then ops in order, as a node does.
func (r *Recorder) Do(at time.Duration, ops ...func(*ledger.Ledger)) {
	r.index++
	r.Ledger.Advance(ledger.Time(at), 0)
	for _, op := range ops {
		op(r.Ledger)
	}
	wall := r.Start.Add(at).UnixNano()
	for n, e := range r.Ledger.Events() {
		r.Events = append(r.Events, rpc.JournalEvent(r.index, uint32(n), fsm.EncodeEvent(e, wall)))
	}
	r.Ledger.Reset()
}

// Set changes settings of the default pool. A patch that is refused is a mistake of the caller: it panics.
func (r *Recorder) Set(at time.Duration, set ledger.Settings, fields ...string) {
	r.Do(at, func(l *ledger.Ledger) {
		if _, err := l.UpdateSettings(ledger.DefaultPool, ledger.Patch{Set: set, Fields: fields}); err != nil {
			panic(fmt.Sprintf("recording: %v", err))
		}
	})
}

// Engines is a fresh round of polling.
func (r *Recorder) Engines(at time.Duration, engines ...ledger.Engine) {
	r.Do(at, func(l *ledger.Ledger) { l.Reconcile(ledger.DefaultPool, ledger.Round{Fresh: true, Engines: engines}) })
}

// Acquire asks for a lease in the default pool. An operation that is refused is a mistake of the caller: it panics.
func (r *Recorder) Acquire(at time.Duration, op ledger.Acquire) (d ledger.Decision) {
	r.Do(at, func(l *ledger.Ledger) {
		op.Pool = ledger.DefaultPool
		var err error
		if d, err = l.Acquire(op); err != nil {
			panic(fmt.Sprintf("recording: %v", err))
		}
	})
	return d
}

// Release ends a ticket's lease.
func (r *Recorder) Release(at time.Duration, ticket string) {
	r.Do(at, func(l *ledger.Ledger) { l.Release(ledger.Release{Pool: ledger.DefaultPool, Ticket: ticket}) })
}

// Expire gives up a holder, as the leader does when it was silent.
func (r *Recorder) Expire(at time.Duration, holder string) {
	r.Do(at, func(l *ledger.Ledger) {
		for _, h := range l.Holder(holder) {
			l.ReclaimHolder(h.Pool, holder, h.LastActive)
		}
	})
}

// Engine returns a healthy engine.
func Engine(name string, capacity ledger.Tokens) ledger.Engine {
	return ledger.Engine{URL: "http://" + name + ":30000", Healthy: true, Capacity: capacity}
}
