package ledger_test

import (
	"fmt"
	"testing"

	"kvgate/ledger"
)

// TestFloodOfCancels: a million cancels of tickets that have not arrived are remembered, then the oldest
// thousand are forgotten to make room. The rows tell the same.
func TestFloodOfCancels(t *testing.T) {
	const most, atOnce = 1_000_000, 1000
	l, rows := newPool(t, 100), 0
	for i := range most + 1 {
		if was := l.Cancel(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: fmt.Sprint("t", i), Call: uint64(i + 1)}); was != ledger.CancelUnknown {
			t.Fatalf("ticket %d was %v", i, was)
		}
		l.Changes(func(c ledger.Change) {
			switch {
			case c.Mark == nil:
			case c.Deleted:
				rows--
			default:
				rows++
			}
		})
		l.Reset()
	}
	if got := l.Pending(); got != most+1-atOnce || rows != got {
		t.Errorf("%d cancels are remembered and have %d rows, want %d", got, rows, most+1-atOnce)
	}
	for ticket, want := range map[int]ledger.Action{
		0: ledger.ActionAdmit, atOnce - 1: ledger.ActionAdmit, atOnce: ledger.ActionBypass, most: ledger.ActionBypass,
	} {
		if d := acquire(t, l, fmt.Sprint("t", ticket), 1, ""); d.Action != want {
			t.Errorf("ticket %d: %v %v, want %v", ticket, d.Action, d.Reason, want)
		}
	}
}
