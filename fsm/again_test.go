package fsm

import (
	"testing"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
)

// TestTrap2CallsThatComeAgain have no further effect, and the same answer: a node sends an operation once more
// when it lost the leader's answer, which may mean that it was applied [hashicorp/raft#561], and the network may
// deliver a copy late.
func TestTrap2CallsThatComeAgain(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	do := func(op *fsmpb.Op) any {
		t.Helper()
		res, err := s.doHere(t.Context(), op)
		must(t, err)
		must(t, res.Err)
		return res.Value
	}
	acquire := func(ticket string, call uint64) *fsmpb.Op {
		a := ask(ticket, 10)
		a.Call = call
		return acquireOp(a)
	}
	wants := func(what string, op *fsmpb.Op, action ledger.Action, reason ledger.Reason) {
		t.Helper()
		if d, _ := do(op).(ledger.Decision); d.Action != action || d.Reason != reason {
			t.Errorf("%s: %+v", what, d)
		}
	}
	const early = 70
	do(cancelOp(ledger.DefaultPool, "a", early))
	for range 2 {
		wants("the Acquire that the mark lets go", acquire("a", 71), ledger.ActionBypass, ledger.Cancelled)
	}
	wants("another Acquire", acquire("a", 72), ledger.ActionAdmit, ledger.CapacityAvailable)
	if was := do(cancelOp(ledger.DefaultPool, "a", early)); was != ledger.CancelUnknown {
		t.Errorf("a late copy of the first cancel answers %v", was)
	}
	wants("the lease is still there", acquire("a", 73), ledger.ActionAdmit, ledger.CapacityAvailable)
	for range 2 {
		if was := do(cancelOp(ledger.DefaultPool, "a", 74)); was != ledger.CancelLeased {
			t.Errorf("a cancel that comes again answers %v", was)
		}
	}
	wants("no mark is left", acquire("a", 75), ledger.ActionAdmit, ledger.CapacityAvailable)
	held := do(acquire("b", 76)).(ledger.Decision)
	if again := do(acquire("b", 76)).(ledger.Decision); again.Seq != held.Seq {
		t.Errorf("an acquire that comes again gets grant %d after %d", again.Seq, held.Seq)
	}
	give := releaseOp(ledger.Release{Pool: ledger.DefaultPool, Ticket: "b", Grant: held.Seq})
	do(give)
	next := do(acquire("b", 77)).(ledger.Decision)
	if do(give) != false {
		t.Error("a release that comes again ends the ticket's next lease")
	}
	if still := do(acquire("b", 78)).(ledger.Decision); still.Seq != next.Seq {
		t.Errorf("grant %d, want %d as before", still.Seq, next.Seq)
	}
}
