package fsm

import (
	"fmt"
	"runtime"
	"testing"

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
