package fsm

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"kvgate/ledger"
	"kvgate/store"
)

// TestCallsShareTheNextBatch: however many calls come while a batch is on its way to the disk, they cost
// one more log entry.
func TestCallsShareTheNextBatch(t *testing.T) {
	const calls = 100
	var g gate
	s := startSingle(t, func(o *Options) { o.BeforeWrite = g.pass })
	t.Cleanup(g.open)
	budget(t, s.Replica, calls)
	g.shut()
	term := s.leading()
	var all []*call
	for i := range calls {
		c := &call{op: acquireOp(ask(fmt.Sprint("t", i), 1)), done: make(chan Result, 1), decided: make(chan ledger.Decision, 1)}
		must(t, term.submit(t.Context(), c))
		all = append(all, c)
		for range 1000 { // time enough to propose it alone, were that allowed
			runtime.Gosched()
		}
	}
	g.open()
	for _, c := range all {
		_, err := term.await(t.Context(), c)
		must(t, err)
	}
	page, err := s.Journal(t.Context(), true, store.JournalQuery{Kinds: []string{string(ledger.KindAdmitted)}, Limit: 2 * calls})
	must(t, err)
	entries := map[uint64]int{}
	for _, e := range page.Events {
		entries[e.Index]++
	}
	if len(page.Events) != calls || len(entries) > 2 {
		t.Errorf("%d grants in %d log entries, want %d in at most 2: %v", len(page.Events), len(entries), calls, entries)
	}
}

// TestStallIsTakenOffWhatALeaseHasLeft: the answer tells what is left when it is given, not what was left
// when the disk began to stall.
func TestStallIsTakenOffWhatALeaseHasLeft(t *testing.T) {
	const stall, ttl = 3 * time.Second, time.Minute
	var s *single
	var stalls atomic.Bool
	s = startSingle(t, func(o *Options) {
		o.BeforeWrite = func(op string) error {
			if op == store.OpStoreLogs && stalls.CompareAndSwap(true, false) {
				s.clock.Advance(stall)
			}
			return nil
		}
	})
	budget(t, s.Replica, 100)
	left := func(what string, left time.Duration) {
		t.Helper()
		if left > ttl-stall || left < ttl-2*stall {
			t.Errorf("%s: %v left of %v after a stall of %v", what, left, ttl, stall)
		}
	}
	a := ask("a", 100)
	a.TTL = ttl
	stalls.Store(true)
	d, err := s.Acquire(t.Context(), a)
	must(t, err)
	left("acquire", d.ExpiresIn)
	stalls.Store(true)
	renewed, err := s.Renew(t.Context(), ledger.DefaultPool, []ledger.LeaseRef{{Ticket: "a"}}, ttl)
	must(t, err)
	left("renew", renewed[0].ExpiresIn)
	b := ask("b", 100)
	b.TTL = ttl
	waits := queue(t, s.Replica, b)
	stalls.Store(true)
	release(t, s.Replica, "a")
	left("a wait that ends", waits.admitted().ExpiresIn)
}
