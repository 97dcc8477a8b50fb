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
	do(cancelOp(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "a", Call: early}))
	for range 2 {
		wants("the Acquire that the mark lets go", acquire("a", 71), ledger.ActionBypass, ledger.Cancelled)
	}
	wants("another Acquire", acquire("a", 72), ledger.ActionAdmit, ledger.CapacityAvailable)
	if was := do(cancelOp(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "a", Call: early})); was != ledger.CancelUnknown {
		t.Errorf("a late copy of the first cancel answers %v", was)
	}
	wants("the lease is still there", acquire("a", 73), ledger.ActionAdmit, ledger.CapacityAvailable)
	for range 2 {
		if was := do(cancelOp(ledger.Cancel{Pool: ledger.DefaultPool, Ticket: "a", Call: 74})); was != ledger.CancelLeased {
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

// TestLateCopiesOfWhatIsOverGetNothing: a caller that names the Acquire it gave up on, or whose lease it
// released, is not told of a copy that a node asks for later, and the copy leaves nothing. That holds across a
// restart, and everybody else goes on as before.
func TestLateCopiesOfWhatIsOverGetNothing(t *testing.T) {
	s := startSingle(t)
	budget(t, s.Replica, 100)
	acquire := func(ticket string, call uint64) ledger.Decision {
		t.Helper()
		a := ask(ticket, 10)
		a.Call = call
		d, err := s.Acquire(t.Context(), a)
		must(t, err)
		return d
	}
	cancel := func(ticket string, ended uint64, want ledger.CancelState) {
		t.Helper()
		was, err := s.Cancel(t.Context(), ledger.Cancel{Pool: ledger.DefaultPool, Ticket: ticket, Ended: ended})
		must(t, err)
		if was != want {
			t.Errorf("the cancel of call %d of %s answers %v, want %v", ended, ticket, was, want)
		}
	}
	wantsNothing := func(what, ticket string, call uint64) {
		t.Helper()
		if d := acquire(ticket, call); d.Action != ledger.ActionBypass || d.Reason != ledger.Cancelled {
			t.Errorf("%s: %+v", what, d)
		}
	}
	acquire("held", 1)
	cancel("held", 1, ledger.CancelLeased)
	wantsNothing("a copy of what was cancelled", "held", 1)
	cancel("early", 2, ledger.CancelUnknown)
	wantsNothing("what its cancel overtook", "early", 2)
	if d := acquire("early", 3); d.Action != ledger.ActionAdmit {
		t.Errorf("another call of the ticket is not meant: %+v", d)
	}
	cancel("early", 2, ledger.CancelUnknown)
	wantsNothing("a copy while another call has the lease", "early", 2)
	d := acquire("freed", 4)
	released, err := s.Release(t.Context(), ledger.Release{Pool: ledger.DefaultPool, Ticket: "freed", Grant: d.Seq, Ended: 4})
	must(t, err)
	if !released {
		t.Error("the lease was not released")
	}
	s.restart()
	wantsNothing("a copy of what was released, after a restart", "freed", 4)
	cancel("freed", 4, ledger.CancelLeased)
	var b ledger.Budget
	s.machine.view(func(l *ledger.Ledger) { b, _ = l.Budget(ledger.DefaultPool) })
	if b.Leases != 1 || b.Waiting != 0 {
		t.Errorf("%d leases and %d waiters, want the lease of call 3", b.Leases, b.Waiting)
	}
}
